//! Defines grains: what a divided pageblock is for.
//!
//! Single frames between runs of several frames would use up the free runs, so that requests for
//! runs divide one pageblock after the other. So a search prefers pageblocks that were divided for
//! requests like its own. A pageblock for runs that has no short run left serves single frames,
//! until a run in it is freed. The grain affects nothing but this preference.

use super::section::mask_at;
use super::{Block, Section};
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, SMALL_FRAMES};
use crate::sync::Ordering;

/// The length of a short run, in frames: a pageblock for runs should have a free one. Linux:
/// `PAGE_ALLOC_COSTLY_ORDER`.
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
    /// Returns the pageblocks that are of this grain once they are divided. Relaxed: a preference.
    #[inline]
    pub(crate) fn of_grain(&self, grain: Grain) -> u64 {
        let runs = self.runs.load(Ordering::Relaxed);
        match grain {
            Grain::Frame => !runs,
            Grain::Run => runs,
        }
    }

    /// Returns the grain of the pageblock of a frame of this section.
    #[inline]
    pub(crate) fn grain_of(&self, frame: Pfn) -> Grain {
        if self.of_grain(Grain::Run) & mask_at(frame) == 0 { Grain::Frame } else { Grain::Run }
    }
}

impl Block<'_> {
    /// Returns the grain of the pageblock.
    #[inline]
    pub(crate) fn grain(&self) -> Grain {
        self.section.grain_of(self.start())
    }

    /// Records that this many frames in a row are about to be freed: if that is a run, the
    /// pageblock is for runs again.
    pub(crate) fn note_freed(&self, frames: usize) {
        if (COMMON_RUN as usize..=SMALL_FRAMES).contains(&frames) {
            self.set_grain(Grain::Run);
        }
    }

    /// Records the grain of the pageblock.
    pub(crate) fn set_grain(&self, grain: Grain) {
        if self.grain() == grain {
            return;
        }
        match grain {
            Grain::Frame => self.section.runs.fetch_and(!self.mask(), Ordering::Relaxed),
            Grain::Run => self.section.runs.fetch_or(self.mask(), Ordering::Relaxed),
        };
    }
}
