//! Reads and sets the [grains](Grain) of the pageblocks of a section.

use super::grain::COMMON_RUN;
use super::section::mask_at;
use super::{Block, Grain, Section};
use crate::addr::Pfn;
use crate::geometry::SMALL_FRAMES;
use crate::sync::Ordering;

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
