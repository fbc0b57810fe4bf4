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
    let mut words_done = 0;
    while words_done < line_words {
        // SAFETY: this line lies within the words.
        unsafe {
            store_line(
                to.add(words_done),
                &from.add(words_done).cast::<[u64; LINE_WORDS]>().read_unaligned(),
            )
        };
        words_done += LINE_WORDS;
    }
    while words_done < words {
        // SAFETY: this word lies within the words.
        unsafe { store_word(to.add(words_done), from.add(words_done).read_unaligned()) };
        words_done += 1;
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
    let mut changing_words = (0..LINE_WORDS).filter(|&word| step[word] != 0);
    // SAFETY: the caller guarantees it.
    unsafe {
        match (changing_words.next(), changing_words.next()) {
            (None, _) => store_lines(to, count, first, |_| {}),
            (Some(0), None) => store_lines(to, count, first, add_to_word::<0>(step)),
            (Some(1), None) => store_lines(to, count, first, add_to_word::<1>(step)),
            (Some(2), None) => store_lines(to, count, first, add_to_word::<2>(step)),
            (Some(3), None) => store_lines(to, count, first, add_to_word::<3>(step)),
            (Some(4), None) => store_lines(to, count, first, add_to_word::<4>(step)),
            (Some(5), None) => store_lines(to, count, first, add_to_word::<5>(step)),
            (Some(6), None) => store_lines(to, count, first, add_to_word::<6>(step)),
            (Some(7), None) => store_lines(to, count, first, add_to_word::<7>(step)),
            _ => store_lines(to, count, first, |words| *words = ordinary::next(words, step, 1)),
        }
    }
}

/// Returns a function that adds the step to one word.
#[inline(always)]
fn add_to_word<const INDEX: usize>(step: &[u64; LINE_WORDS]) -> impl Fn(&mut [u64; LINE_WORDS]) {
    let step = step[INDEX];
    move |words| words[INDEX] = words[INDEX].wrapping_add(step)
}

/// Writes `count` lines. `next` changes each line into the next one.
///
/// # Safety
/// As for [`fill`].
#[inline(always)]
unsafe fn store_lines(
    to: *mut u64,
    count: usize,
    first: &[u64; LINE_WORDS],
    next: impl Fn(&mut [u64; LINE_WORDS]),
) {
    let mut words = *first;
    for i in 0..count {
        // SAFETY: the line at `i` is one of the `count`.
        unsafe { store_line(to.add(i * LINE_WORDS), &words) };
        next(&mut words);
    }
}

/// Stores one word.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn store_word(to: *mut u64, value: u64) {
    // SAFETY: the caller guarantees it.
    unsafe { asm!("movnti [{}], {}", in(reg) to, in(reg) value, options(nostack, preserves_flags)) }
}

/// Stores the eight words of a line, in the order of addresses.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn store_line(to: *mut u64, words: &[u64; LINE_WORDS]) {
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
