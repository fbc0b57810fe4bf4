//! Defines the sizes of frames, pageblocks and sections, and the limit of physical addresses.
//!
//! The sizes are fixed: frames of 4 KiB, pageblocks of 512 frames (2 MiB) and sections of 64
//! pageblocks (128 MiB). Under `--cfg loom` or `--cfg hotmem_geometry="small"` pageblocks and sections
//! have only a few frames, so that tests can enumerate the states of a whole machine.

/// The base-2 logarithm of a frame's size in bytes.
pub const FRAME_SHIFT: u32 = 12;
/// Bytes in a frame.
pub const FRAME_SIZE: u64 = 1 << FRAME_SHIFT;
/// The number of physical address bits: the architectural limit of x86-64 and arm64. The small
/// geometry has fewer bits, so that the number of possible sections is the same in both geometries.
pub const PHYS_ADDR_BITS: u32 = if cfg!(hotmem_geometry = "small") { 39 } else { 52 };
/// One past the highest possible frame number.
pub const PFN_LIMIT: u64 = 1 << (PHYS_ADDR_BITS - FRAME_SHIFT);

/// The number of frames in a pageblock, and of pageblocks in a section.
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
