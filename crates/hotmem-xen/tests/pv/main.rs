//! Tests [`XenPv`] with the model of Xen.

#[path = "../common/mod.rs"]
mod common;
mod random;
mod refused_operations;
mod roots;

use common::{Xen, recording_owner::RecordingOwner};
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::x86_64::{Batch, Change, Entry, Flags, Space, StopReason, Stopped};
use hotmem_pgtable::{
    CoveredTables, EntryAddr, Level, Mmu, PageTables, Table, Tables, Unmap, VirtRange,
};
use hotmem_xen::{
    BatchRefused, Config, DomId, Errno, Fault, GrantDetection, HypercallBuffer, HypercallPurpose,
    Hypervisor, MachineTables, MmuExtOp, MmuUpdate, XenPv,
};
use std::collections::BTreeMap;
use std::{cell::RefCell, rc::Rc};

const PAGE_BYTES: u64 = 4096;
const LARGE_PAGE_BYTES: u64 = 2 << 20;
const KEEP_TABLES: Unmap =
    Unmap { tables: CoveredTables::Keep, ignore_accessed_and_dirty: false, is_dying: false };

/// The configuration for address spaces without grants.
const CONFIG: Config = Config::new(GrantDetection::assume_absent());

/// The flag by which the kernel marks grants.
const GRANT: Flags = Flags::from_bits_retain(1 << 10);

fn with_grants() -> Config {
    Config::new(GrantDetection::by_flag(GRANT).unwrap())
}

fn range(start: u64, bytes: u64) -> VirtRange {
    VirtRange::new(start, Bytes(bytes)).unwrap()
}

/// Makes an address space with `pages` pages from address 0 on, which map seven frames. Returns the
/// address space, and the address and the entry of each page.
fn map_pages(xen: &Xen, pages: u64, pins_l1: bool) -> (Space, BTreeMap<u64, Entry>) {
    let space = xen.new_space();
    let frames: Vec<_> = (0..7).map(|_| xen.take_frame()).collect();
    let mut map = BTreeMap::new();
    for page in 0..pages {
        let frame = frames[usize::try_from(page * page % 7).unwrap()];
        let flags = [Flags::WRITABLE, Flags::ACCESSED, Flags::WRITABLE | Flags::ACCESSED];
        let flags = flags[usize::try_from(page % 3).unwrap()];
        let entry = Entry::new(frame, Flags::PRESENT | Flags::USER | flags);
        assert!(xen.put(space, page * PAGE_BYTES, entry, pins_l1));
        map.insert(page * PAGE_BYTES, entry);
    }
    (space, map)
}

/// Runs `operation` with the page tables of `space`.
fn with_tables<R>(
    xen: &Xen,
    space: Space,
    config: Config,
    operation: impl FnOnce(PageTables<'_, XenPv<'_, &Xen, &Xen>>) -> R,
) -> R {
    let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
    operation(PageTables::new(XenPv::new(xen, xen, config, &mut buffer), space, &mut batch))
}

#[test]
fn unmapping_a_range_takes_a_hypercall_for_each_batch_and_one_flush() {
    for batch in [1, 8, 32, 512] {
        let xen = Xen::new(64);
        let (space, map) = map_pages(&xen, 3 * 512, false);
        let mut owner = RecordingOwner::new(&xen);
        xen.hypercalls.set(0);
        xen.flushes.set(0);
        let config = Config { batch, ..CONFIG };
        let range = range(5 * PAGE_BYTES, 1024 * PAGE_BYTES);
        with_tables(&xen, space, config, |mut tables| {
            tables.unmap_range(range, KEEP_TABLES, &mut owner)
        })
        .unwrap();
        assert_eq!(xen.hypercalls.get(), 1024 / batch as u64 + 1);
        assert_eq!(xen.flushes.get(), 1);
        let unmapped: Vec<_> = map.into_iter().skip(5).take(1024).collect();
        assert_eq!(owner.pages(), unmapped);
    }
}

#[test]
fn get_and_clear_loses_no_dirty_bit_but_reading_before_clearing_does() {
    for batch in [1, 32, 512] {
        let run = |read_then_clear: bool| {
            let xen = Xen::new(64);
            let (space, _) = map_pages(&xen, 512, false);
            let written_pages = Rc::new(RefCell::new(Vec::new()));
            let pages_of_other_cpu = written_pages.clone();
            let mut page = 0;
            *xen.other_cpu.borrow_mut() = Some(Box::new(move |xen| {
                page = (page + 37) % 512;
                let addr = xen.find(space, page * PAGE_BYTES);
                if addr.is_some_and(|addr| xen.write_page(addr)) {
                    pages_of_other_cpu.borrow_mut().push(page * PAGE_BYTES);
                }
            }));
            let mut owner = RecordingOwner::new(&xen);
            // For callers that ignore the bits, `PageTables` reads the entries before it clears them.
            let options = Unmap { ignore_accessed_and_dirty: read_then_clear, ..KEEP_TABLES };
            let config = Config { batch, ..CONFIG };
            with_tables(&xen, space, config, |mut tables| {
                tables.unmap_range(range(0, LARGE_PAGE_BYTES), options, &mut owner)
            })
            .unwrap();
            let unmapped: BTreeMap<_, _> = owner.pages().into_iter().collect();
            let is_dirty = |virt: &u64| unmapped[virt].flags().contains(Flags::DIRTY);
            assert!(
                written_pages.borrow().len() > 50,
                "the other CPU wrote too few pages to prove anything"
            );
            written_pages.borrow().iter().filter(|virt| !is_dirty(virt)).count()
        };
        assert_eq!(run(false), 0);
        assert!(run(true) > 0);
    }
}

#[test]
fn whole_tables_are_unhooked_and_become_ordinary_memory() {
    for pins_l1 in [false, true] {
        let xen = Xen::new(64);
        let (space, map) = map_pages(&xen, 6 * 512, pins_l1);
        let mut owner = RecordingOwner::new(&xen);
        let used_before = xen.used_frames();
        xen.hypercalls.set(0);
        let config = Config { pins_l1, ..CONFIG };
        let range = range(LARGE_PAGE_BYTES - PAGE_BYTES, 4 * LARGE_PAGE_BYTES + 2 * PAGE_BYTES);
        with_tables(&xen, space, config, |mut tables| {
            tables.unmap_range(range, Unmap::default(), &mut owner)
        })
        .unwrap();
        // One hypercall clears and unpins, one flushes, and one remaps.
        assert_eq!(xen.hypercalls.get(), 3);
        assert_eq!((owner.freed_tables, used_before - xen.used_frames()), (4, 4));
        let unmapped: Vec<_> = map.into_iter().skip(511).take(4 * 512 + 2).collect();
        assert_eq!(owner.pages(), unmapped);
    }
}

#[test]
fn a_table_is_unhooked_if_clearing_its_entries_would_cost_more() {
    let options = Unmap { tables: CoveredTables::Cheapest, ..Unmap::default() };
    for cpus in [1, 2, 64] {
        let config = Config { cpus, ..CONFIG };
        let min_entries = {
            let (xen, mut buffer) = (Xen::new(64), Box::new(HypercallBuffer::new()));
            XenPv::new(&xen, &xen, config, &mut buffer).min_entries_to_unhook(1).unwrap()
        };
        assert!((1..=512).contains(&min_entries), "{cpus} CPUs: {min_entries}");
        for (entries, freed) in
            [(1, min_entries == 1), (min_entries - 1, false), (min_entries, true), (512, true)]
        {
            let xen = Xen::new(64);
            let (space, map) = map_pages(&xen, entries, false);
            let mut owner = RecordingOwner::new(&xen);
            with_tables(&xen, space, config, |mut tables| {
                tables.unmap_range(range(0, LARGE_PAGE_BYTES), options, &mut owner)
            })
            .unwrap();
            assert_eq!(owner.freed_tables, usize::from(freed), "{cpus} CPUs, {entries} entries");
            assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
        }
    }
}

/// The range has one full table and 19 tables with a single entry.
#[test]
fn only_tables_with_enough_entries_are_unhooked() {
    let xen = Xen::new(64);
    let (space, mut map) = map_pages(&xen, 512, true);
    let frame = xen.take_frame();
    for table in 1..20 {
        let entry = Entry::new(frame, Flags::PRESENT | Flags::USER);
        assert!(xen.put(space, table * LARGE_PAGE_BYTES, entry, true));
        map.insert(table * LARGE_PAGE_BYTES, entry);
    }
    let mut owner = RecordingOwner::new(&xen);
    let options = Unmap { tables: CoveredTables::Cheapest, ..Unmap::default() };
    let config = Config { pins_l1: true, cpus: 2, ..CONFIG };
    let all = range(0, 512 * LARGE_PAGE_BYTES);
    xen.flushes.set(0);
    with_tables(&xen, space, config, |mut tables| tables.unmap_range(all, options, &mut owner))
        .unwrap();
    assert_eq!(owner.freed_tables, 1, "only the full table is freed");
    assert!(xen.flushes.get() <= 4, "{} flushes", xen.flushes.get());
    assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
}

#[test]
fn a_teardown_takes_one_hypercall_and_two_flushes_for_any_number_of_tables() {
    for pins_l1 in [false, true] {
        for tables in [1, 40] {
            let xen = Xen::new(128);
            let (space, map) = map_pages(&xen, tables * 512, pins_l1);
            let mut owner = RecordingOwner::new(&xen);
            xen.hypercalls.set(0);
            xen.flushes.set(0);
            let config = Config { pins_l1, ..CONFIG };
            with_tables(&xen, space, config, |tables| tables.teardown(&mut owner)).unwrap();
            assert!(xen.flushes.get() <= 2, "{} flushes", xen.flushes.get());
            assert_eq!(xen.hypercalls.get(), 1);
            assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
            assert_eq!(owner.freed_tables as u64, tables + 3);
        }
    }
}

/// Unpins each table and maps it writable before it unpins the next one, as Linux does when a
/// process exits.
#[test]
fn unpinning_and_remapping_in_turn_takes_a_flush_for_each_table() {
    let xen = Xen::new(128);
    let (space, _) = map_pages(&xen, 40 * 512, true);
    let tables: Vec<_> =
        (0..40).map(|table| xen.find(space, table * LARGE_PAGE_BYTES).unwrap().table()).collect();
    let mut hypervisor = &xen;
    hypervisor.mmuext_op(&[MmuExtOp::unpin(space.root)]).unwrap();
    xen.flushes.set(0);
    for table in tables {
        hypervisor.mmuext_op(&[MmuExtOp::unpin(table)]).unwrap();
        xen.set_writable(table, true);
    }
    assert_eq!(xen.flushes.get(), 40);
}
