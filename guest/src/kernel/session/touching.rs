//! Counts the memory and the time of one round of touching.

use hotmem::Bytes;

/// The progress of a round of touching.
#[derive(Default)]
pub(super) struct TouchRound {
    pub(super) bytes: Bytes,
    pub(super) us: u64,
}
