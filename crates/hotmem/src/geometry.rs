//! The sizes that everything else is built from.
//!
//! The real geometry is fixed: 4 KiB frames, pageblocks of 512 frames (2 MiB) and sections of 64
//! pageblocks (128 MiB), so that one 64-bit word answers a question about a section. Tests build
//! with `--cfg loom` or `--cfg hotmem_geometry="small"` to see whole machines of a few words.

/// Bytes in a frame, as a power of two.
pub const FRAME_SHIFT: u32 = 12;
/// Bytes in a frame.
pub const FRAME_SIZE: u64 = 1 << FRAME_SHIFT;
/// Most physical address bits a machine can have (x86-64's and arm64's architectural limit).
pub const PHYS_ADDR_BITS: u32 = 52;
/// One past the highest frame number that can exist.
pub const PFN_LIMIT: u64 = 1 << (PHYS_ADDR_BITS - FRAME_SHIFT);

#[cfg(not(any(loom, hotmem_geometry = "small")))]
mod sizes {
    pub(super) const LINE_WORD_BITS: usize = 64;
    pub(super) const LINE_WORDS: usize = 8;
    pub(super) const SECTION_PAGEBLOCKS: usize = 64;
    pub(super) const TREE_FANOUT: usize = 64;
}
#[cfg(hotmem_geometry = "small")]
mod sizes {
    pub(super) const LINE_WORD_BITS: usize = 8;
    pub(super) const LINE_WORDS: usize = 2;
    pub(super) const SECTION_PAGEBLOCKS: usize = 4;
    pub(super) const TREE_FANOUT: usize = 2;
}
#[cfg(all(loom, not(hotmem_geometry = "small")))]
mod sizes {
    pub(super) const LINE_WORD_BITS: usize = 2;
    pub(super) const LINE_WORDS: usize = 2;
    pub(super) const SECTION_PAGEBLOCKS: usize = 2;
    pub(super) const TREE_FANOUT: usize = 2;
}

/// Frame bits held by one 64-bit word of a pageblock's line.
pub const LINE_WORD_BITS: usize = sizes::LINE_WORD_BITS;
/// 64-bit words in a pageblock's line of frame bits: one cache line.
pub const LINE_WORDS: usize = sizes::LINE_WORDS;
/// Frames in a pageblock, the unit of adding, onlining, isolating, reporting and removing.
pub const PAGEBLOCK_FRAMES: usize = LINE_WORD_BITS * LINE_WORDS;
/// Pageblocks in a section, one bit each in a section word.
pub const SECTION_PAGEBLOCKS: usize = sizes::SECTION_PAGEBLOCKS;
/// Frames in a section.
pub const SECTION_FRAMES: usize = SECTION_PAGEBLOCKS * PAGEBLOCK_FRAMES;
/// Children summarised by one word of the tree.
pub const TREE_FANOUT: usize = sizes::TREE_FANOUT;

/// The section word with every pageblock's bit set.
pub const SECTION_MASK: u64 = mask(SECTION_PAGEBLOCKS);

/// The lowest `bits` bits (0 to 64).
#[must_use]
pub const fn mask(bits: usize) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// The numbers of the bits that are set, lowest first.
pub(crate) fn bits_of(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.checked_sub(1)?;
        Some(bit)
    })
}
