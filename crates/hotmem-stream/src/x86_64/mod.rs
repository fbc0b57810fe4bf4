//! x86-64: `movnti`, and vector stores where vector registers may be used.
//!
//! In Rust's memory model a non-temporal store is a write by another agent that happens later, and
//! the fence in [`drain`] waits for that agent. Between the store and the fence no code may access
//! the bytes: [`stream`](crate::stream) ensures this by borrowing them. Non-temporal stores are
//! weakly ordered, and SFENCE orders them (Intel SDM volume 1, 10.4.6.2).

mod avx2;
mod avx512;
mod cpu;
mod line;
mod movnti;

use crate::{ordinary, stores::Kind};
use core::{arch::asm, mem::MaybeUninit, slice};
pub(crate) use cpu::widest;
use line::{LINE_BYTES, LINE_WORDS};

pub(crate) const GENERAL_REGISTERS: Kind = Kind::Movnti;
pub(crate) const ALL: &[Kind] = &[Kind::Ordinary, Kind::Movnti, Kind::Avx2, Kind::Avx512];

#[inline(always)]
pub(crate) fn copy(kind: Kind, dst: &mut [MaybeUninit<u8>], src: &[u8]) {
    let (to, from, len) = (dst.as_mut_ptr().cast::<u64>(), src.as_ptr().cast::<u64>(), src.len());
    if kind == Kind::Ordinary || !to.is_aligned() || !len.is_multiple_of(8) {
        return ordinary::copy(dst, src);
    }
    let lines = if to.addr().is_multiple_of(LINE_BYTES) { len / LINE_BYTES } else { 0 };
    // SAFETY: `len` bytes may be read and written. The destination is aligned to words, and to
    // lines if `lines` is not 0. The processor has this kind of stores, and the caller may use it.
    unsafe {
        match kind {
            Kind::Avx512 if lines > 0 => avx512::copy(to, from, lines),
            Kind::Avx2 if lines > 0 => avx2::copy(to, from, lines),
            _ => return movnti::copy(to, from, len / 8),
        }
        let words_done = lines * LINE_WORDS;
        movnti::copy(to.add(words_done), from.add(words_done), len / 8 - words_done);
    }
}

#[inline(always)]
pub(crate) fn fill<const WORDS: usize>(
    kind: Kind,
    dst: &mut [MaybeUninit<[u64; WORDS]>],
    first: &[u64; WORDS],
    step: &[u64; WORDS],
) {
    if kind == Kind::Ordinary || WORDS == 0 || dst.is_empty() {
        return ordinary::fill(dst, first, step);
    }
    if !LINE_WORDS.is_multiple_of(WORDS) {
        return fill_records(kind, dst, first, step);
    }
    // Split `dst` into whole lines of one or more records, and the records before and after them
    // that do not fill a line.
    let records_per_line = LINE_WORDS / WORDS;
    let records_to_line = dst.as_ptr().cast::<u8>().align_offset(LINE_BYTES) / (WORDS * 8);
    let is_aligned = dst[0].as_ptr().addr().is_multiple_of(WORDS * 8);
    let (before, rest) =
        dst.split_at_mut(if is_aligned { records_to_line.min(dst.len()) } else { 0 });
    let (lines, after) = rest.split_at_mut(rest.len() / records_per_line * records_per_line);
    fill_records(kind, before, first, step);
    let first = &ordinary::next(first, step, before.len() as u64);
    let line: [u64; LINE_WORDS] = core::array::from_fn(|i| {
        first[i % WORDS].wrapping_add(step[i % WORDS].wrapping_mul((i / WORDS) as u64))
    });
    let line_step = core::array::from_fn(|i| step[i % WORDS].wrapping_mul(records_per_line as u64));
    let to = lines.as_mut_ptr().cast::<u64>();
    let count = lines.len() / records_per_line;
    if count > 0 {
        // SAFETY: `count` lines may be written. They are aligned to words, and to lines for vector
        // stores. The processor has this kind of stores, and the caller may use it.
        unsafe {
            match kind {
                Kind::Avx512 if is_aligned => avx512::fill(to, count, &line, &line_step),
                Kind::Avx2 if is_aligned => avx2::fill(to, count, &line, &line_step),
                _ => movnti::fill(to, count, &line, &line_step),
            }
        }
    }
    fill_records(kind, after, &ordinary::next(first, step, lines.len() as u64), step);
}

/// Writes the records one by one, each by [`copy`].
#[inline(always)]
fn fill_records<const WORDS: usize>(
    kind: Kind,
    dst: &mut [MaybeUninit<[u64; WORDS]>],
    first: &[u64; WORDS],
    step: &[u64; WORDS],
) {
    let mut record = *first;
    for slot in dst {
        // SAFETY: the slices cover the slot and the words, which have no padding.
        let (to, from) = unsafe {
            let to = slice::from_raw_parts_mut(slot.as_mut_ptr().cast(), WORDS * 8);
            (to, slice::from_raw_parts(record.as_ptr().cast(), WORDS * 8))
        };
        copy(kind, to, from);
        record = ordinary::next(&record, step, 1);
    }
}

/// Waits for all non-temporal stores of this CPU.
#[inline(always)]
pub(crate) fn drain(kind: Kind) {
    if kind != Kind::Ordinary {
        // SAFETY: the fence only waits. It is not `nomem`, because the stored bytes count as
        // written from here on.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) };
    }
}

/// Prefetches a cache line for a store.
#[inline(always)]
pub(crate) fn prefetch_for_stores(kind: Kind, addr: *const u8) {
    if kind != Kind::Ordinary {
        // SAFETY: a prefetch has no architectural effect, and ignores addresses that are not mapped
        // or not writable. (Processors without this instruction treat it as a no-op.)
        unsafe {
            asm!("prefetchw [{}]", in(reg) addr, options(nostack, preserves_flags, readonly))
        };
    }
}
