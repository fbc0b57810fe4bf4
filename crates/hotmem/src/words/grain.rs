//! Defines grains: what a divided pageblock is for.
//!
//! If single frames were allocated between runs of several frames, they would split the free runs,
//! and requests for runs would divide one pageblock after another. So a search prefers pageblocks
//! that were divided for requests of the same grain. A pageblock for runs that has no free short
//! run serves single frames, until a run of it is freed. The grain affects only this preference.

use super::section::mask_at;
use super::{Block, Section};
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, SMALL_FRAMES};
use crate::sync::Ordering;

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

impl Section {
    /// Returns the pageblocks of this grain. Only the bits of divided pageblocks have a meaning.
    /// Relaxed: the grain is a preference.
    #[inline]
    pub(crate) fn blocks_of_grain(&self, grain: Grain) -> u64 {
        let runs = self.runs.load(Ordering::Relaxed);
        match grain {
            Grain::Frame => !runs,
            Grain::Run => runs,
        }
    }

    /// Returns the grain of the pageblock of a frame of this section.
    #[inline]
    pub(crate) fn grain_of(&self, frame: Pfn) -> Grain {
        if self.blocks_of_grain(Grain::Run) & mask_at(frame) == 0 {
            Grain::Frame
        } else {
            Grain::Run
        }
    }
}

impl Block<'_> {
    /// Returns the grain of the pageblock.
    #[inline]
    pub(crate) fn grain(&self) -> Grain {
        self.section().grain_of(self.start())
    }

    /// Makes the pageblock one for runs again, if the `frames` contiguous frames that are about to
    /// be freed can serve a request for a run.
    pub(crate) fn note_freed_run(&self, frames: usize) {
        if (COMMON_RUN as usize..=SMALL_FRAMES).contains(&frames) {
            self.set_grain(Grain::Run);
        }
    }

    /// Sets the grain of the pageblock.
    #[inline(never)]
    pub(crate) fn set_grain(&self, grain: Grain) {
        if self.grain() == grain {
            return;
        }
        match grain {
            Grain::Frame => self.section().runs.fetch_and(!self.mask(), Ordering::Relaxed),
            Grain::Run => self.section().runs.fetch_or(self.mask(), Ordering::Relaxed),
        };
    }
}
