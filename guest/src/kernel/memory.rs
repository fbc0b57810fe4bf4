//! The kernel's memory: its frames and its address space.

use super::flush::flush_all;
use super::image;
use super::this_cpu::ThisCpu;
use core::arch::x86_64::__cpuid;
use core::fmt;
use core::ptr::NonNull;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{AllocError, AllocRequest, Allocation, Bytes, Frames, Pfn, PfnRange};
use hotmem_directmap::{Attributes, Caching, DescriptorMap, DirectMap, DirectMapError, Window};
use hotmem_guest::frame_words::FrameWords;
use hotmem_guest::layout::{self, DESCRIPTORS, DIRECT_MAP, DIRECT_MAP_BASE};
use hotmem_guest::tables::FrameTables;
use hotmem_guest::to_usize;
use hotmem_pgtable::Flush;
use hotmem_pgtable::x86_64::{Batch, Format};
use x86_64::instructions::tlb;

/// All frames of the machine.
pub(crate) static FRAMES: Frames<ThisCpu> = Frames::new(ThisCpu);

/// The difference between virtual and physical addresses in the direct map.
pub(crate) const DIRECT_MAP_OFFSET: usize = to_usize(DIRECT_MAP_BASE);
/// Access to frames as words, through the direct map.
pub(crate) const FRAME_WORDS: FrameWords = FrameWords::at_offset(DIRECT_MAP_OFFSET);

/// The kernel's page tables, and frames for further page tables until [`FRAMES`] can be used.
pub(crate) struct AddressSpace {
    root: Pfn,
    frame_tables: FrameTables,
    direct_map: DirectMap<FrameTables, FlushAll>,
    descriptors: DescriptorMap<FrameTables, FlushAll>,
    early_frames: PfnRange,
}

/// Flushes the TLBs of all CPUs.
pub(crate) type FlushAll = fn(Flush);

/// The reason why bytes cannot be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapError {
    /// The direct map refused.
    DirectMap(DirectMapError<Format>),
    /// The bytes do not all have physical addresses.
    BadRange { phys_addr: u64, len: u64 },
}

/// Returns the virtual address of a physical address in the direct map.
pub(crate) fn virt(phys_addr: u64) -> *mut u8 {
    let address = DIRECT_MAP_OFFSET.wrapping_add(to_usize(phys_addr));
    core::ptr::with_exposed_provenance_mut(address)
}

/// Returns the physical address of a pointer into the direct map or the kernel's image.
pub(crate) fn phys(pointer: *const u8) -> u64 {
    let address = pointer.expose_provenance() as u64;
    if address >= image::KERNEL_BASE {
        address - image::KERNEL_BASE
    } else {
        address.wrapping_sub(DIRECT_MAP_BASE)
    }
}

/// Flushes the TLBs of all CPUs.
fn flush(_: Flush) {
    flush_all();
}

/// Returns whether the CPU has pages of 1 GiB (Intel SDM volume 2, CPUID, leaf 80000001H).
fn has_huge_pages() -> bool {
    const LEAF: u32 = 0x8000_0001;
    __cpuid(0x8000_0000).eax >= LEAF && __cpuid(LEAF).edx & 1 << 26 != 0
}

/// Returns the attributes, with executable pages if the CPU has no others (Intel SDM volume 2, CPUID,
/// leaf 80000001H). The boot code has enabled no-execute pages if the CPU has them.
pub(crate) fn supported(attributes: Attributes) -> Attributes {
    const LEAF: u32 = 0x8000_0001;
    let has_no_execute = __cpuid(0x8000_0000).eax >= LEAF && __cpuid(LEAF).edx & 1 << 20 != 0;
    Attributes { executable: attributes.executable || !has_no_execute, ..attributes }
}

/// Allocates frames as a raw range.
pub(crate) fn alloc_frames(request: AllocRequest) -> Result<PfnRange, AllocError> {
    FRAMES.alloc(request).map(Allocation::into_raw)
}

/// Returns the frames that these bytes touch.
pub(crate) fn frames_touched_by(phys_addr: u64, len: u64) -> Result<PfnRange, MapError> {
    let bad_range = MapError::BadRange { phys_addr, len };
    let start = phys_addr & !0xfff;
    let end = phys_addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(0x1000));
    let len = Bytes(end.ok_or(bad_range)? - start);
    PfnRange::from_bytes(start, len).map_err(|_| bad_range)
}

impl AddressSpace {
    /// Takes over the boot code's page tables. Further page tables come from `early_frames` first.
    ///
    /// # Safety
    /// There must be only one address space in use. `early_frames` must be RAM that the boot code
    /// has mapped and that nothing else uses.
    pub(crate) unsafe fn take_over_boot_tables(early_frames: PfnRange) -> Self {
        let root = phys((&raw const image::boot_root).cast());
        let root = Pfn::containing(root).unwrap_or(Pfn::ZERO);
        // SAFETY: the boot code's tables, `early_frames` and all frames of `FRAMES` are mapped, and
        // used as tables by this value only.
        let frame_tables = unsafe { FrameTables::new(FRAME_WORDS) };
        let flush: FlushAll = flush;
        let direct_map = DirectMap::new(frame_tables, root, DIRECT_MAP, has_huge_pages(), flush)
            .with_attributes(supported(Attributes::KERNEL_DATA));
        let descriptors = DescriptorMap::new(frame_tables, root, DESCRIPTORS, flush)
            .with_attributes(supported(Attributes::KERNEL_DATA));
        AddressSpace { root, frame_tables, direct_map, descriptors, early_frames }
    }

    /// Unmaps the first pages of the lower half, where the boot code ran, so that null pointers
    /// fault.
    pub(crate) fn drop_identity_map(&mut self) {
        // SAFETY: nothing uses the lower half any more, and a page walk reads entries atomically.
        unsafe { (&raw mut image::boot_root).cast::<u64>().write_volatile(0) };
        tlb::flush_all();
    }

    /// Maps the first pages of the lower half again, for code that runs at its physical address.
    pub(crate) fn restore_identity_map(&mut self) {
        // SAFETY: the root's first entry is empty. The boot code made the table that
        // `identity_entry` points to, and nothing has changed that table since.
        unsafe {
            (&raw mut image::boot_root).cast::<u64>().write_volatile(image::identity_entry());
        }
    }

    /// Makes an empty window at `base`, the start of a root entry's span. Each root entry may have
    /// one window only.
    pub(crate) fn window(
        &self,
        base: u64,
        batch: &'static mut Batch,
    ) -> Window<'static, FrameTables, FlushAll> {
        Window::new(self.frame_tables, self.root, layout::window(base), flush, batch)
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
