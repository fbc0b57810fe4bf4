//! The machine of a PV guest over the model of Xen.

mod common;

use common::{Xen, notes::Notes};
use hotmem::{Bytes, Pfn};
use hotmem_pgtable::{
    Batch, Change, Covered, Entry, EntryAddr, Flags, Level, PageTables, Space, Stopped, Table,
    Tables, Unmap, VirtRange, Why,
};
use hotmem_xen::{
    Call, Config, DomId, Errno, Fault, Hypervisor, MachineTables, MmuExtOp, MmuUpdate, Partly,
    Room, XenPv,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::{cell::RefCell, rc::Rc};

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;
const KEEP: Unmap = Unmap { tables: Covered::Keep, ignore_used: false, dying: false };

fn range(start: u64, bytes: u64) -> VirtRange {
    VirtRange::new(start, Bytes(bytes)).unwrap()
}

/// `pages` pages from address 0, of a few frames.
fn mapped(xen: &Xen, pages: u64, pins_l1: bool) -> (Space, BTreeMap<u64, Entry>) {
    let space = xen.new_space();
    let frames: Vec<_> = (0..7).map(|_| xen.frame()).collect();
    let mut map = BTreeMap::new();
    for page in 0..pages {
        let frame = frames[usize::try_from(page * page % 7).unwrap()];
        let flags = [Flags::WRITABLE, Flags::ACCESSED, Flags::WRITABLE | Flags::ACCESSED];
        let flags = flags[usize::try_from(page % 3).unwrap()];
        let entry = Entry::new(frame, Flags::PRESENT | Flags::USER | flags);
        assert!(xen.put(space, page * PAGE, entry, pins_l1));
        map.insert(page * PAGE, entry);
    }
    (space, map)
}

fn with<R>(
    xen: &Xen,
    space: Space,
    config: Config,
    operation: impl FnOnce(PageTables<'_, XenPv<'_, &Xen, &Xen>>) -> R,
) -> R {
    let (mut batch, mut room) = (Box::new(Batch::new()), Box::new(Room::new()));
    operation(PageTables::new(XenPv::new(xen, xen, config, &mut room), space, &mut batch))
}

#[test]
fn a_range_costs_a_hypercall_for_each_batch_and_one_flush() {
    for batch in [1, 8, 32, 512] {
        let xen = Xen::new(64);
        let (space, map) = mapped(&xen, 3 * 512, false);
        let mut notes = Notes::new(&xen);
        xen.hypercalls.set(0);
        xen.flushes.set(0);
        let config = Config { batch, ..Config::default() };
        let range = range(5 * PAGE, 1024 * PAGE);
        with(&xen, space, config, |mut tables| tables.unmap_range(range, KEEP, &mut notes))
            .unwrap();
        assert_eq!(xen.hypercalls.get(), 1024 / batch as u64 + 1);
        assert_eq!(xen.flushes.get(), 1);
        let told: Vec<_> = map.into_iter().skip(5).take(1024).collect();
        assert_eq!(notes.pages(), told);
    }
}

#[test]
fn no_dirty_bit_is_lost_to_another_cpu_by_get_and_clear_and_some_by_reading_first() {
    for batch in [1, 32, 512] {
        let run = |read_then_clear: bool| {
            let xen = Xen::new(64);
            let (space, _) = mapped(&xen, 512, false);
            let wrote = Rc::new(RefCell::new(Vec::new()));
            let log = wrote.clone();
            let mut page = 0;
            *xen.other_cpu.borrow_mut() = Some(Box::new(move |xen| {
                page = (page + 37) % 512;
                let at = xen.find(space, page * PAGE);
                if at.is_some_and(|at| xen.write_by(at)) {
                    log.borrow_mut().push(page * PAGE);
                }
            }));
            let mut notes = Notes::new(&xen);
            // What the document's variant does is what the trait does for whoever wants no bits.
            let how = Unmap { ignore_used: read_then_clear, ..KEEP };
            let config = Config { batch, ..Config::default() };
            with(&xen, space, config, |mut t| t.unmap_range(range(0, LARGE), how, &mut notes))
                .unwrap();
            let told: BTreeMap<_, _> = notes.pages().into_iter().collect();
            let dirty = |virt: &u64| told[virt].flags().contains(Flags::DIRTY);
            assert!(wrote.borrow().len() > 50, "the race proves nothing");
            wrote.borrow().iter().filter(|virt| !dirty(virt)).count()
        };
        assert_eq!(run(false), 0);
        assert!(run(true) > 0);
    }
}

#[test]
fn whole_tables_are_unhooked_and_become_ordinary_memory() {
    for pins_l1 in [false, true] {
        let xen = Xen::new(64);
        let (space, map) = mapped(&xen, 6 * 512, pins_l1);
        let mut notes = Notes::new(&xen);
        let in_use = xen.in_use();
        xen.hypercalls.set(0);
        let config = Config { pins_l1, ..Config::default() };
        let range = range(LARGE - PAGE, 4 * LARGE + 2 * PAGE);
        with(&xen, space, config, |mut tables| {
            tables.unmap_range(range, Unmap::default(), &mut notes)
        })
        .unwrap();
        // Clear (with the unpinning), flush, remap.
        assert_eq!(xen.hypercalls.get(), 3);
        assert_eq!((notes.freed, in_use - xen.in_use()), (4, 4));
        let told: Vec<_> = map.into_iter().skip(511).take(4 * 512 + 2).collect();
        assert_eq!(notes.pages(), told);
    }
}

#[test]
fn where_more_cpus_run_than_a_table_has_entries_it_is_cleared_and_not_unhooked() {
    for (cpus, freed) in [(1, 1), (507, 1), (508, 0)] {
        let xen = Xen::new(64);
        let (space, map) = mapped(&xen, 512, false);
        let mut notes = Notes::new(&xen);
        let config = Config { cpus, ..Config::default() };
        let how = Unmap { tables: Covered::Cheapest, ..Unmap::default() };
        with(&xen, space, config, |mut t| t.unmap_range(range(0, LARGE), how, &mut notes)).unwrap();
        assert_eq!(notes.freed, freed, "{cpus} CPUs");
        assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_dying_address_space_takes_three_flushes_however_many_its_tables() {
    for pins_l1 in [false, true] {
        for tables in [1, 40] {
            let xen = Xen::new(128);
            let (space, map) = mapped(&xen, tables * 512, pins_l1);
            let mut notes = Notes::new(&xen);
            xen.hypercalls.set(0);
            xen.flushes.set(0);
            let config = Config { pins_l1, ..Config::default() };
            with(&xen, space, config, |tables| tables.teardown(&mut notes)).unwrap();
            assert!(xen.flushes.get() <= 3, "{} flushes", xen.flushes.get());
            assert!(xen.hypercalls.get() <= 3, "{} hypercalls", xen.hypercalls.get());
            assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
            assert_eq!(notes.freed as u64, tables + 3);
        }
    }
}

/// What Linux's exit path does: each table unpinned and made writable before the next.
#[test]
fn unpinning_and_remapping_in_turn_takes_a_flush_for_each_table() {
    let xen = Xen::new(128);
    let (space, _) = mapped(&xen, 40 * 512, true);
    let tables: Vec<_> =
        (0..40).map(|table| xen.find(space, table * LARGE).unwrap().table()).collect();
    let mut hypervisor = &xen;
    hypervisor.mmuext_op(&[MmuExtOp::unpin(space.root)]).unwrap();
    xen.flushes.set(0);
    for table in tables {
        hypervisor.mmuext_op(&[MmuExtOp::unpin(table)]).unwrap();
        xen.set_window(table, true);
    }
    assert_eq!(xen.flushes.get(), 40);
}

/// A kernel that does not map one of its tables.
struct Unmapped<'x>(&'x Xen, Pfn);

impl Tables for Unmapped<'_> {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        Tables::table(&self.0, frame)
    }
}

impl MachineTables for Unmapped<'_> {
    fn window(&self, frame: Pfn) -> Option<(EntryAddr, Entry)> {
        self.0.window(frame).filter(|_| frame != self.1)
    }

    fn grace_period(&self) {
        self.0.grace_period();
    }
}

#[test]
fn a_table_that_cannot_be_mapped_writable_is_told() {
    let xen = Xen::new(64);
    let (space, map) = mapped(&xen, 3 * 512, true);
    let table = xen.find(space, LARGE).unwrap().table();
    let why = Why::Mmu(Fault::NotMapped(table));
    let config = Config { pins_l1: true, ..Config::default() };
    let (mut batch, mut room) = (Box::new(Batch::new()), Box::new(Room::new()));
    let mut notes = Notes::new(&xen);
    let machine = XenPv::new(&xen, Unmapped(&xen, table), config, &mut room);
    let torn = PageTables::new(machine, space, &mut batch).teardown(&mut notes);
    assert_eq!(torn, Err(Stopped { at: 0, why, flushed: false }));
    assert_eq!((notes.pages(), notes.freed), (vec![], 0));
    with(&xen, space, config, |tables| tables.teardown(&mut notes)).unwrap();
    assert_eq!((notes.pages(), notes.freed), (map.into_iter().collect(), 6));
}

#[test]
fn notes_of_the_kernels_leave_nothing_behind() {
    let xen = Xen::new(64);
    let (space, _) = mapped(&xen, 4, false);
    let note = Entry::from_bits(0x6a);
    assert!(xen.put(space, 9 * PAGE, note, false));
    let mut notes = Notes::new(&xen);
    let config = Config::default();
    with(&xen, space, config, |mut t| t.unmap_range(range(0, 64 * PAGE), KEEP, &mut notes))
        .unwrap();
    assert_eq!(notes.pages()[4], (9 * PAGE, note));
    assert_eq!(xen.entry(xen.find(space, 9 * PAGE).unwrap()), Entry::from_bits(0));
    let residue = xen.entry(xen.find(space, PAGE).unwrap());
    assert_eq!(residue.bits(), Flags::ACCESSED.bits(), "of a page the bits stay: that is empty");
    assert!(residue.is_empty());
}

#[test]
fn a_grant_stops_the_batch_before_it() {
    let grant = Flags::from_bits_retain(1 << 10);
    let xen = Xen::new(64);
    let (space, map) = mapped(&xen, 20, false);
    let frame = xen.frame();
    let granted = Entry::new(frame, Flags::PRESENT | grant);
    xen.put(space, 20 * PAGE, granted, false);
    xen.put(space, 21 * PAGE, Entry::new(frame, Flags::PRESENT), false);
    let mut notes = Notes::new(&xen);
    let config = Config { grant, batch: 8, ..Config::default() };
    let stopped = with(&xen, space, config, |mut tables| {
        tables.unmap_range(range(0, 64 * PAGE), KEEP, &mut notes)
    })
    .unwrap_err();
    let at = xen.find(space, 20 * PAGE).unwrap();
    let why = Why::Mmu(Fault::GrantMapped { at, entry: granted });
    assert_eq!(stopped, Stopped { at: 20 * PAGE, why, flushed: true });
    assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
    assert_eq!(xen.entry(at), granted);
}

#[test]
fn a_table_with_a_grant_is_not_unhooked_and_an_address_space_with_one_does_not_go() {
    let grant = Flags::from_bits_retain(1 << 10);
    for pins_l1 in [false, true] {
        let xen = Xen::new(64);
        let (space, map) = mapped(&xen, 3 * 512, pins_l1);
        let granted = Entry::new(xen.frame(), Flags::PRESENT | grant);
        xen.put(space, 4 * LARGE - PAGE, granted, pins_l1);
        // What a bit means where there is no page is the kernel's to say.
        let note = Entry::from_bits(grant.bits());
        xen.put(space, 3 * LARGE, note, pins_l1);
        let (before, at) = (xen.in_use(), xen.find(space, 4 * LARGE - PAGE).unwrap());
        let why = Why::Mmu(Fault::GrantMapped { at, entry: granted });
        let mut notes = Notes::new(&xen);
        let config = Config { grant, pins_l1, ..Config::default() };
        xen.hypercalls.set(0);
        let torn = with(&xen, space, config, |tables| tables.teardown(&mut notes));
        assert_eq!(torn, Err(Stopped { at: 0, why, flushed: false }));
        assert_eq!((xen.hypercalls.get(), notes.pages()), (0, vec![]));
        let stopped = with(&xen, space, config, |mut tables| {
            tables.unmap_range(range(0, 5 * LARGE), Unmap::default(), &mut notes)
        });
        assert_eq!(stopped, Err(Stopped { at: 3 * LARGE, why, flushed: true }));
        assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
        assert_eq!((notes.freed, before - xen.in_use()), (3, 3));
        let left =
            [3 * LARGE, 4 * LARGE - PAGE].map(|virt| xen.entry(xen.find(space, virt).unwrap()));
        assert_eq!(left, [note, granted]);
    }
}

#[test]
fn what_is_not_pinned_is_not_in_the_way() {
    for pinned in [[false; 3], [true, true, false], [false, true, true]] {
        let xen = Xen::new(64);
        let (space, map) = mapped(&xen, 3 * 512, false);
        for (table, _) in (0..).zip(pinned).filter(|(_, pinned)| *pinned) {
            let table = xen.find(space, table * LARGE).unwrap().table();
            (&xen).mmuext_op(&[MmuExtOp::pin(Level::L1, table).unwrap()]).unwrap();
        }
        let mut notes = Notes::new(&xen);
        let config = Config { pins_l1: true, ..Config::default() };
        with(&xen, space, config, |mut tables| {
            tables.unmap_range(range(0, 3 * LARGE), Unmap::default(), &mut notes)
        })
        .unwrap();
        assert_eq!((notes.freed, notes.stuck), (3, 0));
        assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
    }
}

/// Xen, with a fault of its own at the unpinning.
struct NoUnpinning<'x>(&'x Xen);

impl Hypervisor for NoUnpinning<'_> {
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), Partly> {
        self.0.mmu_update(updates, owner)
    }

    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), Partly> {
        self.0.mmuext_op(ops)
    }

    fn mmuext_op_then_update(
        &mut self,
        _: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), Partly>, Result<(), Partly>) {
        (Err(Partly { done: 0, errno: Errno::EPERM }), self.0.mmu_update(updates, DomId::SELF))
    }
}

#[test]
fn an_unpinning_that_is_refused_is_told_and_so_is_all_that_was_done() {
    for (pins_l1, call, errno) in
        [(false, Call::Unpin, Errno::EPERM), (true, Call::Remap, Errno::EBUSY)]
    {
        let xen = Xen::new(64);
        let (space, map) = mapped(&xen, 3 * 512, pins_l1);
        let mut notes = Notes::new(&xen);
        let config = Config { pins_l1: true, ..Config::default() };
        let (mut batch, mut room) = (Box::new(Batch::new()), Box::new(Room::new()));
        let machine = XenPv::new(NoUnpinning(&xen), &xen, config, &mut room);
        let stopped = PageTables::new(machine, space, &mut batch).unmap_range(
            range(0, 2 * LARGE),
            Unmap::default(),
            &mut notes,
        );
        // What is still pinned does not become memory, which is the graver matter.
        let why = Why::Mmu(Fault::Refused { call, errno });
        assert_eq!(stopped, Err(Stopped { at: 2 * LARGE, why, flushed: true }));
        let (freed, stuck) = if pins_l1 { (0, 2) } else { (2, 0) };
        assert_eq!((notes.freed, notes.stuck), (freed, stuck));
        assert_eq!(notes.pages(), map.into_iter().take(1024).collect::<Vec<_>>());
    }
}

#[test]
fn a_teardown_that_is_refused_in_the_middle_can_be_done_again() {
    // The unpinning of the root and of three tables; then remaps of these and of three above them.
    for (pins_l1, operations) in [(false, 1 + 6), (true, 4 + 6)] {
        for refused_after in 0..operations {
            let xen = Xen::new(64);
            let (space, map) = mapped(&xen, 3 * 512, pins_l1);
            let mut notes = Notes::new(&xen);
            let config = Config { pins_l1, ..Config::default() };
            xen.refuse_after.set(Some(refused_after));
            let torn = with(&xen, space, config, |tables| tables.teardown(&mut notes));
            assert!(torn.is_err_and(|stopped| stopped.at == 0), "{refused_after}: {torn:?}");
            assert_eq!((notes.pages(), notes.freed, notes.stuck), (vec![], 0, 0));
            xen.refuse_after.set(None);
            with(&xen, space, config, |tables| tables.teardown(&mut notes)).unwrap();
            assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
            assert_eq!((notes.freed, notes.stuck), (6, 0));
        }
    }
}

#[test]
fn a_hypercall_that_fails_in_mid_batch_tells_both_parts() {
    let pages = 1024;
    for batch in [1, 100, 512] {
        for refused_after in [0, 1, 99, 100, 511, 512, 777, 1023] {
            let xen = Xen::new(64);
            let (space, map) = mapped(&xen, pages, false);
            let mut notes = Notes::new(&xen);
            xen.refuse_after.set(Some(refused_after));
            let config = Config { batch, ..Config::default() };
            let stopped = with(&xen, space, config, |mut tables| {
                tables.unmap_range(range(0, pages * PAGE), KEEP, &mut notes)
            })
            .unwrap_err();
            let refused = Fault::Refused { call: Call::MmuUpdate, errno: Errno::EINVAL };
            // The model goes on refusing, so the flush of what was done is refused too.
            let flushed = refused_after == 0;
            assert_eq!(
                stopped,
                Stopped { at: refused_after * PAGE, why: Why::Mmu(refused), flushed }
            );
            let (done, left): (Vec<_>, Vec<_>) =
                map.into_iter().partition(|(virt, _)| *virt < refused_after * PAGE);
            assert_eq!(notes.pages(), done);
            assert!(
                left.iter()
                    .all(|(virt, entry)| { xen.entry(xen.find(space, *virt).unwrap()) == *entry })
            );
        }
    }
}

#[test]
fn tables_that_xen_does_not_give_back_are_not_freed() {
    // The clear of two tables goes through, then the flush; the remap of the first is refused.
    let xen = Xen::new(64);
    let (space, map) = mapped(&xen, 1024, false);
    let mut notes = Notes::new(&xen);
    xen.refuse_after.set(Some(3));
    let stopped = with(&xen, space, Config::default(), |mut tables| {
        tables.unmap_range(range(0, 2 * LARGE), Unmap::default(), &mut notes)
    })
    .unwrap_err();
    let refused = Fault::Refused { call: Call::Remap, errno: Errno::EINVAL };
    assert_eq!(stopped, Stopped { at: 2 * LARGE, why: Why::Mmu(refused), flushed: true });
    assert_eq!((notes.freed, notes.stuck), (0, 2));
    assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_stops_an_operation_both_parts_are_told(
        pages in prop::collection::btree_map(0u64..1600, (0u64..8, any::<bool>()), 1..400),
        granted in prop::option::of(0u64..1600),
        refuse_after in prop::option::of(0u64..400),
        batch in prop::sample::select(vec![1usize, 7, 512]),
        protect in any::<bool>(),
    ) {
        let grant = Flags::from_bits_retain(1 << 10);
        let xen = Xen::new(64);
        let space = xen.new_space();
        let frame = xen.frame();
        let mut map = BTreeMap::new();
        for (page, (flags, is_note)) in pages {
            let flags = Flags::from_bits_retain((flags & 3) << 5 | flags >> 2 << 1);
            let page_flags = flags | Flags::PRESENT | Flags::USER;
            // A note has no frame's number, or Xen would take it for an attack.
            let entry = match (granted == Some(page), is_note && !protect) {
                (true, _) => Entry::new(frame, page_flags | grant),
                (false, true) => Entry::from_bits(flags.bits() | 8),
                (false, false) => Entry::new(frame, page_flags),
            };
            xen.put(space, page * PAGE, entry, false);
            map.insert(page * PAGE, entry);
        }
        let granted = granted.filter(|page| map.contains_key(&(page * PAGE)));
        xen.refuse_after.set(refuse_after);
        let mut notes = Notes::new(&xen);
        let config = Config { grant, batch, ..Config::default() };
        let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
        let all = range(0, 1600 * PAGE);
        let result = with(&xen, space, config, |mut tables| {
            if protect {
                tables.protect(all, change, &mut notes)
            } else {
                tables.unmap_range(all, KEEP, &mut notes)
            }
        });
        // The last page done; `None` if all are.
        let before_grant = granted.map(|page| map.range(..page * PAGE).count() as u64);
        let done = match (before_grant, refuse_after) {
            (Some(grant), Some(refuse)) => Some(grant.min(refuse)),
            (one, other) => one.or(other),
        };
        let done = done.filter(|&done| done < map.len() as u64);
        let at = done.and_then(|done| map.keys().nth(usize::try_from(done).unwrap()).copied());
        match (result, at) {
            (Ok(()), None) => {}
            (Err(stopped), Some(at)) => prop_assert_eq!(stopped.at, at),
            // All but the flush.
            (Err(stopped), None) => {
                let flush = Fault::Refused { call: Call::Flush, errno: Errno::EINVAL };
                prop_assert_eq!(stopped.why, Why::Mmu(flush));
                prop_assert_eq!((stopped.at, stopped.flushed), (1600 * PAGE, false));
                prop_assert_eq!(refuse_after, Some(map.len() as u64));
            }
            other => prop_assert!(false, "{:?}", other),
        }
        let at = at.unwrap_or(1600 * PAGE);
        let gone: Vec<_> = map.range(..at).map(|(virt, entry)| (*virt, *entry)).collect();
        prop_assert_eq!(notes.pages(), if protect { Vec::new() } else { gone });
        for (virt, entry) in map {
            let now = xen.entry(xen.find(space, virt).unwrap());
            let after = match (virt < at, protect) {
                (false, _) => entry,
                (true, true) => change.of(entry),
                (true, false) => Entry::EMPTY,
            };
            let is_empty = after.is_empty() && now.is_empty();
            prop_assert!(now == after || is_empty, "{now:?} at {virt:#x}");
        }
    }

    #[test]
    fn as_a_map_without_tables(
        pages in prop::collection::btree_map(0u64..4096, (any::<bool>(), 0u64..4), 1..120),
        ranges in prop::collection::vec((0u64..4096, 1u64..2000, 0..3usize, 0..4u8), 1..8),
        pins_l1 in any::<bool>(),
        batch in prop::sample::select(vec![1usize, 7, 512]),
    ) {
        let xen = Xen::new(64);
        let space = xen.new_space();
        let frame = xen.frame();
        let mut map = BTreeMap::new();
        for (page, (writable, used)) in pages {
            let flags = Flags::from_bits_retain(used << 5 | u64::from(writable) << 1);
            let entry = Entry::new(frame, Flags::PRESENT | Flags::USER | flags);
            xen.put(space, page * PAGE, entry, pins_l1);
            map.insert(page * PAGE, entry);
        }
        let config = Config { pins_l1, batch, ..Config::default() };
        for (page, pages, tables, how) in ranges {
            let (start, bytes) = (page * PAGE, pages * PAGE);
            let mut notes = Notes::new(&xen);
            if how == 0 {
                let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
                let range = range(start, bytes);
                with(&xen, space, config, |mut t| t.protect(range, change, &mut notes)).unwrap();
                for (_, entry) in map.range_mut(start..start + bytes) {
                    *entry = change.of(*entry);
                }
            } else {
                let tables = [Covered::Free, Covered::Keep, Covered::Cheapest][tables];
                let how = Unmap { tables, ignore_used: how == 1, dying: how == 2 };
                let range = range(start, bytes);
                with(&xen, space, config, |mut t| t.unmap_range(range, how, &mut notes)).unwrap();
                let gone: Vec<_> = map.range(start..start + bytes).map(|(v, e)| (*v, *e)).collect();
                map.retain(|virt, _| !(start..start + bytes).contains(virt));
                prop_assert_eq!(notes.pages(), gone);
            }
            for (virt, entry) in &map {
                prop_assert_eq!(xen.entry(xen.find(space, *virt).unwrap()), *entry);
            }
        }
        let mut notes = Notes::new(&xen);
        with(&xen, space, config, |tables| tables.teardown(&mut notes)).unwrap();
        prop_assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
        // What is left is the direct map's table and the one page.
        prop_assert_eq!(xen.in_use(), 2);
    }
}
