//! Operations that Xen or the kernel refuses.

use super::*;
use std::cell::Cell;

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
fn a_table_that_cannot_be_mapped_writable_is_reported() {
    let xen = Xen::new(64);
    let (space, map) = mapped(&xen, 3 * 512, true);
    let table = xen.find(space, LARGE).unwrap().table();
    let why = Why::Mmu(Fault::NotMapped(table));
    let config = Config { pins_l1: true, ..CONFIG };
    let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
    let mut notes = Notes::new(&xen);
    let machine = XenPv::new(&xen, Unmapped(&xen, table), config, &mut buffer);
    let torn = PageTables::new(machine, space, &mut batch).teardown(&mut notes);
    assert_eq!(torn, Err(Stopped { at: 0, why, flushed: false }));
    assert_eq!((notes.pages(), notes.freed), (vec![], 0));
    with(&xen, space, config, |tables| tables.teardown(&mut notes)).unwrap();
    assert_eq!((notes.pages(), notes.freed), (map.into_iter().collect(), 6));
}

/// A kernel that no longer maps one of its tables, from some call on.
struct Forgotten<'x>(&'x Xen, Pfn, Cell<u32>);

impl Tables for Forgotten<'_> {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let left = self.2.get();
        if frame == self.1 {
            self.2.set(left.saturating_sub(1));
        }
        Tables::table(&self.0, frame).filter(|_| frame != self.1 || left > 0)
    }
}

impl MachineTables for Forgotten<'_> {
    fn window(&self, frame: Pfn) -> Option<(EntryAddr, Entry)> {
        self.0.window(frame)
    }

    fn grace_period(&self) {
        self.0.grace_period();
    }
}

#[test]
fn pages_whose_final_bits_cannot_be_read_are_reported_as_used() {
    let xen = Xen::new(64);
    let (space, map) = mapped(&xen, 4, false);
    let table = xen.find(space, 0).unwrap().table();
    let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
    let mut notes = Notes::new(&xen);
    // The walk reads the table twice: its entries, and then that there are no more.
    let machine = XenPv::new(&xen, Forgotten(&xen, table, Cell::new(2)), CONFIG, &mut buffer);
    let mut tables = PageTables::new(machine, space, &mut batch);
    let unmapped = tables.unmap_range(range(0, 64 * PAGE), KEEP, &mut notes);
    let why = Why::Mmu(Fault::NotMapped(table));
    assert_eq!(unmapped, Err(Stopped { at: 4 * PAGE, why, flushed: true }));
    let used = |(at, entry): (u64, Entry)| {
        (at, if entry.is_settled() { entry } else { entry.with(Flags::USED) })
    };
    assert_eq!(notes.pages(), map.into_iter().map(used).collect::<Vec<_>>());
}

#[test]
fn a_table_that_cannot_be_searched_for_grants_is_not_unhooked() {
    let xen = Xen::new(64);
    let (space, _) = mapped(&xen, 512, false);
    let table = xen.find(space, 0).unwrap().table();
    let before = xen.in_use();
    let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
    let mut notes = Notes::new(&xen);
    // The table is mapped once, when the walk decides to unhook it.
    let machine =
        XenPv::new(&xen, Forgotten(&xen, table, Cell::new(1)), with_grants(), &mut buffer);
    let mut tables = PageTables::new(machine, space, &mut batch);
    let unmapped = tables.unmap_range(range(0, LARGE), Unmap::default(), &mut notes);
    let why = Why::Mmu(Fault::NotMapped(table));
    assert_eq!(unmapped, Err(Stopped { at: 0, why, flushed: true }));
    assert_eq!((notes.pages(), notes.freed, xen.in_use()), (vec![], 0, before));
}

#[test]
fn entries_with_data_of_the_kernel_are_cleared_entirely() {
    let xen = Xen::new(64);
    let (space, _) = mapped(&xen, 4, false);
    let note = Entry::from_bits(0x6a);
    assert!(xen.put(space, 9 * PAGE, note, false));
    let mut notes = Notes::new(&xen);
    let config = CONFIG;
    with(&xen, space, config, |mut t| t.unmap_range(range(0, 64 * PAGE), KEEP, &mut notes))
        .unwrap();
    assert_eq!(notes.pages()[4], (9 * PAGE, note));
    assert_eq!(xen.entry(xen.find(space, 9 * PAGE).unwrap()), Entry::from_bits(0));
    let residue = xen.entry(xen.find(space, PAGE).unwrap());
    assert_eq!(
        residue.bits(),
        Flags::ACCESSED.bits(),
        "Accessed and Dirty of a page stay, and the entry counts as empty"
    );
    assert!(residue.is_empty());
}

#[test]
fn a_grant_stops_the_batch_before_it() {
    let xen = Xen::new(64);
    let (space, map) = mapped(&xen, 20, false);
    let frame = xen.frame();
    let granted = Entry::new(frame, Flags::PRESENT | GRANT);
    xen.put(space, 20 * PAGE, granted, false);
    xen.put(space, 21 * PAGE, Entry::new(frame, Flags::PRESENT), false);
    let mut notes = Notes::new(&xen);
    let config = Config { batch: 8, ..with_grants() };
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
fn a_table_with_a_grant_is_not_unhooked_and_an_address_space_with_one_is_not_torn_down() {
    for pins_l1 in [false, true] {
        let xen = Xen::new(64);
        let (space, map) = mapped(&xen, 3 * 512, pins_l1);
        let granted = Entry::new(xen.frame(), Flags::PRESENT | GRANT);
        xen.put(space, 4 * LARGE - PAGE, granted, pins_l1);
        // In an entry that is not present, the flag does not mark a grant.
        let note = Entry::from_bits(GRANT.bits());
        xen.put(space, 3 * LARGE, note, pins_l1);
        let (before, at) = (xen.in_use(), xen.find(space, 4 * LARGE - PAGE).unwrap());
        let why = Why::Mmu(Fault::GrantMapped { at, entry: granted });
        let mut notes = Notes::new(&xen);
        let config = Config { pins_l1, ..with_grants() };
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
fn tables_that_are_not_pinned_do_not_prevent_a_teardown() {
    for pinned in [[false; 3], [true, true, false], [false, true, true]] {
        let xen = Xen::new(64);
        let (space, map) = mapped(&xen, 3 * 512, false);
        for (table, _) in (0..).zip(pinned).filter(|(_, pinned)| *pinned) {
            let table = xen.find(space, table * LARGE).unwrap().table();
            (&xen).mmuext_op(&[MmuExtOp::pin(Level::L1, table).unwrap()]).unwrap();
        }
        let mut notes = Notes::new(&xen);
        let config = Config { pins_l1: true, ..CONFIG };
        with(&xen, space, config, |mut tables| {
            tables.unmap_range(range(0, 3 * LARGE), Unmap::default(), &mut notes)
        })
        .unwrap();
        assert_eq!((notes.freed, notes.stuck), (3, 0));
        assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
    }
}

/// A hypervisor that refuses to unpin.
struct NoUnpinning<'x>(&'x Xen);

impl Hypervisor for NoUnpinning<'_> {
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), BatchRefused> {
        self.0.mmu_update(updates, owner)
    }

    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), BatchRefused> {
        self.0.mmuext_op(ops)
    }

    fn mmuext_op_then_update(
        &mut self,
        _: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), BatchRefused>, Result<(), BatchRefused>) {
        (
            Err(BatchRefused { done: 0, errno: Errno::EPERM }),
            self.0.mmu_update(updates, DomId::SELF),
        )
    }
}

#[test]
fn a_refused_unpinning_is_reported_with_all_that_was_done() {
    for (pins_l1, call, errno) in
        [(false, Call::Unpin, Errno::EPERM), (true, Call::Remap, Errno::EBUSY)]
    {
        let xen = Xen::new(64);
        let (space, map) = mapped(&xen, 3 * 512, pins_l1);
        let mut notes = Notes::new(&xen);
        let config = Config { pins_l1: true, ..CONFIG };
        let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
        let machine = XenPv::new(NoUnpinning(&xen), &xen, config, &mut buffer);
        let stopped = PageTables::new(machine, space, &mut batch).unmap_range(
            range(0, 2 * LARGE),
            Unmap::default(),
            &mut notes,
        );
        // A table that is still pinned does not become memory. This error takes precedence.
        let why = Why::Mmu(Fault::Refused { call, errno });
        assert_eq!(stopped, Err(Stopped { at: 2 * LARGE, why, flushed: true }));
        let (freed, stuck) = if pins_l1 { (0, 2) } else { (2, 0) };
        assert_eq!((notes.freed, notes.stuck), (freed, stuck));
        assert_eq!(notes.pages(), map.into_iter().take(1024).collect::<Vec<_>>());
    }
}

#[test]
fn a_teardown_that_is_refused_in_the_middle_can_be_repeated() {
    // A teardown unpins the root (and three L1 tables), and then remaps three L1 tables and the
    // three tables above them.
    for (pins_l1, operations) in [(false, 1 + 6), (true, 4 + 6)] {
        for refused_after in 0..operations {
            let xen = Xen::new(64);
            let (space, map) = mapped(&xen, 3 * 512, pins_l1);
            let mut notes = Notes::new(&xen);
            let config = Config { pins_l1, ..CONFIG };
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
fn a_hypercall_that_fails_in_mid_batch_reports_its_first_part() {
    let pages = 1024;
    for batch in [1, 100, 512] {
        for refused_after in [0, 1, 99, 100, 511, 512, 777, 1023] {
            let xen = Xen::new(64);
            let (space, map) = mapped(&xen, pages, false);
            let mut notes = Notes::new(&xen);
            xen.refuse_after.set(Some(refused_after));
            let config = Config { batch, ..CONFIG };
            let stopped = with(&xen, space, config, |mut tables| {
                tables.unmap_range(range(0, pages * PAGE), KEEP, &mut notes)
            })
            .unwrap_err();
            let refused = Fault::Refused { call: Call::MmuUpdate, errno: Errno::EINVAL };
            // The model refuses all further calls, so it also refuses the flush of the first part.
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
fn tables_that_xen_does_not_release_are_not_freed() {
    // Xen clears the entries of two tables and flushes, and then refuses to remap the first table.
    let xen = Xen::new(64);
    let (space, map) = mapped(&xen, 1024, false);
    let mut notes = Notes::new(&xen);
    xen.refuse_after.set(Some(3));
    let stopped = with(&xen, space, CONFIG, |mut tables| {
        tables.unmap_range(range(0, 2 * LARGE), Unmap::default(), &mut notes)
    })
    .unwrap_err();
    let refused = Fault::Refused { call: Call::Remap, errno: Errno::EINVAL };
    assert_eq!(stopped, Stopped { at: 2 * LARGE, why: Why::Mmu(refused), flushed: true });
    assert_eq!((notes.freed, notes.stuck), (0, 2));
    assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
}
