//! ArceOS's page tables, as the engine uses them.

use axhal::{mem::phys_to_virt, paging::MappingFlags};
use axmm::kernel_aspace;
use hotmem::PfnRange;
use hotmem_port::Mapper;

/// Has the engine map memory by ArceOS's own code.
pub fn install() {
    // SAFETY: `map` writes an entry for each page of the range, or panics; tables stay. Other CPUs
    // may keep an entry that `unmap` has cleared: it says what the next one for this address will say.
    unsafe { axalloc::MAPPING.set_mapper(Mapper { map, unmap, tables_needed }) };
}

fn tables_needed(range: PfnRange) -> u64 {
    // Pages of 4 KiB: a table for each 2 MiB, for each GiB, and one above.
    (range.chunks(1 << 9).count() + range.chunks(1 << 18).count() + 1) as u64
}

fn map(range: PfnRange) {
    let start = (range.start().phys_addr() as usize).into();
    let flags = MappingFlags::READ | MappingFlags::WRITE;
    let mapped = kernel_aspace().lock().map_linear(phys_to_virt(start), start, bytes(range), flags);
    mapped.expect("tables were lent, and nothing else is mapped there");
}

fn unmap(range: PfnRange) {
    let start = phys_to_virt((range.start().phys_addr() as usize).into());
    kernel_aspace().lock().unmap(start, bytes(range)).expect("memory that was mapped");
}

fn bytes(range: PfnRange) -> usize {
    range.bytes().0 as usize
}
