//! Names the numbers of the protocol (5.5).

/// The type of a balloon (5.5.1).
pub(crate) const DEVICE_ID: u32 = 5;

/// The offsets of the fields of the configuration (5.5.4).
pub(super) const NUM_PAGES: u64 = 0;
pub(super) const ACTUAL: u64 = 4;
pub(super) const HINT_COMMAND: u64 = 8;
pub(super) const POISON_VALUE: u64 = 12;

/// The feature `VIRTIO_BALLOON_F_PAGE_POISON` (5.5.3).
pub(super) const PAGE_POISON: u64 = 1 << 4;
