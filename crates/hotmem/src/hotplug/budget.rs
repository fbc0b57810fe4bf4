//! Defines the budget of a poll.

use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};

/// The amount of work that one poll of a request may do.
///
/// A poll ends at the first run of frames or the first window (128 MiB, or one unit if that is more)
/// that uses up the budget. A run has at most a pageblock, so a poll migrates less than one pageblock
/// more than its budget. To unmap a run that is ready is one step, whatever its length: limit the
/// length by [`ShrinkOptions::max_run_frames`](crate::ShrinkOptions::max_run_frames).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The number of pageblocks (2 MiB each) whose frames are migrated. 64 free windows (8 GiB) cost
    /// as much as a pageblock that is migrated, and so do 8 windows in which frames are in use.
    pub pageblocks: u64,
}

/// What a window that is free costs for each section, in frames that are migrated.
const FREE_SECTION_COST: u64 = (PAGEBLOCK_FRAMES as u64).div_ceil(64);

impl Budget {
    /// No limit: a poll continues until the request is done or pending.
    pub const UNLIMITED: Budget = Budget { pageblocks: u64::MAX };
}

/// What remains of the budget of a poll, in frames that are migrated.
pub(super) struct Allowance {
    frames: u64,
}

impl From<Budget> for Allowance {
    fn from(budget: Budget) -> Allowance {
        Allowance { frames: budget.pageblocks.saturating_mul(PAGEBLOCK_FRAMES as u64) }
    }
}

impl Allowance {
    /// Spends the cost of some frames that were migrated. Returns whether the budget is not used up.
    pub(super) const fn spend(&mut self, frames: u64) -> bool {
        self.frames = self.frames.saturating_sub(frames);
        self.frames > 0
    }

    /// Spends the cost of a window: O(sections) if it was free, otherwise O(pageblocks). Returns
    /// whether the budget is not used up.
    pub(super) const fn spend_window(&mut self, window: PfnRange, was_free: bool) -> bool {
        let sections = window.frames().div_ceil(SECTION_FRAMES as u64);
        let pageblocks = window.frames() / PAGEBLOCK_FRAMES as u64;
        self.spend(if was_free { sections * FREE_SECTION_COST } else { pageblocks })
    }
}
