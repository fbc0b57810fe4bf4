//! The kernel's address space: which part maps what.

use hotmem_addr::Bytes;
use hotmem_directmap::{Area, DescriptorLayout};

/// Where physical address 0 appears: the start of the upper half.
pub const DIRECT_MAP_BASE: u64 = 0xffff_8000_0000_0000;
/// Physical memory that the direct map has room for: all of the upper half but its last 16 TiB,
/// in which the kernel itself lies.
pub const DIRECT_MAP_BYTES: u64 = 112 << 40;
/// The direct map.
pub const DIRECT_MAP: Area = area(DIRECT_MAP_BASE, DIRECT_MAP_BYTES);

/// Where the descriptor of frame 0 would be: aligned to the descriptors of any compound.
pub const DESCRIPTOR_MAP_BASE: u64 = 0xffff_f400_0000_0000;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 64;
/// Room for the descriptors of all that the direct map has room for.
pub const DESCRIPTORS: DescriptorLayout = {
    let bytes = DIRECT_MAP_BYTES / hotmem_addr::geometry::FRAME_SIZE * DESCRIPTOR_BYTES;
    match DescriptorLayout::new(area(DESCRIPTOR_MAP_BASE, bytes), Bytes(DESCRIPTOR_BYTES)) {
        Ok(layout) => layout,
        Err(_) => panic!("no layout of descriptors"),
    }
};

/// Pages of a [window].
pub const WINDOW_PAGES: u64 = WINDOW.0 / hotmem_directmap::PAGE_BYTES;
const WINDOW: Bytes = Bytes::gib(512);

/// Returns the addresses of a window at `base`: what one entry of the root maps.
#[must_use]
pub const fn window(base: u64) -> Area {
    area(base, WINDOW.0)
}

/// # Panics
/// Panics if it is not an area; as a constant, the program does not compile.
const fn area(base: u64, bytes: u64) -> Area {
    match Area::new(base, Bytes(bytes)) {
        Ok(area) => area,
        Err(_) => panic!("not a part of the address space"),
    }
}
