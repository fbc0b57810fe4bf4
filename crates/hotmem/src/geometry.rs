//! Defines the sizes of frames, pageblocks, sections and bitmaps.
//!
//! The real geometry is fixed: 4 KiB frames, pageblocks of 512 frames (2 MiB) and sections of 64
//! pageblocks (128 MiB), so that one 64-bit word answers a question about a section. Some tests are
//! built with `--cfg loom` or `--cfg hotmem_geometry="small"`. Then these sizes are smaller, so
//! that a whole machine has only a few words.

use crate::addr::PfnRange;
pub use hotmem_addr::geometry::{
    FRAME_SHIFT, FRAME_SIZE, PAGEBLOCK_FRAMES, PHYS_ADDR_BITS, SECTION_FRAMES,
};
pub(crate) use hotmem_addr::geometry::{PFN_LIMIT, SECTION_PAGEBLOCKS};

/// The number of frames in one 64-bit word of a pageblock's bitmap. The upper half of the word is
/// for flags (see `words/word_bits.rs`).
pub(crate) const BITMAP_WORD_BITS: usize = if cfg!(hotmem_geometry = "small") {
    8
} else if cfg!(loom) {
    2
} else {
    32
};
/// The number of 64-bit words in a frame bitmap, which fills two cache lines.
pub(crate) const BITMAP_WORDS: usize = PAGEBLOCK_FRAMES / BITMAP_WORD_BITS;
/// The maximum length of a run that is allocated as bits of a frame bitmap. A longer allocation
/// begins at a pageblock. If a bitmap has two words, as in the tests with other sizes, such a run may
/// have all frames of the first word and a part of those of the second.
pub(crate) const SMALL_FRAMES: usize =
    if BITMAP_WORDS > 2 { PAGEBLOCK_FRAMES / 2 } else { BITMAP_WORD_BITS * 3 / 2 };
/// The number of frames that hold the bitmaps of a section's pageblocks.
pub(crate) const BITMAP_FRAMES: usize = if BITMAP_WORD_BITS == 32 { 2 } else { 1 };
/// The number of pageblocks in a group. The bitmaps of a group lie in one frame.
pub(crate) const BITMAP_GROUP: usize = SECTION_PAGEBLOCKS / BITMAP_FRAMES;
/// The number of frames of a group.
pub(crate) const GROUP_FRAMES: usize = BITMAP_GROUP * PAGEBLOCK_FRAMES;
/// The number of groups whose bitmaps are made together.
pub(crate) const NEIGHBOUR_GROUPS: usize = if cfg!(loom) {
    1
} else if cfg!(hotmem_geometry = "small") {
    4
} else {
    16
};
/// The number of frames of these groups: 1 GiB.
pub(crate) const NEIGHBOURHOOD_FRAMES: u64 = (NEIGHBOUR_GROUPS * GROUP_FRAMES) as u64;
const _: () = assert!(NEIGHBOUR_GROUPS <= SMALL_FRAMES);

/// Returns whether `range` consists of whole pageblocks, at least one.
#[must_use]
#[inline]
pub(crate) const fn is_pageblocks(range: PfnRange) -> bool {
    !range.is_empty() && range.is_aligned(PAGEBLOCK_FRAMES as u64)
}

/// The section word with every pageblock's bit set.
pub(crate) const SECTION_MASK: u64 = mask(SECTION_PAGEBLOCKS);

/// Returns a mask of the lowest `bits` bits (0 to 64).
#[must_use]
pub(crate) const fn mask(bits: usize) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Returns how many bits of a word are set. This is one function, because many targets have no
/// instruction for it.
#[inline(never)]
pub(crate) fn count_ones(word: u64) -> u64 {
    u64::from(word.count_ones())
}

/// Returns the number of frames of the pageblocks whose bits are set.
pub(crate) fn frames_of_blocks(blocks: u64) -> u64 {
    count_ones(blocks) * PAGEBLOCK_FRAMES as u64
}

/// Iterates over the numbers of the bits that are set, lowest first.
pub(crate) fn bits_of(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.checked_sub(1)?;
        Some(bit)
    })
}
