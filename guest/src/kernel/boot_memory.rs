//! Maps the RAM of the loader's memory map, and starts the engine with it.

use super::acpi::Firmware;
use super::hooks::KernelMapping;
use super::image;
use super::memory::{AddressSpace, FRAMES, ReachError, frames, virt};
use super::this_cpu::ThisCpu;
use core::fmt;
use hotmem::{BootError, BootMap, BootRange, Bytes, Hotplug, Pfn, PfnRange};
use hotmem_directmap::Caching;
use hotmem_guest::pvh::{MemoryMapEntry, PhysicalMemory};

/// The maximal number of entries of a memory map.
pub(crate) const MAX_ENTRIES: usize = 128;
/// The maximal number of modules.
pub(crate) const MAX_MODULES: usize = 16;

/// The number of page tables for the firmware's own tables, which may lie far from all RAM.
const FIRMWARE_TABLES: u64 = 8;

/// Low memory with the data of the firmware and the tables of loaders.
const LOW_MEMORY: BootRange = BootRange { start: 0, len: Bytes::mib(1) };

/// The end of low memory on a PC, the reach of devices with 32-bit addresses.
pub(crate) const LOW_END: Pfn = match Pfn::containing(4 << 30) {
    Some(end) => end,
    None => panic!("no physical address"),
};

/// The mapping of the boot code, which covers the loader's tables.
pub(crate) struct BootMapping;

/// The loader's memory map and its modules.
#[derive(Clone, Copy)]
pub(crate) struct LoaderMap<'a> {
    pub(crate) entries: &'a [MemoryMapEntry],
    pub(crate) modules: &'a [MemoryMapEntry],
}

/// The reason why the machine could not be started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StartError {
    /// There is too little RAM above the kernel for the direct map's page tables.
    NoRoomForTables { frames: u64 },
    /// The RAM cannot be mapped.
    Map(ReachError),
    /// The engine refuses the map.
    Boot(BootError),
}

impl PhysicalMemory for BootMapping {
    fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]> {
        let end = phys_addr.checked_add(len as u64)?;
        if end > image::MAPPED_BYTES {
            return None;
        }
        // SAFETY: the range is mapped. It holds data of the loader, which do not change until the
        // kernel reuses the memory; it reads them before that.
        Some(unsafe { core::slice::from_raw_parts(virt(phys_addr), len) })
    }
}

impl LoaderMap<'_> {
    /// Returns all RAM.
    pub(crate) fn ram_bytes(&self) -> Bytes {
        self.ram().fold(Bytes::ZERO, |sum, entry| sum + Bytes(entry.size))
    }

    /// Returns the frames that RAM touches.
    pub(crate) fn ram_ranges(&self) -> impl Iterator<Item = PfnRange> + Clone {
        self.ram().filter_map(|entry| frames(entry.addr, entry.size).ok())
    }

    /// Returns the end of the highest RAM.
    pub(crate) fn ram_end(&self) -> Pfn {
        let end = self.ram().map(|entry| entry.addr.saturating_add(entry.size)).max().unwrap_or(0);
        Pfn::containing(end).unwrap_or(Pfn::LIMIT)
    }

    /// Maps all RAM. Also returns the frames that were reserved for page tables.
    pub(crate) fn map(&self) -> Result<(AddressSpace, PfnRange), StartError> {
        let room = self.largest_free_behind_kernel();
        // SAFETY: this is the only address space. The frames are free RAM that the boot code has
        // mapped, and they are reserved below.
        let space = unsafe { AddressSpace::of_boot_code(room) };
        let mut needed = 0;
        for entry in self.ram() {
            let range = frames(entry.addr, entry.size).map_err(StartError::Map)?;
            needed += space.tables().tables_needed(range);
        }
        needed += FIRMWARE_TABLES;
        if needed > room.frames() {
            return Err(StartError::NoRoomForTables { frames: needed });
        }
        let early = room.start().checked_add(needed).map_or(room, |end| room.split_at(end).0);
        // SAFETY: as above; the first address space is not used any more.
        let mut space = unsafe { AddressSpace::of_boot_code(early) };
        for entry in self.ram() {
            let range = frames(entry.addr, entry.size).map_err(StartError::Map)?;
            let mapped = space.map(range, Caching::WriteBack);
            mapped.map_err(|error| StartError::Map(ReachError::Map(error)))?;
        }
        space.drop_identity_map();
        Ok((space, early))
    }

    /// Starts the engine with all RAM, which must be mapped. `early` and other memory in use is
    /// reserved.
    pub(crate) fn start(
        &self,
        mapping: KernelMapping,
        early: PfnRange,
        firmware: &Firmware,
    ) -> Result<Hotplug<'static, ThisCpu, KernelMapping>, StartError> {
        let mut ram = [EMPTY; MAX_ENTRIES];
        let mut reserved = [EMPTY; MAX_MODULES + 3];
        for (range, entry) in ram.iter_mut().zip(self.ram()) {
            *range = boot_range(entry);
        }
        for (range, module) in reserved.iter_mut().zip(self.modules) {
            *range = boot_range(module);
        }
        let image = image::image();
        let image = BootRange { start: image.start, len: Bytes(image.end - image.start) };
        let early = BootRange { start: early.start().phys_addr(), len: early.bytes() };
        reserved[MAX_MODULES..].copy_from_slice(&[LOW_MEMORY, image, early]);
        let map = BootMap {
            reserved: &reserved,
            nodes: firmware.nodes.as_slice(),
            low_end: LOW_END,
            cpus: firmware.cpus.count,
            ..BootMap::of_ram(&ram)
        };
        // SAFETY: all of `ram` is mapped in the direct map and stays mapped; the memory that the
        // kernel uses is in `reserved`.
        unsafe { Hotplug::bootstrap(&FRAMES, mapping, &map) }.map_err(StartError::Boot)
    }

    fn ram(&self) -> impl Iterator<Item = &MemoryMapEntry> + Clone {
        self.entries.iter().filter(|entry| entry.kind == MemoryMapEntry::RAM)
    }

    /// Returns the largest range of unused RAM that the boot code has mapped.
    fn largest_free_behind_kernel(&self) -> PfnRange {
        let pfn = |phys_addr| Pfn::containing(phys_addr).unwrap_or(Pfn::LIMIT);
        let reach = PfnRange::new(pfn(image::image().end), pfn(image::MAPPED_BYTES));
        let reach = reach.unwrap_or(PfnRange::EMPTY);
        let whole_frames = |entry: &MemoryMapEntry| {
            let first = pfn(entry.addr.checked_next_multiple_of(0x1000)?);
            let end = pfn(entry.addr.checked_add(entry.size)?);
            Some(PfnRange::new(first, end)?.intersection(reach))
        };
        let largest = self.ram().filter_map(whole_frames).max_by_key(|range| range.frames());
        let other = self.entries.iter().filter(|entry| entry.kind != MemoryMapEntry::RAM);
        let used = other.chain(self.modules).filter_map(|e| frames(e.addr, e.size).ok());
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

const EMPTY: BootRange = BootRange { start: 0, len: Bytes::ZERO };

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
            StartError::Boot(error) => error.fmt(f),
        }
    }
}
