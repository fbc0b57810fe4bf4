//! The size of a cache line.

/// Bytes in a cache line, the unit of transfer to memory.
pub(super) const LINE_BYTES: usize = 64;
/// Words in a cache line.
pub(super) const LINE_WORDS: usize = LINE_BYTES / 8;
