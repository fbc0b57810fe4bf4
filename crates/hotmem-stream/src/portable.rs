//! Other architectures: ordinary stores for every kind.

use crate::{ordinary, stores::Kind};
use core::mem::MaybeUninit;

pub(crate) const GENERAL_REGISTERS: Kind = Kind::Ordinary;
pub(crate) const ALL: &[Kind] = &[Kind::Ordinary];

pub(crate) const fn widest() -> Kind {
    GENERAL_REGISTERS
}

#[inline(always)]
pub(crate) fn copy(_: Kind, dst: &mut [MaybeUninit<u8>], src: &[u8]) {
    ordinary::copy(dst, src);
}

#[inline(always)]
pub(crate) fn fill<const WORDS: usize>(
    _: Kind,
    dst: &mut [MaybeUninit<[u64; WORDS]>],
    first: &[u64; WORDS],
    step: &[u64; WORDS],
) {
    ordinary::fill(dst, first, step);
}

#[inline(always)]
pub(crate) fn drain(_: Kind) {}

#[inline(always)]
pub(crate) fn prefetch_for_stores(_: Kind, _: *const u8) {}
