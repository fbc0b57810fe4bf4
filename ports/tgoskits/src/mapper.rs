//! Maps memory for the engine by ArceOS's page tables.

use ax_hal::{mem::phys_to_virt, paging::MappingFlags};
use ax_memory_addr::{VirtAddr, VirtAddrRange};
use ax_mm::kernel_aspace;
use hotmem::{PfnRange, Veto};
use hotmem_port::Mapper;

/// Makes the engine map memory by ArceOS's own code.
///
/// Memory that was mapped once stays mapped: `AddrSpace::unmap` would free page tables, and no TLB
/// of another CPU needs a flush.
pub fn install() {
    let mapper = Mapper { can_map, map, unmap: |_| (), unmap_frees_tables: false, tables_needed };
    // SAFETY: `map` writes an entry for each page of the range, or panics. Memory stays mapped.
    unsafe { ax_alloc::mapping().set_mapper(mapper) };
}

fn start(range: PfnRange) -> VirtAddr {
    phys_to_virt((range.start().phys_addr() as usize).into())
}

fn bytes(range: PfnRange) -> usize {
    range.bytes().0 as usize
}

/// Returns whether the first page of the range is mapped. Ranges of whole pageblocks are mapped as a
/// whole.
fn is_mapped(range: PfnRange) -> bool {
    kernel_aspace().lock_irqsave().mapping_flags(start(range)).is_ok()
}

fn can_map(range: PfnRange) -> Result<(), Veto> {
    let is_free = |part: PfnRange| {
        let area = VirtAddrRange::from_start_size(start(part), bytes(part));
        let space = kernel_aspace().lock_irqsave();
        // A free area can be outside of what the page tables can map.
        space.contains_range(start(part), bytes(part))
            && space.find_free_area(start(part), bytes(part), area) == Some(start(part))
    };
    let is_mappable = range.chunks(512).all(|part| is_mapped(part) || is_free(part));
    if is_mappable { Ok(()) } else { Err(Veto("mapped to something else")) }
}

fn map(range: PfnRange) {
    for part in range.chunks(512).filter(|&part| !is_mapped(part)) {
        let flags = MappingFlags::READ | MappingFlags::WRITE;
        let physical = (part.start().phys_addr() as usize).into();
        let mut space = kernel_aspace().lock_irqsave();
        let mapped = space.map_linear(start(part), physical, bytes(part), flags);
        mapped.expect("the engine has provided tables, and `can_map` has found the range free");
    }
}

fn tables_needed(range: PfnRange) -> u64 {
    // Pages have 4 KiB, so there is a table for each 2 MiB, a table for each GiB, and one table of
    // the next level.
    (range.chunks(1 << 9).count() + range.chunks(1 << 18).count() + 1) as u64
}
