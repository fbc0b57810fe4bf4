//! Defines grains: what a divided pageblock is for.
//!
//! If single frames were allocated between runs of several frames, they would split the free runs,
//! and requests for runs would divide one pageblock after another. So a search prefers pageblocks
//! that were divided for requests of the same grain. A pageblock for runs that has no free short
//! run serves single frames, until a run of it is freed. The grain affects only this preference.

use crate::geometry::BITMAP_WORD_BITS;

/// The length of the longest short run, in frames. A pageblock for runs in which a search finds no
/// such run serves single frames. Linux: `PAGE_ALLOC_COSTLY_ORDER`.
pub(crate) const COMMON_RUN: u32 = if BITMAP_WORD_BITS < 8 { 2 } else { 8 };

/// What a divided pageblock is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Grain {
    /// Single frames.
    Frame = 0,
    /// Runs of several frames.
    Run = 1,
}
