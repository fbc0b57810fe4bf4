//! Defines the layout of the kernel's address space.

use hotmem_addr::geometry::FRAME_SIZE;
use hotmem_addr::{Bytes, PfnRange};
use hotmem_directmap::{Area, DescriptorLayout};

/// The address of physical address 0 in the direct map: the start of the upper half.
pub const DIRECT_MAP_BASE: u64 = 0xffff_8000_0000_0000;
/// The size of the direct map: the upper half except its last 16 TiB, in which the kernel itself
/// lies.
pub const DIRECT_MAP_BYTES: u64 = 112 << 40;
/// The direct map.
pub const DIRECT_MAP: Area = area(DIRECT_MAP_BASE, DIRECT_MAP_BYTES);

/// The address of the descriptor of frame 0. It is aligned to the descriptors of any compound.
pub const DESCRIPTOR_MAP_BASE: u64 = 0xffff_f400_0000_0000;
/// The size of a descriptor in bytes.
pub const DESCRIPTOR_BYTES: u64 = 64;
/// The layout of the descriptors of all memory in the direct map.
pub const DESCRIPTORS: DescriptorLayout = {
    let bytes = DIRECT_MAP_BYTES / hotmem_addr::geometry::FRAME_SIZE * DESCRIPTOR_BYTES;
    match DescriptorLayout::new(area(DESCRIPTOR_MAP_BASE, bytes), Bytes(DESCRIPTOR_BYTES)) {
        Ok(layout) => layout,
        Err(_) => panic!("the descriptors of the direct map fit their area"),
    }
};

/// The start of the window with the stacks of the CPUs other than the first one.
pub const STACKS_BASE: u64 = 0xffff_f100_0000_0000;

/// The number of pages of a [window].
pub const WINDOW_PAGES: u64 = WINDOW.0 / hotmem_directmap::PAGE_BYTES;
const WINDOW: Bytes = Bytes::gib(512);

/// Returns the area of a window at `base`, the span of one root entry.
#[must_use]
pub const fn window(base: u64) -> Area {
    area(base, WINDOW.0)
}

/// Returns the area of `bytes` bytes at `base`.
///
/// # Panics
/// Panics if these are not a part of the address space; in a constant this is a compile error.
const fn area(base: u64, bytes: u64) -> Area {
    match Area::new(base, Bytes(bytes)) {
        Ok(area) => area,
        Err(_) => panic!("the area is not a part of the address space"),
    }
}

/// Returns the pointer to a physical address in the direct map.
#[must_use]
#[inline]
pub fn virt(phys_addr: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(crate::to_usize(DIRECT_MAP_BASE.wrapping_add(phys_addr)))
}

/// Returns the frames that these bytes touch, or `None` if they do not all have physical addresses.
#[must_use]
pub fn frames_touched_by(phys_addr: u64, len: u64) -> Option<PfnRange> {
    let start = phys_addr & !(FRAME_SIZE - 1);
    let end = phys_addr.checked_add(len)?.checked_next_multiple_of(FRAME_SIZE)?;
    PfnRange::from_bytes(start, Bytes(end - start)).ok()
}
