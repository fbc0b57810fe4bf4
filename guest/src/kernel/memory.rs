//! The kernel's memory: its frames and its address space.

use super::flush::flush_all;
use super::image;
use super::this_cpu::ThisCpu;
use core::arch::x86_64::__cpuid;
use core::fmt;
use core::ptr::NonNull;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{AllocError, AllocRequest, Allocation, Bytes, Frames, Pfn, PfnRange};
use hotmem_directmap::{Caching, DescriptorMap, DirectMap, DirectMapError, Window};
use hotmem_guest::frame_words::FrameWords;
use hotmem_guest::layout::{self, DESCRIPTORS, DIRECT_MAP, DIRECT_MAP_BASE};
use hotmem_guest::tables::FrameTables;
use hotmem_guest::to_usize;
use hotmem_pgtable::Flush;
use x86_64::instructions::tlb;

/// All frames of the machine.
pub(crate) static FRAMES: Frames<ThisCpu> = Frames::new(ThisCpu);

/// The difference between virtual and physical addresses in the direct map.
pub(crate) const DIRECT_MAP_OFFSET: usize = to_usize(DIRECT_MAP_BASE);
/// Access to frames as words, through the direct map.
pub(crate) const FRAME_WORDS: FrameWords = FrameWords::at_offset(DIRECT_MAP_OFFSET);

/// The page tables, and the frames for further ones until [`FRAMES`] can be used.
pub(crate) struct AddressSpace {
    root: Pfn,
    frame_tables: FrameTables,
    tables: DirectMap<FrameTables, FlushAll>,
    descriptors: DescriptorMap<FrameTables>,
    early: PfnRange,
}

/// Flushes the TLBs of all CPUs.
pub(crate) type FlushAll = fn(Flush);

/// The reason why bytes cannot be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReachError {
    /// The direct map refused.
    Map(DirectMapError),
    /// They are not physical addresses.
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

/// Allocates frames as a raw range.
pub(crate) fn alloc_frames(want: AllocRequest) -> Result<PfnRange, AllocError> {
    FRAMES.alloc(want).map(Allocation::into_raw)
}

/// Returns the frames that these bytes touch.
pub(crate) fn frames(phys_addr: u64, len: u64) -> Result<PfnRange, ReachError> {
    let bad_range = ReachError::BadRange { phys_addr, len };
    let start = phys_addr & !0xfff;
    let end = phys_addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(0x1000));
    let len = Bytes(end.ok_or(bad_range)? - start);
    PfnRange::from_bytes(start, len).map_err(|_| bad_range)
}

impl AddressSpace {
    /// Takes over the boot code's page tables. `early` holds frames for further tables.
    ///
    /// # Safety
    /// There must be only one address space in use. `early` must be RAM that the boot code has
    /// mapped and that nothing else uses.
    pub(crate) unsafe fn of_boot_code(early: PfnRange) -> Self {
        let root = phys((&raw const image::boot_root).cast());
        let root = Pfn::containing(root).unwrap_or(Pfn::ZERO);
        // SAFETY: the boot code's tables, `early` and all frames of `FRAMES` are mapped, and used
        // as tables by this value only.
        let frame_tables = unsafe { FrameTables::new(FRAME_WORDS) };
        let flush: FlushAll = flush;
        let tables = DirectMap::new(frame_tables, root, DIRECT_MAP, has_huge_pages(), flush);
        let descriptors = DescriptorMap::new(frame_tables, root, DESCRIPTORS);
        AddressSpace { root, frame_tables, tables, descriptors, early }
    }

    /// Unmaps the first pages of the lower half, where the boot code ran, so that null pointers
    /// fault.
    pub(crate) fn drop_identity_map(&mut self) {
        // SAFETY: nothing uses the lower half any more, and a page walk reads entries atomically.
        unsafe { (&raw mut image::boot_root).cast::<u64>().write_volatile(0) };
        tlb::flush_all();
    }

    /// Maps them again, for CPUs that start there.
    pub(crate) fn restore_identity_map(&mut self) {
        // SAFETY: the entry is empty. The boot code made the table that it points to, and nothing
        // has changed it since.
        unsafe {
            (&raw mut image::boot_root).cast::<u64>().write_volatile(image::identity_entry());
        }
    }

    /// Makes an empty window at `base`, the start of a root entry's span. Each root entry may have
    /// one window only.
    pub(crate) fn window(&self, base: u64) -> Window<FrameTables, FlushAll> {
        Window::new(self.frame_tables, self.root, layout::window(base), flush)
    }

    /// Returns the page tables of the direct map.
    pub(crate) fn tables(&self) -> &DirectMap<FrameTables, FlushAll> {
        &self.tables
    }

    /// Returns the page tables of the direct map, to be changed.
    pub(crate) fn tables_mut(&mut self) -> &mut DirectMap<FrameTables, FlushAll> {
        &mut self.tables
    }

    /// Returns the page tables of the descriptor map.
    pub(crate) fn descriptor_map(&self) -> &DescriptorMap<FrameTables> {
        &self.descriptors
    }

    /// Returns the page tables of the descriptor map, to be changed.
    pub(crate) fn descriptor_map_mut(&mut self) -> &mut DescriptorMap<FrameTables> {
        &mut self.descriptors
    }

    /// Maps bytes that are not RAM of the kernel, such as tables of the firmware or registers of
    /// devices, in pages of 2 MiB.
    pub(crate) fn reach(
        &mut self,
        phys_addr: u64,
        len: u64,
        caching: Caching,
    ) -> Result<NonNull<u8>, ReachError> {
        let range = frames(phys_addr, len)?;
        for page in range.chunks(PAGEBLOCK_FRAMES as u64).filter(|page| !page.is_empty()) {
            if !self.tables.is_mapped(page.start()) {
                self.map(page, caching).map_err(ReachError::Map)?;
            }
        }
        NonNull::new(virt(phys_addr)).ok_or(ReachError::BadRange { phys_addr, len })
    }

    /// Maps a range that was not mapped, so that no flush is needed.
    pub(crate) fn map(&mut self, range: PfnRange, caching: Caching) -> Result<(), DirectMapError> {
        let early = &mut self.early;
        let mapped = self.tables.map(range, caching, || {
            let frame = early.start();
            let (taken, rest) = early.split_at(frame.checked_add(1)?);
            *early = rest;
            if taken.is_empty() {
                Some(alloc_frames(AllocRequest::frames(1)).ok()?.start())
            } else {
                Some(frame)
            }
        });
        mapped.map(|_| ())
    }
}

impl fmt::Display for ReachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReachError::Map(error) => error.fmt(f),
            ReachError::BadRange { phys_addr, len } => {
                write!(f, "{len:#x} bytes at {phys_addr:#x} are not physical addresses")
            }
        }
    }
}
