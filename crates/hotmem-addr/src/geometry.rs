//! Sizes of frames, pageblocks and sections, and the limit of physical addresses.
//!
//! They are fixed: 4 KiB frames, pageblocks of 512 frames (2 MiB) and sections of 64 pageblocks
//! (128 MiB). Tests build with `--cfg loom` or `--cfg hotmem_geometry="small"`, which make
//! pageblocks and sections a few frames large, to cover whole machines.

/// Bytes in a frame, as a power of two.
pub const FRAME_SHIFT: u32 = 12;
/// Bytes in a frame.
pub const FRAME_SIZE: u64 = 1 << FRAME_SHIFT;
/// Most physical address bits a machine can have (x86-64's and arm64's architectural limit; as many
/// sections in the small geometry).
pub const PHYS_ADDR_BITS: u32 = if cfg!(hotmem_geometry = "small") { 39 } else { 52 };
/// One past the highest frame number that can exist.
pub const PFN_LIMIT: u64 = 1 << (PHYS_ADDR_BITS - FRAME_SHIFT);

/// Frames in a pageblock, and pageblocks in a section.
const SIZES: (usize, usize) = if cfg!(hotmem_geometry = "small") {
    (16, 4)
} else if cfg!(loom) {
    (4, 2)
} else {
    (512, 64)
};

/// Frames in a pageblock, the unit of adding, onlining, isolating, reporting and removing.
pub const PAGEBLOCK_FRAMES: usize = SIZES.0;
/// Pageblocks in a section.
pub const SECTION_PAGEBLOCKS: usize = SIZES.1;
/// Frames in a section.
pub const SECTION_FRAMES: usize = SECTION_PAGEBLOCKS * PAGEBLOCK_FRAMES;
