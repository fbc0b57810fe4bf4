//! Contains the state of a walk over the blocks: its position and its next task.

use super::config::Config;
use hotmem::PfnRange;

/// The state of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockWalk {
    /// The part of the region that the walk has not passed yet.
    pub(super) remaining: PfnRange,
    /// The number of frames to query at once.
    pub(super) query_frames: u64,
    /// Whether the next unit has blocks in different states.
    pub(super) is_unit_mixed: bool,
    pub(super) task: Task,
    /// The number of plugged frames found so far.
    pub(super) found_frames: u64,
    /// Whether the walk covers the whole device, so that `found_frames` must be `plugged_size`.
    pub(super) covers_device: bool,
}

/// The task at the walk's next block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// Find out whether the block is plugged.
    Query,
    /// Adopt this range, which is plugged, but not known to the memory manager.
    Adopt(PfnRange),
    /// Unplug this range, which is plugged and cannot be used.
    Discard(PfnRange),
}

/// What the driver knows about a range before it asks the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// The memory manager uses the range.
    Used,
    /// The memory manager uses the range, but the range lies beyond the usable region, so the
    /// device cannot be asked about it.
    UsedBeyondUsable,
    /// The memory manager does not use the range, but can use it once it is plugged.
    Free,
    /// The range consists of blocks that do not fill a unit.
    Fragment,
    /// The range can be neither plugged nor queried.
    BeyondUsable,
}

impl BlockWalk {
    /// Returns a walk through the whole device.
    pub(super) fn of_device(config: &Config) -> BlockWalk {
        BlockWalk { covers_device: true, ..BlockWalk::of_range(config.region()) }
    }

    /// Returns a walk through a range of units that the memory manager does not use.
    pub(super) fn of_range(range: PfnRange) -> BlockWalk {
        BlockWalk {
            remaining: range,
            query_frames: u64::MAX,
            is_unit_mixed: false,
            task: Task::Query,
            found_frames: 0,
            covers_device: false,
        }
    }

    /// Continues after `range`.
    pub(super) fn continue_after(&mut self, range: PfnRange) {
        self.remaining = self.remaining.split_at(range.end()).1;
        self.query_frames = range.frames().saturating_mul(2);
        self.is_unit_mixed = false;
        self.task = Task::Query;
    }
}
