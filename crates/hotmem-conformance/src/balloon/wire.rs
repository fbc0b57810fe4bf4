//! Names the numbers of the protocol (5.5).

/// The type of a balloon (5.5.1).
pub(super) const DEVICE_ID: u32 = 5;

/// The offsets of the fields of the configuration (5.5.4).
pub(super) const NUM_PAGES: u64 = 0;
pub(super) const ACTUAL: u64 = 4;
pub(super) const HINT_COMMAND: u64 = 8;
pub(super) const POISON_VALUE: u64 = 12;

/// The feature `VIRTIO_BALLOON_F_MUST_TELL_HOST`, without which a device may refuse to run (5.5.3.2).
const MUST_TELL_HOST: u64 = 1 << 0;
/// The features `STATS_VQ`, `FREE_PAGE_HINT` and `PAGE_REPORTING` (5.5.3), each of which has a queue.
pub(super) const STATS_VQ: u64 = 1 << 1;
pub(super) const FREE_PAGE_HINT: u64 = 1 << 3;
pub(super) const PAGE_REPORTING: u64 = 1 << 5;
/// The features that the suite accepts in points that need no page poison.
pub(super) const FEATURES: u64 = MUST_TELL_HOST | STATS_VQ | FREE_PAGE_HINT | PAGE_REPORTING;
/// The feature `VIRTIO_BALLOON_F_PAGE_POISON` (5.5.3).
pub(super) const PAGE_POISON: u64 = 1 << 4;
