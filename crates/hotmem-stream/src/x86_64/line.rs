//! The size of a cache line.

/// Bytes in a cache line, the unit that reaches memory in one piece.
pub(super) const LINE: usize = 64;
/// Words in a cache line.
pub(super) const BITMAP_WORDS: usize = LINE / 8;
