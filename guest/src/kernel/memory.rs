//! The kernel's address space: boot RAM and devices in the direct map.

use super::entry;
use core::fmt;
use core::ptr::NonNull;
use hotmem::{Bytes, Pfn, PfnRange};
use hotmem_guest::direct_map::{Caching, DIRECT_MAP_BASE, MapError, PageTables};
use hotmem_guest::frame_words::FrameWords;
use hotmem_guest::pvh::{MemoryMapEntry, PhysicalMemory};
use hotmem_guest::to_usize;
use x86_64::instructions::tlb;

const OFFSET: usize = to_usize(DIRECT_MAP_BASE);
const FRAMES: FrameWords = FrameWords::at_offset(OFFSET);

/// What the boot code has mapped.
pub(crate) struct BootMapping;

/// The page tables, and frames for more of them.
pub(crate) struct AddressSpace {
    tables: PageTables,
    spare: PfnRange,
}

/// Why an address space could not be built or a range not be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemoryError {
    /// No boot RAM beside the kernel that the boot code can reach.
    NoRoomForTables,
    /// The page tables could not take it.
    Map(MapError),
    /// Bytes that are no physical addresses.
    BadRange { phys_addr: u64, len: u64 },
}

/// Where a physical address appears.
pub(crate) fn virt(phys_addr: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(OFFSET.wrapping_add(to_usize(phys_addr)))
}

impl PhysicalMemory for BootMapping {
    fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]> {
        let end = phys_addr.checked_add(len as u64)?;
        if end > entry::MAPPED_BYTES {
            return None;
        }
        // SAFETY: the range is mapped. What lies there is the loader's and does not change, as
        // long as the kernel does not use it for something else; it reads before it writes.
        Some(unsafe { core::slice::from_raw_parts(virt(phys_addr), len) })
    }
}

impl AddressSpace {
    /// Maps all boot RAM.
    pub(crate) fn new(
        map: &[MemoryMapEntry],
        modules: &[MemoryMapEntry],
    ) -> Result<Self, MemoryError> {
        // SAFETY: the boot code's tables are this kernel's own, and only this value changes them
        // from now on. They and `spare`, which is RAM that nobody else uses, lie within what the
        // boot code has put into the direct map.
        let tables = unsafe { PageTables::new(root(), FRAMES) };
        let spare = table_frames(map, modules).ok_or(MemoryError::NoRoomForTables)?;
        let mut memory = AddressSpace { tables, spare };
        for entry in map.iter().filter(|entry| entry.kind == MemoryMapEntry::RAM) {
            memory.map(entry.addr, entry.size, Caching::WriteBack)?;
        }
        // The boot code ran there; from now on null pointers fault.
        // SAFETY: nothing refers to the lower half any more.
        unsafe { (&raw mut entry::boot_root).cast::<u64>().write_volatile(0) };
        tlb::flush_all();
        Ok(memory)
    }

    /// Makes bytes that are no boot RAM reachable: tables of the firmware, registers of devices.
    ///
    /// They are mapped in pages of 2 MiB.
    pub(crate) fn reach(
        &mut self,
        phys_addr: u64,
        len: u64,
        caching: Caching,
    ) -> Result<NonNull<u8>, MemoryError> {
        let bad_range = MemoryError::BadRange { phys_addr, len };
        let range = frames(phys_addr, len).ok_or(bad_range)?;
        for page in range.chunks(512).filter(|page| !page.is_empty()) {
            if !self.tables.is_mapped(page.start()) {
                self.map(page.start().phys_addr(), page.bytes().0, caching)?;
            }
        }
        NonNull::new(virt(phys_addr)).ok_or(bad_range)
    }

    fn map(&mut self, phys_addr: u64, len: u64, caching: Caching) -> Result<(), MemoryError> {
        let range = frames(phys_addr, len).ok_or(MemoryError::BadRange { phys_addr, len })?;
        let spare = &mut self.spare;
        let table_frame = || {
            let frame = spare.start();
            let (_, rest) = spare.split_at(frame.checked_add(1)?);
            (!core::mem::replace(spare, rest).is_empty()).then_some(frame)
        };
        // Nothing was mapped there, so there is nothing to flush.
        self.tables.map(range, caching, table_frame).map_err(MemoryError::Map)
    }
}

fn root() -> Pfn {
    let root = (&raw const entry::boot_root).expose_provenance() as u64;
    Pfn::containing(root - entry::KERNEL_BASE).unwrap_or(Pfn::ZERO)
}

/// The frames that these bytes touch.
fn frames(phys_addr: u64, len: u64) -> Option<PfnRange> {
    let start = phys_addr & !0xfff;
    let end = phys_addr.checked_add(len)?.checked_next_multiple_of(0x1000)?;
    PfnRange::from_bytes(start, Bytes(end - start)).ok()
}

/// RAM for page tables, behind the kernel: what the boot code has mapped and nobody uses.
fn table_frames(map: &[MemoryMapEntry], modules: &[MemoryMapEntry]) -> Option<PfnRange> {
    let image_end = Pfn::containing(entry::image().end)?;
    let reach = PfnRange::new(image_end, Pfn::containing(entry::MAPPED_BYTES)?)?;
    let is_ram = |entry: &&MemoryMapEntry| entry.kind == MemoryMapEntry::RAM;
    let part = |entry: &MemoryMapEntry| {
        let first = Pfn::containing(entry.addr.checked_next_multiple_of(0x1000)?)?;
        let end = Pfn::containing(entry.addr.checked_add(entry.size)?)?;
        Some(PfnRange::new(first, end)?.intersection(reach))
    };
    let largest = map.iter().filter(is_ram).filter_map(part).max_by_key(|part| part.frames())?;
    let used = map.iter().filter(|entry| !is_ram(entry)).chain(modules);
    let used = used.filter_map(|entry| frames(entry.addr, entry.size));
    let free = used.fold(largest, |free, used| {
        let used = free.intersection(used);
        let (below, above) = (free.split_at(used.start()).0, free.split_at(used.end()).1);
        if used.is_empty() {
            free
        } else if below.frames() > above.frames() {
            below
        } else {
            above
        }
    });
    (!free.is_empty()).then_some(free)
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::NoRoomForTables => f.write_str("no RAM for page tables near the kernel"),
            MemoryError::Map(error) => error.fmt(f),
            MemoryError::BadRange { phys_addr, len } => {
                write!(f, "{len:#x} bytes at {phys_addr:#x} are no physical addresses")
            }
        }
    }
}
