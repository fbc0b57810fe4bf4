//! Maps and unmaps memory for the engine by ArceOS's page tables.

use crate::faults::{self, Fault};
use axhal::{mem::phys_to_virt, paging::MappingFlags};
use axmm::kernel_aspace;
use hotmem::{PfnRange, Veto};
use hotmem_port::Mapper;
use memory_addr::VirtAddrRange;

/// Makes the engine map memory by ArceOS's own code.
pub fn install() {
    let unmap_frees_tables = false;
    let mapper = Mapper { can_map, map, unmap, unmap_frees_tables, tables_needed };
    // SAFETY: `map` writes an entry for each page of the range, or panics. Page tables are never
    // freed. Other CPUs may cache an entry that `unmap` has cleared. This is harmless, because the
    // linear map gives each address always the same entry.
    unsafe { axalloc::MAPPING.set_mapper(mapper) };
}

fn can_map(range: PfnRange) -> Result<(), Veto> {
    let start = phys_to_virt((range.start().phys_addr() as usize).into());
    let area = VirtAddrRange::from_start_size(start, bytes(range));
    let space = kernel_aspace().lock();
    let is_free = space.find_free_area(start, bytes(range), area) == Some(start);
    if is_free && !faults::inject(Fault::Map) {
        Ok(())
    } else {
        Err(Veto("mapped to something else"))
    }
}

fn tables_needed(range: PfnRange) -> u64 {
    // Pages have 4 KiB, so there is a table for each 2 MiB, a table for each GiB, and one table of
    // the next level.
    (range.chunks(1 << 9).count() + range.chunks(1 << 18).count() + 1) as u64
}

fn map(range: PfnRange) {
    let start = (range.start().phys_addr() as usize).into();
    let flags = MappingFlags::READ | MappingFlags::WRITE;
    let mapped = kernel_aspace().lock().map_linear(phys_to_virt(start), start, bytes(range), flags);
    mapped.expect("the engine has provided tables, and `can_map` has found the range free");
}

fn unmap(range: PfnRange) {
    let start = phys_to_virt((range.start().phys_addr() as usize).into());
    kernel_aspace().lock().unmap(start, bytes(range)).expect("the range is mapped");
}

fn bytes(range: PfnRange) -> usize {
    range.bytes().0 as usize
}
