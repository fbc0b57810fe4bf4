//! AArch64: `stnp`, which stores a pair of words with a hint that they will not be read soon.
//!
//! The hint does not change the order of these stores: they are ordered like ordinary stores (Arm
//! ARM, C3.2.4, which has an exception for loads only). So the drain does nothing, and a Release
//! store publishes the data.

use crate::{ordinary, stores::Kind};
use core::{arch::asm, mem::MaybeUninit};

pub(crate) const GENERAL_REGISTERS: Kind = Kind::Stnp;
pub(crate) const ALL: &[Kind] = &[Kind::Ordinary, Kind::Stnp];

pub(crate) const fn widest() -> Kind {
    GENERAL_REGISTERS
}

#[inline(always)]
pub(crate) fn copy(kind: Kind, dst: &mut [MaybeUninit<u8>], src: &[u8]) {
    let (to, from, len) = (dst.as_mut_ptr().cast::<u64>(), src.as_ptr().cast::<u64>(), src.len());
    if kind == Kind::Ordinary || !to.is_aligned() || !len.is_multiple_of(8) {
        return ordinary::copy(dst, src);
    }
    let words = len / 8;
    // SAFETY: `words` words may be read at `from` and written at `to`, which is aligned to words.
    // If `words` is odd, the pairs end before the last word.
    unsafe {
        for pair in (0..words / 2).map(|pair| pair * 2) {
            let (first, second) = (from.add(pair), from.add(pair + 1));
            store_pair(to.add(pair), first.read_unaligned(), second.read_unaligned());
        }
        if !words.is_multiple_of(2) {
            to.add(words - 1).write(from.add(words - 1).read_unaligned());
        }
    }
}

#[inline(always)]
pub(crate) fn fill<const WORDS: usize>(
    kind: Kind,
    dst: &mut [MaybeUninit<[u64; WORDS]>],
    first: &[u64; WORDS],
    step: &[u64; WORDS],
) {
    if kind == Kind::Ordinary {
        return ordinary::fill(dst, first, step);
    }
    let mut record = *first;
    for slot in dst {
        let to = slot.as_mut_ptr().cast::<u64>();
        let (pairs, last) = record.as_chunks::<2>();
        for (n, &[first, second]) in pairs.iter().enumerate() {
            // SAFETY: this pair lies within the slot, which is aligned to words.
            unsafe { store_pair(to.add(n * 2), first, second) };
        }
        if let [last] = *last {
            // SAFETY: the last word lies within the slot.
            unsafe { to.add(WORDS - 1).write(last) };
        }
        record = ordinary::next(&record, step, 1);
    }
}

/// Stores two words.
///
/// # Safety
/// Two words may be written at `to`, which is aligned to 8.
#[inline(always)]
unsafe fn store_pair(to: *mut u64, first: u64, second: u64) {
    // SAFETY: the caller guarantees it.
    unsafe {
        asm!("stnp {}, {}, [{}]", in(reg) first, in(reg) second, in(reg) to,
             options(nostack, preserves_flags));
    }
}

#[inline(always)]
pub(crate) fn drain(_: Kind) {}

/// Prefetches a cache line for a store.
#[inline(always)]
pub(crate) fn prefetch_for_stores(kind: Kind, addr: *const u8) {
    if kind != Kind::Ordinary {
        // SAFETY: a prefetch has no architectural effect, whatever the address.
        unsafe {
            asm!("prfm pstl1keep, [{}]", in(reg) addr, options(nostack, preserves_flags, readonly))
        };
    }
}
