//! Defines the options of a shrink.

use crate::addr::PfnRange;
use crate::geometry::PAGEBLOCK_FRAMES;

/// The memory that a [`Shrink`](crate::Shrink) takes. A [`PfnRange`] converts to options that take
/// all of it. Counts are in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShrinkOptions {
    /// The range to take memory from.
    pub within: PfnRange,
    /// The number of frames to take, rounded down to whole units.
    pub frames: u64,
    /// The smallest run that the platform can take, aligned to its size: a pageblock (512) or a
    /// larger power of two. Other numbers are rounded up.
    pub unit: u64,
    /// The longest run that the platform can take at one time, at least a unit.
    pub max_run_frames: u64,
    /// Whether a shrink that is pending tries the whole range again at the next poll. Until then it
    /// keeps one online unit isolated, so that the kernel cannot allocate again the frames that it
    /// frees there: the highest unit first, then a lower unit each time, and after the lowest unit
    /// the highest again. It isolates none if the blocker is a veto, or too little free memory.
    /// [`Shrink::cancel`](crate::Shrink::cancel) releases the unit. An allocation that would fail
    /// takes it back; the next poll then tells the kernel by
    /// [`Hooks::offline_cancelled`](crate::Hooks::offline_cancelled).
    pub is_persistent: bool,
}

/// Takes all of the range, in runs of any length, down to single pageblocks if necessary.
impl From<PfnRange> for ShrinkOptions {
    fn from(within: PfnRange) -> ShrinkOptions {
        let unit = PAGEBLOCK_FRAMES as u64;
        let frames = within.frames();
        ShrinkOptions { within, frames, unit, max_run_frames: u64::MAX, is_persistent: false }
    }
}
