//! Defines the layout of the kernel's address space.

use hotmem_addr::geometry::FRAME_SIZE;
use hotmem_addr::{Bytes, PfnRange};
use hotmem_directmap::{Area, DescriptorLayout};

/// The layout of an address space. An architecture has one of the constants.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The direct map.
    pub direct_map: Area,
    /// The layout of the descriptors of all memory in the direct map.
    pub descriptors: DescriptorLayout,
    /// The address of the descriptor of frame 0. It is aligned to the descriptors of any compound.
    pub descriptor_map_base: u64,
    /// The start of the window with the kernel's heap.
    pub heap: u64,
    /// The start of the window with the pages to which other CPUs write.
    pub written_pages: u64,
    /// The start of the window with the stacks of the CPUs other than the first one.
    pub stacks: u64,
    /// The number of pages of a window.
    pub window_pages: u64,
    is_of_three_levels: bool,
}

/// The size of the largest direct map.
pub const MAX_DIRECT_MAP_BYTES: u64 = 112 << 40;
/// The size of a descriptor in bytes.
pub const DESCRIPTOR_BYTES: u64 = 64;

impl Layout {
    /// The layout of four levels of page tables. The direct map is the upper half except its last 16
    /// TiB, in which the kernel itself lies.
    pub const FOUR_LEVELS: Layout = Layout::new(Parts {
        is_of_three_levels: false,
        direct_map: 0xffff_8000_0000_0000,
        direct_map_bytes: MAX_DIRECT_MAP_BYTES,
        heap: 0xffff_f000_0000_0000,
        root_entry: 512 << 30,
        descriptors: 0xffff_f400_0000_0000,
    });

    /// The layout of three levels of page tables, as in riscv64's Sv39. The direct map is the first
    /// three quarters of the last 256 GiB.
    pub const THREE_LEVELS: Layout = Layout::new(Parts {
        is_of_three_levels: true,
        direct_map: 0xffff_ffc0_0000_0000,
        direct_map_bytes: 192 << 30,
        heap: 0xffff_fff0_0000_0000,
        root_entry: 1 << 30,
        descriptors: 0xffff_fff8_0000_0000,
    });

    /// # Panics
    /// Panics if the parts are not areas of the address space; in a constant this is a compile error.
    const fn new(parts: Parts) -> Layout {
        let Parts {
            is_of_three_levels,
            direct_map,
            direct_map_bytes,
            heap,
            root_entry,
            descriptors,
        } = parts;
        let descriptor_bytes = direct_map_bytes / FRAME_SIZE * DESCRIPTOR_BYTES;
        let descriptor_area = area(is_of_three_levels, descriptors, descriptor_bytes);
        Layout {
            direct_map: area(is_of_three_levels, direct_map, direct_map_bytes),
            descriptors: match DescriptorLayout::new(descriptor_area, Bytes(DESCRIPTOR_BYTES)) {
                Ok(layout) => layout,
                Err(_) => panic!("the descriptors of the direct map fit their area"),
            },
            descriptor_map_base: descriptors,
            heap,
            written_pages: heap + root_entry,
            stacks: heap + 2 * root_entry,
            window_pages: root_entry / hotmem_directmap::PAGE_BYTES,
            is_of_three_levels,
        }
    }

    /// Returns the area of a window, the span of one root entry.
    #[must_use]
    pub const fn window(&self, base: u64) -> Area {
        area(self.is_of_three_levels, base, self.window_pages * hotmem_directmap::PAGE_BYTES)
    }

    /// Returns the pointer to a physical address in the direct map.
    #[must_use]
    #[inline]
    pub const fn virt(&self, phys_addr: u64) -> *mut u8 {
        let address = self.direct_map.base().wrapping_add(phys_addr);
        core::ptr::with_exposed_provenance_mut(crate::to_usize(address))
    }
}

/// The addresses and sizes of a layout.
struct Parts {
    is_of_three_levels: bool,
    direct_map: u64,
    direct_map_bytes: u64,
    heap: u64,
    root_entry: u64,
    descriptors: u64,
}

/// Returns the area of `bytes` bytes at `base`.
///
/// # Panics
/// Panics if these are not a part of the address space; in a constant this is a compile error.
const fn area(is_of_three_levels: bool, base: u64, bytes: u64) -> Area {
    let area = match is_of_three_levels {
        true => Area::of_three_levels(base, Bytes(bytes)),
        false => Area::new(base, Bytes(bytes)),
    };
    match area {
        Ok(area) => area,
        Err(_) => panic!("the area is not a part of the address space"),
    }
}

/// Returns the frames that these bytes touch, or `None` if they do not all have physical addresses.
#[must_use]
pub fn frames_touched_by(phys_addr: u64, len: u64) -> Option<PfnRange> {
    if len == 0 {
        return Some(PfnRange::EMPTY);
    }
    let start = phys_addr & !(FRAME_SIZE - 1);
    let end = phys_addr.checked_add(len)?.checked_next_multiple_of(FRAME_SIZE)?;
    PfnRange::from_bytes(start, Bytes(end - start)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_areas_of_a_layout_do_not_overlap_each_other_or_the_image() {
        const IMAGE: u64 = 0xffff_ffff_8000_0000;
        for layout in [Layout::FOUR_LEVELS, Layout::THREE_LEVELS] {
            let end = |area: Area| area.base() + area.bytes().0;
            let windows = [layout.heap, layout.written_pages, layout.stacks];
            let places = [layout.direct_map].into_iter().chain(windows.map(|at| layout.window(at)));
            let mut last_end = 0;
            for place in places {
                assert!(place.base() >= last_end, "{place:x?}");
                last_end = end(place);
            }
            assert!(layout.descriptor_map_base >= last_end);
            let frames = layout.direct_map.bytes().0 / FRAME_SIZE;
            assert!(layout.descriptor_map_base + frames * DESCRIPTOR_BYTES <= IMAGE);
        }
    }

    #[test]
    fn a_physical_address_lies_at_its_offset_in_the_direct_map() {
        assert_eq!(Layout::FOUR_LEVELS.virt(0x1000).addr(), 0xffff_8000_0000_1000);
        assert_eq!(Layout::THREE_LEVELS.virt(0x8020_0000).addr(), 0xffff_ffc0_8020_0000);
    }

    #[test]
    fn no_bytes_touch_no_frames() {
        assert_eq!(frames_touched_by(0x1234, 0), Some(PfnRange::EMPTY));
        assert_eq!(frames_touched_by(0x1fff, 2).map(|range| range.frames()), Some(2));
        assert_eq!(frames_touched_by(u64::MAX, 2), None);
    }
}
