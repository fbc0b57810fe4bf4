//! What memory can be.

use crate::words::Zone;

/// What a range is, as far as all of it is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not announced by any platform.
    Unknown,
    /// Announced, but not there.
    Absent,
    /// There and mapped, but a device's: no RAM.
    Device,
    /// Added and mapped, not in use.
    Offline,
    /// In the allocator's hands.
    Online,
    /// Online for movable allocations only.
    OnlineMovable,
}

/// The state of memory that is online in `zone`.
impl From<Zone> for State {
    fn from(zone: Zone) -> State {
        match zone {
            Zone::Kernel => State::Online,
            Zone::Movable => State::OnlineMovable,
        }
    }
}
