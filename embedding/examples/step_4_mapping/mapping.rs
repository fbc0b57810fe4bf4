//! The kernel's `Map`: page tables for memory that the boot code has not mapped.

use core::ops::Range;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{
    Bytes, Describe, Hotplug, Map, NoHooks, OneCpu, OnlineType, Pfn, PfnRange, RangeError,
    TABLE_RESERVE, Veto,
};
use hotmem_directmap::{Area, AreaError, Caching, DirectMap, tables_needed};
use hotmem_embedding::{DIRECT_MAP, FlushTlb, PrintedError, direct_map, page_table_root};
use hotmem_pgtable::{Table, Tables};

/// The size of the direct map: 64 TiB.
const DIRECT_MAP_SIZE: Bytes = Bytes::gib(64 << 10);

/// The mapping of the kernel: a direct map to which memory is added.
pub struct KernelMapping {
    direct_map: DirectMap<DirectMapTables, FlushTlb>,
}

/// Accesses page tables through the direct map.
#[derive(Clone, Copy)]
struct DirectMapTables;

impl Tables for DirectMapTables {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        // SAFETY: page tables lie in the image or in frames from the engine, and both are mapped.
        // All accesses to page tables are atomic.
        Some(unsafe { &*direct_map(frame.phys_addr()).cast() })
    }
}

impl KernelMapping {
    /// Makes a mapping that takes over the page tables of the boot code.
    pub fn take_over_boot_tables() -> Result<KernelMapping, AreaError> {
        let root = Pfn::containing(page_table_root()).unwrap_or(Pfn::ZERO);
        // Four levels of tables, for addresses of 48 bits. See also `Area::of_three_levels`.
        let area = Area::new(DIRECT_MAP, DIRECT_MAP_SIZE)?;
        // `false` means pages of 2 MiB; `true` also allows pages of 1 GiB, which the processor must
        // support.
        let direct_map = DirectMap::new(DirectMapTables, root, area, false, FlushTlb);
        Ok(KernelMapping { direct_map })
    }

    /// Maps the registers of a device. `take_frame` provides frames for page tables.
    #[allow(dead_code, reason = "step 5 has a device")]
    pub fn map_registers(
        &mut self,
        range: PfnRange,
        take_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), PrintedError> {
        self.direct_map.map(range, Caching::Uncached, take_frame)?;
        Ok(())
    }
}

/// Adds RAM of the loader's map that the boot code has not mapped. The page tables come from the RAM
/// that it has mapped.
pub fn add_boot_ram(
    hotplug: &mut Hotplug<'static, OneCpu, KernelMapping>,
    ram: Range<u64>,
) -> Result<(), PrintedError> {
    let pageblocks = PfnRange::try_from(ram)?.align_inward(PAGEBLOCK_FRAMES as u64);
    hotplug.announce(pageblocks)?;
    hotplug.add(pageblocks)?;
    hotplug.online(pageblocks, OnlineType::Kernel, &mut NoHooks)?;
    Ok(())
}

// SAFETY: `map` and `remap` write the entries for all of the range, or panic. `unmap` clears these
// entries and flushes the TLB of the only processor. The direct map never moves, and nothing else
// uses announced RAM.
unsafe impl Map for KernelMapping {
    fn base(&self) -> *mut u8 {
        direct_map(0)
    }

    fn mappable_range(&self) -> PfnRange {
        PfnRange::with_len(Pfn::ZERO, DIRECT_MAP_SIZE.frames()).unwrap_or(PfnRange::EMPTY)
    }

    fn table_reserve(&self) -> u64 {
        TABLE_RESERVE
    }

    fn tables_needed(&self, range: PfnRange) -> Result<u64, Veto> {
        Ok(tables_needed(range))
    }

    unsafe fn map(&mut self, range: PfnRange, take_frame: &mut dyn FnMut() -> Option<Pfn>) {
        let mapped = self.direct_map.map(range, Caching::WriteBack, take_frame);
        mapped.unwrap_or_else(|error| panic!("{range} cannot be mapped: {error}"));
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        self.direct_map.unmap(range).expect("the range is mapped");
    }

    fn remap_tables_needed(&self, _: PfnRange) -> u64 {
        0 // `unmap` keeps the page tables.
    }

    unsafe fn remap(&mut self, range: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {
        self.direct_map.map(range, Caching::WriteBack, || None).expect("the tables exist");
    }

    unsafe fn release_tables(
        &mut self,
        range: PfnRange,
        free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    ) {
        self.direct_map.release_tables(range, |table| {
            free(table).expect("`map` has taken the table from the engine");
        });
    }

    fn descriptors(&mut self) -> Option<&mut dyn Describe> {
        None
    }
}
