//! The kernel's memory: its frames and its address space.

use super::this_cpu::ThisCpu;
use crate::arch::{FlushAll, LAYOUT, image, paging};
use core::fmt;
use core::ptr::NonNull;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{AllocError, AllocRequest, Allocation, Frames, Pfn, PfnRange};
use hotmem_directmap::{Attributes, Caching, DescriptorMap, DirectMap, DirectMapError, Window};
use hotmem_guest::descriptor::Owner;
use hotmem_guest::frame_words::FrameWords;
use hotmem_guest::layout;
use hotmem_guest::tables::FrameTables;
use hotmem_guest::to_usize;
use hotmem_pgtable::target::{Batch, Format};

/// All frames of the machine.
pub(crate) static FRAMES: Frames<ThisCpu> = Frames::new(ThisCpu);

/// The difference between virtual and physical addresses in the direct map.
pub(crate) const DIRECT_MAP_OFFSET: usize = to_usize(LAYOUT.direct_map.base());
/// Access to frames as words, through the direct map.
pub(crate) const FRAME_WORDS: FrameWords = FrameWords::at_offset(DIRECT_MAP_OFFSET);

/// The owner of the kernel's RAM in its descriptors.
pub(crate) const RAM_OWNER: Owner = Owner::ram(LAYOUT.descriptor_map_base);

/// The kernel's page tables, and frames for further page tables until [`FRAMES`] can be used.
pub(crate) struct AddressSpace {
    root: Pfn,
    frame_tables: FrameTables,
    direct_map: DirectMap<FrameTables, FlushAll>,
    descriptors: DescriptorMap<FrameTables, FlushAll>,
    early_frames: PfnRange,
}

/// The reason why bytes cannot be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapError {
    /// The direct map refused.
    DirectMap(DirectMapError<Format>),
    /// The bytes do not all have physical addresses.
    BadRange { phys_addr: u64, len: u64 },
}

/// Returns the physical address of a pointer into the direct map or the kernel's image.
pub(crate) fn phys(pointer: *const u8) -> u64 {
    let in_direct_map =
        || (pointer.expose_provenance() as u64).wrapping_sub(LAYOUT.direct_map.base());
    image::phys(pointer).unwrap_or_else(in_direct_map)
}

/// Returns the pointer to a physical address in the direct map.
#[inline]
pub(crate) const fn virt(phys_addr: u64) -> *mut u8 {
    LAYOUT.virt(phys_addr)
}

/// Allocates frames as a raw range.
pub(crate) fn alloc_frames(request: AllocRequest) -> Result<PfnRange, AllocError> {
    FRAMES.alloc(request).map(Allocation::into_raw)
}

/// Allocates 2^`order` frames, aligned to their number, as a raw range.
pub(crate) fn alloc_order(order: u32) -> Option<PfnRange> {
    alloc_frames(AllocRequest::order(order)).ok()
}

/// Returns the frames that these bytes touch.
pub(crate) fn frames_touched_by(phys_addr: u64, len: u64) -> Result<PfnRange, MapError> {
    layout::frames_touched_by(phys_addr, len).ok_or(MapError::BadRange { phys_addr, len })
}

impl AddressSpace {
    /// Takes over the boot code's page tables. Further page tables come from `early_frames` first.
    ///
    /// # Safety
    /// There must be only one address space in use. `early_frames` must be RAM that the boot code
    /// has mapped and that nothing else uses.
    pub(crate) unsafe fn take_over_boot_tables(early_frames: PfnRange) -> Self {
        let root = paging::boot_root();
        // SAFETY: the boot code's tables, `early_frames` and all frames of `FRAMES` are mapped, and
        // used as tables by this value only.
        let frame_tables = unsafe { FrameTables::new(FRAME_WORDS) };
        let attributes = paging::supported(Attributes::KERNEL_DATA);
        let huge_pages = paging::has_huge_pages();
        let direct_map =
            DirectMap::new(frame_tables, root, LAYOUT.direct_map, huge_pages, FlushAll)
                .with_attributes(attributes);
        let descriptors = DescriptorMap::new(frame_tables, root, LAYOUT.descriptors, FlushAll)
            .with_attributes(attributes);
        AddressSpace { root, frame_tables, direct_map, descriptors, early_frames }
    }

    /// Makes an empty window at `base`, the start of a root entry's span. Each root entry may have
    /// one window only.
    pub(crate) fn window(
        &self,
        base: u64,
        batch: &'static mut Batch,
    ) -> Window<'static, FrameTables, FlushAll> {
        Window::new(self.frame_tables, self.root, LAYOUT.window(base), FlushAll, batch)
    }

    /// Returns the page tables of the direct map.
    pub(crate) fn direct_map(&self) -> &DirectMap<FrameTables, FlushAll> {
        &self.direct_map
    }

    /// Returns the page tables of the direct map for changes.
    pub(crate) fn direct_map_mut(&mut self) -> &mut DirectMap<FrameTables, FlushAll> {
        &mut self.direct_map
    }

    /// Returns the page tables of the descriptor map.
    pub(crate) fn descriptor_map(&self) -> &DescriptorMap<FrameTables, FlushAll> {
        &self.descriptors
    }

    /// Returns the page tables of the descriptor map for changes.
    pub(crate) fn descriptor_map_mut(&mut self) -> &mut DescriptorMap<FrameTables, FlushAll> {
        &mut self.descriptors
    }

    /// Maps bytes that are not RAM of the kernel, such as ACPI tables or device registers, in pages
    /// of 2 MiB. Pages that are mapped already keep their caching.
    pub(crate) fn map_bytes(
        &mut self,
        phys_addr: u64,
        len: u64,
        caching: Caching,
    ) -> Result<NonNull<u8>, MapError> {
        let range = frames_touched_by(phys_addr, len)?;
        for page in range.chunks(PAGEBLOCK_FRAMES as u64).filter(|page| !page.is_empty()) {
            if !self.direct_map.is_mapped(page.start()) {
                self.map(page, caching).map_err(MapError::DirectMap)?;
            }
        }
        NonNull::new(virt(phys_addr)).ok_or(MapError::BadRange { phys_addr, len })
    }

    /// Maps a range. No part of it may be mapped, so no TLB is flushed.
    pub(crate) fn map(
        &mut self,
        range: PfnRange,
        caching: Caching,
    ) -> Result<(), DirectMapError<Format>> {
        let early_frames = &mut self.early_frames;
        let mapped = self.direct_map.map(range, caching, || {
            let frame = early_frames.start();
            let (allocated, remaining) = early_frames.split_at(frame.checked_add(1)?);
            *early_frames = remaining;
            if allocated.is_empty() {
                Some(alloc_frames(AllocRequest::frames(1)).ok()?.start())
            } else {
                Some(frame)
            }
        });
        mapped.map(|_| ())
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::DirectMap(error) => error.fmt(f),
            MapError::BadRange { phys_addr, len } => {
                write!(f, "{len:#x} bytes at {phys_addr:#x} are not physical addresses")
            }
        }
    }
}
