//! A round of touching memory.

use hotmem::Bytes;

/// The progress of a round of touching.
#[derive(Default)]
pub(super) struct Touching {
    pub(super) bytes: Bytes,
    pub(super) us: u64,
}
