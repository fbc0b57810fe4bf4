//! Defines the states of a range of memory.

use crate::words::Zone;

/// The state of a range whose pageblocks are all in the same state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No platform has announced the range.
    Unknown,
    /// Announced, and not present.
    Absent,
    /// Device memory: mapped, and owned by a device's driver.
    Device,
    /// Present and mapped, and not given to the allocator.
    Offline,
    /// Present and offline, and held for a removal that is neither committed nor abandoned: a
    /// [`Removal`](super::Removal), or a [`Shrink`](super::Shrink) that has yet to return it. The
    /// memory may be unmapped, so nobody may read it.
    Removing,
    /// Given to the allocator, for any allocation.
    Online,
    /// Online for movable allocations only.
    OnlineMovable,
}

/// Returns the state of memory that is online in `zone`.
impl From<Zone> for State {
    fn from(zone: Zone) -> State {
        match zone {
            Zone::Kernel => State::Online,
            Zone::Movable => State::OnlineMovable,
        }
    }
}
