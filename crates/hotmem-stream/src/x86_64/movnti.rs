//! `movnti`: stores eight bytes at a time from general registers.

use super::line::LINE_WORDS;
use crate::ordinary;
use core::arch::asm;

/// Copies `words` words. A constant number compiles to a sequence of loads and `movnti`.
///
/// # Safety
/// `words` words may be read at `from` and written at `to`, which is aligned to 8; nothing else
/// accesses them before the drain.
#[inline(always)]
pub(super) unsafe fn copy(to: *mut u64, from: *const u64, words: usize) {
    let line_words = words / LINE_WORDS * LINE_WORDS;
    let mut done = 0;
    while done < line_words {
        // SAFETY: this line lies within the words.
        unsafe { line(to.add(done), &from.add(done).cast::<[u64; LINE_WORDS]>().read_unaligned()) };
        done += LINE_WORDS;
    }
    while done < words {
        // SAFETY: this word lies within the words.
        unsafe { word(to.add(done), from.add(done).read_unaligned()) };
        done += 1;
    }
}

/// Writes `count` lines: `first`, and then each the sum of the previous line and `step`. If at most
/// one word of `step` is not zero, a separate loop makes at most one addition for each line.
///
/// # Safety
/// `count` lines may be written at `to`, which is aligned to 8; nothing else accesses them before
/// the drain.
#[inline]
pub(super) unsafe fn fill(
    to: *mut u64,
    count: usize,
    first: &[u64; LINE_WORDS],
    step: &[u64; LINE_WORDS],
) {
    let mut changing = (0..LINE_WORDS).filter(|&word| step[word] != 0);
    // SAFETY: the caller guarantees it.
    unsafe {
        match (changing.next(), changing.next()) {
            (None, _) => lines(to, count, first, |_| {}),
            (Some(0), None) => lines(to, count, first, patch::<0>(step)),
            (Some(1), None) => lines(to, count, first, patch::<1>(step)),
            (Some(2), None) => lines(to, count, first, patch::<2>(step)),
            (Some(3), None) => lines(to, count, first, patch::<3>(step)),
            (Some(4), None) => lines(to, count, first, patch::<4>(step)),
            (Some(5), None) => lines(to, count, first, patch::<5>(step)),
            (Some(6), None) => lines(to, count, first, patch::<6>(step)),
            (Some(7), None) => lines(to, count, first, patch::<7>(step)),
            _ => lines(to, count, first, |words| *words = ordinary::next(words, step, 1)),
        }
    }
}

/// Returns a function that adds the step to one word.
#[inline(always)]
fn patch<const INDEX: usize>(step: &[u64; LINE_WORDS]) -> impl Fn(&mut [u64; LINE_WORDS]) {
    let step = step[INDEX];
    move |words| words[INDEX] = words[INDEX].wrapping_add(step)
}

/// Writes `count` lines. `next` changes each line into the next one.
///
/// # Safety
/// As for [`fill`].
#[inline(always)]
unsafe fn lines(
    to: *mut u64,
    count: usize,
    first: &[u64; LINE_WORDS],
    next: impl Fn(&mut [u64; LINE_WORDS]),
) {
    let mut words = *first;
    for i in 0..count {
        // SAFETY: the line at `i` is one of the `count`.
        unsafe { line(to.add(i * LINE_WORDS), &words) };
        next(&mut words);
    }
}

/// Stores one word.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn word(to: *mut u64, value: u64) {
    // SAFETY: the caller guarantees it.
    unsafe { asm!("movnti [{}], {}", in(reg) to, in(reg) value, options(nostack, preserves_flags)) }
}

/// Stores the eight words of a line, in the order of addresses.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn line(to: *mut u64, words: &[u64; LINE_WORDS]) {
    let &[a, b, c, d, e, f, g, h] = words;
    // SAFETY: the caller guarantees it.
    unsafe {
        asm!(
            "movnti [{to}], {a}",
            "movnti [{to} + 8], {b}",
            "movnti [{to} + 16], {c}",
            "movnti [{to} + 24], {d}",
            "movnti [{to} + 32], {e}",
            "movnti [{to} + 40], {f}",
            "movnti [{to} + 48], {g}",
            "movnti [{to} + 56], {h}",
            to = in(reg) to,
            a = in(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) d,
            e = in(reg) e, f = in(reg) f, g = in(reg) g, h = in(reg) h,
            options(nostack, preserves_flags),
        );
    }
}
