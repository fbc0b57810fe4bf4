//! The sizes that everything else is built from.
//!
//! The real geometry is fixed: 4 KiB frames, pageblocks of 512 frames (2 MiB) and sections of 64
//! pageblocks (128 MiB), so that one 64-bit word answers a question about a section. Tests build
//! with `--cfg loom` or `--cfg hotmem_geometry="small"` to see whole machines of a few words.

pub(crate) use hotmem_addr::geometry::SECTION_PAGEBLOCKS;
pub use hotmem_addr::geometry::{
    FRAME_SHIFT, FRAME_SIZE, PAGEBLOCK_FRAMES, PFN_LIMIT, PHYS_ADDR_BITS, SECTION_FRAMES,
};

/// Frame bits held by one 64-bit word of a pageblock's bitmap. The upper half of the word is for
/// flags (see `words/bitmap.rs`).
pub const BITMAP_WORD_BITS: usize = if cfg!(hotmem_geometry = "small") {
    8
} else if cfg!(loom) {
    2
} else {
    32
};
/// 64-bit words in a frame bitmap: two cache lines.
pub(crate) const BITMAP_WORDS: usize = PAGEBLOCK_FRAMES / BITMAP_WORD_BITS;
/// The most frames that are allocated as a run of bits of a frame bitmap. A longer allocation
/// begins at a pageblock.
pub(crate) const SMALL_FRAMES: usize =
    if BITMAP_WORD_BITS == 32 { 2 * BITMAP_WORD_BITS } else { BITMAP_WORD_BITS };
/// The frames of memory that hold the bitmaps of a section's pageblocks.
pub(crate) const BITMAP_FRAMES: usize = if BITMAP_WORD_BITS == 32 { 2 } else { 1 };
/// The pageblocks whose bitmaps lie in one frame.
pub(crate) const BITMAP_GROUP: usize = SECTION_PAGEBLOCKS / BITMAP_FRAMES;
/// The frames of these pageblocks.
pub(crate) const GROUP_FRAMES: usize = BITMAP_GROUP * PAGEBLOCK_FRAMES;

/// The section word with every pageblock's bit set.
pub(crate) const SECTION_MASK: u64 = mask(SECTION_PAGEBLOCKS);

/// Returns a mask of the lowest `bits` bits (0 to 64).
#[must_use]
pub(crate) const fn mask(bits: usize) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Iterates over the numbers of the bits that are set, lowest first.
pub(crate) fn bits_of(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.checked_sub(1)?;
        Some(bit)
    })
}
