//! The position of a walk over the blocks, and its next task.

use super::config::Config;
use hotmem::PfnRange;

/// The state of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sync {
    /// The part of the region that is left.
    pub(super) rest: PfnRange,
    /// The number of frames to query at once.
    pub(super) ask_frames: u64,
    /// Whether the next unit has blocks in different states.
    pub(super) mixed: bool,
    pub(super) task: Task,
    /// Plugged frames seen so far.
    pub(super) found_frames: u64,
    /// Whether the walk covers the whole device, so that `found_frames` must be `plugged_size`.
    pub(super) whole: bool,
}

/// The task at the walk's next block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// Find out whether the block is plugged.
    Ask,
    /// Adopt this range, which is plugged and which the memory manager does not know.
    Adopt(PfnRange),
    /// Unplug this range, which is plugged and cannot be used.
    Discard(PfnRange),
}

/// What is known about a range before the device is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// The memory manager uses it.
    Used,
    /// The memory manager uses it, but it lies beyond the usable region, so the device does not
    /// answer.
    UsedBeyondUsable,
    /// It can be used once it is plugged.
    Free,
    /// It consists of blocks that do not fill a unit.
    Fragment,
    /// It can be neither plugged nor queried.
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

    /// Continues after `range`.
    pub(super) fn pass(&mut self, range: PfnRange) {
        self.rest = self.rest.split_at(range.end()).1;
        self.ask_frames = range.frames().saturating_mul(2);
        self.mixed = false;
        self.task = Task::Ask;
    }
}
