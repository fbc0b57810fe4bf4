//! Defines what is known of a prepared range that the device may have unplugged.

use hotmem::PfnRange;

/// A prepared range, a part of which the device may have unplugged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolution {
    /// The part of the range whose state is not known yet.
    pub(super) unknown: PfnRange,
    /// The number of frames to query at once.
    pub(super) query_frames: u64,
    /// Whether an earlier driver sent the UNPLUG. If so, this driver has not counted the plugged
    /// blocks yet.
    pub(super) is_recovery: bool,
}

impl Resolution {
    /// Returns the resolution of a range that this driver has tried to unplug.
    pub(super) fn of_own(range: PfnRange) -> Resolution {
        Resolution { unknown: range, query_frames: u64::MAX, is_recovery: false }
    }

    /// Returns the resolution of a range that an earlier driver has tried to unplug.
    pub(super) fn of_earlier(range: PfnRange) -> Resolution {
        Resolution { is_recovery: true, ..Resolution::of_own(range) }
    }
}
