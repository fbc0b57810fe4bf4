//! How far a walk over the blocks has come, and what it does next.

use super::config::Config;
use hotmem::PfnRange;

/// A walk, at its next block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sync {
    /// What is left of it.
    pub(super) rest: PfnRange,
    /// How much to ask about at once.
    pub(super) ask_frames: u64,
    /// The next unit has blocks in different states.
    pub(super) mixed: bool,
    pub(super) task: Task,
    /// Plugged frames seen so far.
    pub(super) found_frames: u64,
    /// Whether the walk covers the whole device, so that `found_frames` must be `plugged_size`.
    pub(super) whole: bool,
}

/// What to do at the walk's next block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// Find out whether it is plugged.
    Ask,
    /// It is plugged, up to the range's end, and unknown to the memory manager: take it over.
    Adopt(PfnRange),
    /// It is plugged, up to the range's end, and of no use: unplug it.
    Discard(PfnRange),
}

/// What is known about a range before the device is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// The memory manager uses it.
    Used,
    /// The memory manager uses it, but the device would not answer: it is not usable.
    UsedBeyondUsable,
    /// It can be used once it is plugged.
    Free,
    /// Blocks smaller than a unit, and not all of one.
    Fragment,
    /// It can be neither plugged nor asked about.
    BeyondUsable,
}

impl Sync {
    /// Returns a walk through the whole device.
    pub(super) fn of_device(config: &Config) -> Sync {
        Sync { whole: true, ..Sync::of_range(config.region()) }
    }

    /// Returns a walk through a range of units that the memory manager does not use.
    pub(super) fn of_range(range: PfnRange) -> Sync {
        Sync {
            rest: range,
            ask_frames: u64::MAX,
            mixed: false,
            task: Task::Ask,
            found_frames: 0,
            whole: false,
        }
    }

    /// On to what follows `range`.
    pub(super) fn pass(&mut self, range: PfnRange) {
        self.rest = self.rest.split_at(range.end()).1;
        self.ask_frames = range.frames().saturating_mul(2);
        self.mixed = false;
        self.task = Task::Ask;
    }
}
