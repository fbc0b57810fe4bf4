//! Maps the RAM of the loader's memory map, and starts the engine with it.

use super::firmware::Firmware;
use super::hooks::KernelMapping;
use super::memory::{AddressSpace, FRAMES, MapError, frames_touched_by, virt};
use super::take_once::TakeOnce;
use super::this_cpu::ThisCpu;
use crate::arch::{image, paging};
use core::fmt;
use core::ops::Range;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{BootError, BootMap, BootRange, Bytes, Hotplug, Pfn, PfnRange};
use hotmem_directmap::Caching;
use hotmem_guest::fixed_list::FixedList;
use hotmem_guest::late_memory::{self, LateError, LateRanges};
use hotmem_guest::loader_table::PhysicalMemory;
use hotmem_guest::memory_map::MemoryMapEntry;
use hotmem_pgtable::target::{NativeFault, Stopped};

/// The maximal number of entries of a memory map.
pub(crate) const MAX_ENTRIES: usize = 128;
/// The maximal number of parts of RAM that the loader uses, such as modules.
pub(crate) const MAX_IN_USE: usize = 32;

/// The number of page tables that are reserved to map the ACPI tables, whose addresses may be far
/// from those of RAM.
const ACPI_PAGE_TABLES: u64 = 8;

/// The end of low memory on a PC, the reach of devices with 32-bit addresses.
pub(crate) const LOW_END: Pfn = match Pfn::containing(4 << 30) {
    Some(end) => end,
    None => panic!("4 GiB is above the physical address limit"),
};

/// Access to physical memory through the mapping that the boot code made; the loader's tables lie
/// within it.
pub(crate) struct BootMapping;

/// The loader's memory map.
#[derive(Clone, Copy)]
pub(crate) struct LoaderMap<'a> {
    pub(crate) entries: &'a [MemoryMapEntry],
    /// The parts of RAM that the loader uses: modules, or the device tree and what it reserves.
    pub(crate) in_use: &'a [MemoryMapEntry],
    /// The pages of 2 MiB that must not be mapped. They are not among the entries.
    pub(crate) not_mapped: &'a [MemoryMapEntry],
}

/// The reason why the machine could not be started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StartError {
    /// The direct map needs more page tables than the largest free range above the kernel has
    /// frames.
    NoRoomForTables { frames: u64 },
    /// The RAM cannot be mapped.
    Map(MapError),
    /// Memory that must not be mapped cannot be unmapped.
    Unmap(Stopped<NativeFault>),
    /// The engine refuses the map.
    Boot(BootError),
}

impl PhysicalMemory for BootMapping {
    fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]> {
        let end = phys_addr.checked_add(len as u64)?;
        let is_within = |mapped: &Range<u64>| mapped.start <= phys_addr && end <= mapped.end;
        if !image::mapped().iter().any(is_within) {
            return None;
        }
        // SAFETY: the boot code has mapped the range. It holds the loader's data, which the kernel
        // reads before it reuses the memory, so the bytes do not change during the borrow.
        Some(unsafe { core::slice::from_raw_parts(virt(phys_addr), len) })
    }
}

/// The memory map without late memory.
static WITHOUT_LATE: TakeOnce<FixedList<MemoryMapEntry, MAX_ENTRIES>> =
    TakeOnce::new(FixedList::empty(MemoryMapEntry::EMPTY));

impl LoaderMap<'_> {
    /// Returns the map without `size` bytes at the end of the RAM, and these bytes. They contain nothing
    /// that is in use, and nothing that the boot code has mapped for the kernel. Ends the run at the second
    /// call.
    #[inline(never)]
    pub(crate) fn withhold(self, size: Bytes) -> Result<(Self, LateRanges), LateError> {
        if size == Bytes::ZERO {
            return Ok((self, LateRanges::empty(PfnRange::EMPTY)));
        }
        let range = |used: &MemoryMapEntry| (used.addr, used.addr.saturating_add(used.size));
        let mapped = image::mapped().map(|mapped| (mapped.start, mapped.end));
        let used = self.in_use.iter().map(range).chain(mapped);
        let late = late_memory::choose(self.entries, used, size)?;
        let rest = WITHOUT_LATE.take();
        late_memory::write_rest(self.entries, &late, rest)?;
        Ok((LoaderMap { entries: rest, ..self }, late))
    }

    /// Returns the total size of the RAM.
    pub(crate) fn ram_bytes(&self) -> Bytes {
        self.ram().fold(Bytes::ZERO, |sum, entry| sum + Bytes(entry.size))
    }

    /// Returns the frames that contain at least one byte of RAM.
    pub(crate) fn ram_ranges(&self) -> impl Iterator<Item = PfnRange> + Clone {
        self.ram().filter_map(|entry| frames_touched_by(entry.addr, entry.size).ok())
    }

    /// Returns the end of the highest RAM.
    pub(crate) fn ram_end(&self) -> Pfn {
        let end = self.ram().map(|entry| entry.addr.saturating_add(entry.size)).max().unwrap_or(0);
        Pfn::containing(end).unwrap_or(Pfn::LIMIT)
    }

    /// Maps all RAM. Also returns the frames that were reserved for page tables.
    #[inline(never)]
    pub(crate) fn map(&self) -> Result<(AddressSpace, PfnRange), StartError> {
        let free_range = self.largest_free_above_kernel();
        // SAFETY: this is the only address space. `free_range` is free RAM that the boot code has
        // mapped, and nothing is allocated from it.
        let space = unsafe { AddressSpace::take_over_boot_tables(free_range) };
        let mut needed = 0;
        for entry in self.ram() {
            let range = frames_touched_by(entry.addr, entry.size).map_err(StartError::Map)?;
            needed += space.direct_map().tables_missing(range);
        }
        needed += ACPI_PAGE_TABLES;
        if needed > free_range.frames() {
            return Err(StartError::NoRoomForTables { frames: needed });
        }
        let table_frames = free_range
            .start()
            .checked_add(needed)
            .map_or(free_range, |end| free_range.split_at(end).0);
        // SAFETY: the first address space is not used any more. `table_frames` are free RAM that
        // the boot code has mapped; `start` reserves them in the engine's boot map.
        let mut space = unsafe { AddressSpace::take_over_boot_tables(table_frames) };
        for entry in self.ram() {
            let range = frames_touched_by(entry.addr, entry.size).map_err(StartError::Map)?;
            let mapped = space.map(range, Caching::WriteBack);
            mapped.map_err(|error| StartError::Map(MapError::DirectMap(error)))?;
        }
        self.unmap_forbidden(&mut space)?;
        paging::drop_identity_map();
        Ok((space, table_frames))
    }

    /// Unmaps the memory that must not be mapped, because the boot code has mapped all pages near the
    /// image. Pages with the image or the device tree stay mapped.
    fn unmap_forbidden(&self, space: &mut AddressSpace) -> Result<(), StartError> {
        let mapped_parts = |forbidden: &MemoryMapEntry| {
            let (first, end) = (forbidden.addr, forbidden.addr.saturating_add(forbidden.size));
            image::mapped().map(|Range { start: low, end: high }| {
                let start = first.clamp(low, high);
                (start, end.clamp(start, high) - start)
            })
        };
        for (start, len) in self.not_mapped.iter().flat_map(mapped_parts) {
            let range = frames_touched_by(start, len).map_err(StartError::Map)?;
            for page in range.chunks(PAGEBLOCK_FRAMES as u64).filter(|page| !page.is_empty()) {
                if !self.is_in_use(page)? {
                    space.direct_map_mut().unmap(page).map_err(StartError::Unmap)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether the range has a part of the image or of the memory that the loader uses.
    fn is_in_use(&self, range: PfnRange) -> Result<bool, StartError> {
        let image = image::image();
        let image = (image.start, image.end - image.start);
        for (start, len) in self.in_use.iter().map(|used| (used.addr, used.size)).chain([image]) {
            let used = frames_touched_by(start, len).map_err(StartError::Map)?;
            if !used.intersection(range).is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Starts the engine with all RAM, which must be mapped. Reserves `table_frames` and all other
    /// memory that is in use.
    #[inline(never)]
    pub(crate) fn start(
        &self,
        mapping: KernelMapping,
        table_frames: PfnRange,
        firmware: &Firmware,
    ) -> Result<Hotplug<'static, ThisCpu, KernelMapping>, StartError> {
        let mut ram = [EMPTY_RANGE; MAX_ENTRIES];
        let mut reserved = [EMPTY_RANGE; MAX_IN_USE + 3];
        for (range, entry) in ram.iter_mut().zip(self.ram()) {
            *range = boot_range(entry);
        }
        for (range, used) in reserved.iter_mut().zip(self.in_use) {
            *range = boot_range(used);
        }
        let image = image::image();
        let image = BootRange { start: image.start, len: Bytes(image.end - image.start) };
        let table_frames =
            BootRange { start: table_frames.start().phys_addr(), len: table_frames.bytes() };
        reserved[MAX_IN_USE..].copy_from_slice(&[image::LOADER_MEMORY, image, table_frames]);
        let map = BootMap {
            reserved: &reserved,
            nodes: &firmware.nodes,
            low_end: LOW_END,
            cpus: firmware.cpus.count,
            ..BootMap::from(&ram)
        };
        // SAFETY: all of `ram` is mapped in the direct map and stays mapped; the memory that the
        // kernel uses is in `reserved`.
        unsafe { Hotplug::bootstrap(&FRAMES, mapping, map) }.map_err(StartError::Boot)
    }

    fn ram(&self) -> impl Iterator<Item = &MemoryMapEntry> + Clone {
        self.entries.iter().filter(|entry| entry.kind == MemoryMapEntry::RAM)
    }

    /// Returns the largest range of unused RAM above the kernel's image that the boot code has
    /// mapped.
    fn largest_free_above_kernel(&self) -> PfnRange {
        let pfn = |phys_addr| Pfn::containing(phys_addr).unwrap_or(Pfn::LIMIT);
        let mapped_by_boot_code =
            PfnRange::new(pfn(image::image().end), pfn(image::mapped()[0].end));
        let mapped_by_boot_code = mapped_by_boot_code.unwrap_or(PfnRange::EMPTY);
        let whole_frames = |entry: &MemoryMapEntry| {
            let first = pfn(entry.addr.checked_next_multiple_of(0x1000)?);
            let end = pfn(entry.addr.checked_add(entry.size)?);
            Some(PfnRange::new(first, end)?.intersection(mapped_by_boot_code))
        };
        let largest = self.ram().filter_map(whole_frames).max_by_key(|range| range.frames());
        let not_ram = self.entries.iter().filter(|entry| entry.kind != MemoryMapEntry::RAM);
        let used = not_ram
            .chain(self.in_use)
            .filter_map(|entry| frames_touched_by(entry.addr, entry.size).ok());
        used.fold(largest.unwrap_or(PfnRange::EMPTY), |free, used| {
            let used = free.intersection(used);
            let (below, above) = (free.split_at(used.start()).0, free.split_at(used.end()).1);
            if used.is_empty() {
                free
            } else if below.frames() > above.frames() {
                below
            } else {
                above
            }
        })
    }
}

const EMPTY_RANGE: BootRange = BootRange { start: 0, len: Bytes::ZERO };

fn boot_range(entry: &MemoryMapEntry) -> BootRange {
    BootRange { start: entry.addr, len: Bytes(entry.size) }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NoRoomForTables { frames } => {
                write!(f, "no RAM above the kernel for {frames} page tables")
            }
            StartError::Map(error) => error.fmt(f),
            StartError::Unmap(stopped) => stopped.fmt(f),
            StartError::Boot(error) => error.fmt(f),
        }
    }
}
