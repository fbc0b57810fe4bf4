//! Models each operation while another processor writes to a mapped page. In every interleaving, if
//! the processor wrote, the entry that the operation cleared has Dirty set; and no write happens
//! after the flush.

mod machine;

use crate::x86_64::{Batch, Change, Entry, Flags, Run, Space};
use crate::{ENTRIES, Flush, Level, Native, Owner, PageTables, Split, Unmap, VirtRange, X86_64};
use hotmem_addr::{Bytes, Pfn};
use loom::sync::Arc;
use machine::{Machine, WRITABLE, pfn};
use std::sync::atomic::Ordering::Relaxed;

#[derive(Default)]
struct RecordingOwner {
    /// Whether each unmapped page at address 0 was dirty.
    dirty: Vec<bool>,
    /// The frame of the next new table.
    new_table: Option<Pfn>,
}

impl Owner<X86_64> for RecordingOwner {
    fn unmapped(&mut self, run: Run) {
        if run.virt.start() == 0 {
            self.dirty.push(run.is_dirty());
        }
    }

    fn free_table(&mut self, _: Pfn) {}

    fn new_table(&mut self) -> Option<Pfn> {
        self.new_table.take()
    }
}

/// Runs `operation` while another processor writes, and writes once more after it. Then `check`
/// checks the results: its last two arguments are whether the first and the second write happened.
fn race(
    entries: impl Fn() -> [Entry; 3] + Sync + Send + 'static,
    operation: impl Fn(
        &mut PageTables<'_, Native<&Machine, &mut dyn FnMut(Flush)>>,
        &mut RecordingOwner,
    ) + Sync
    + Send
    + 'static,
    check: impl Fn(&Machine, &RecordingOwner, bool, bool) + Sync + Send + 'static,
) {
    race_splitting(Split::ClearFirst, entries, operation, check);
}

fn race_splitting(
    split: Split,
    entries: impl Fn() -> [Entry; 3] + Sync + Send + 'static,
    operation: impl Fn(
        &mut PageTables<'_, Native<&Machine, &mut dyn FnMut(Flush)>>,
        &mut RecordingOwner,
    ) + Sync
    + Send
    + 'static,
    check: impl Fn(&Machine, &RecordingOwner, bool, bool) + Sync + Send + 'static,
) {
    loom::model(move || {
        let machine = Arc::new(Machine::new(entries()));
        let writer = {
            let machine = machine.clone();
            loom::thread::spawn(move || machine.write())
        };
        let mut owner = RecordingOwner { new_table: Some(pfn(2)), ..RecordingOwner::default() };
        let mut batch = Batch::new();
        let space = Space::new(pfn(1), Level::L2);
        // The flush waits for the end of the current walk. Later walks read the changed tables.
        let mut flush = |_: Flush| machine.flush();
        let flush: &mut dyn FnMut(Flush) = &mut flush;
        let native = Native::new(&*machine, flush).with_split(split);
        let mut tables = PageTables::new(native, space, &mut batch);
        operation(&mut tables, &mut owner);
        let wrote_later = machine.write();
        check(&machine, &owner, writer.join().unwrap(), wrote_later);
    });
}

fn page_range() -> VirtRange {
    VirtRange::new(0, Bytes(4096)).unwrap()
}

fn table_range() -> VirtRange {
    VirtRange::new(0, Bytes(4096 * ENTRIES as u64)).unwrap()
}

/// Returns the first entry of each of three tables that map a page of 4 KiB at address 0.
fn small_page() -> [Entry; 3] {
    let leaf = Entry::new(pfn(9), WRITABLE);
    [Entry::new(pfn(2), WRITABLE), leaf, Entry::EMPTY]
}

/// As [`small_page`], with Dirty set.
fn dirty_page() -> [Entry; 3] {
    small_page().map(|entry| if entry.is_empty() { entry } else { entry.with(Flags::DIRTY) })
}

/// As [`small_page`], with a large page in the first table.
fn large_page() -> [Entry; 3] {
    [Entry::new(pfn(8), WRITABLE | Flags::LARGE), Entry::EMPTY, Entry::EMPTY]
}

#[test]
fn an_unmapped_page_reports_every_write() {
    race(
        small_page,
        |tables, owner| tables.unmap_range(page_range(), Unmap::default(), owner).unwrap(),
        |_, owner, wrote, wrote_later| {
            assert_eq!((&owner.dirty[..], wrote_later), (&[wrote][..], false))
        },
    );
}

#[test]
#[should_panic(expected = "left == right")]
fn reading_an_entry_before_clearing_it_may_lose_dirty() {
    race(
        small_page,
        |tables, owner| {
            let options = Unmap { ignore_accessed_and_dirty: true, ..Unmap::default() };
            tables.unmap_range(page_range(), options, owner).unwrap();
        },
        |_, owner, wrote, wrote_later| {
            assert_eq!((&owner.dirty[..], wrote_later), (&[wrote][..], false))
        },
    );
}

#[test]
fn a_dirty_page_is_unmapped_and_reported_dirty() {
    race(
        dirty_page,
        |tables, owner| tables.unmap_range(page_range(), Unmap::default(), owner).unwrap(),
        |_, owner, _, wrote_later| {
            assert_eq!((&owner.dirty[..], wrote_later), (&[true][..], false))
        },
    );
}

#[test]
fn a_dirty_page_stays_dirty_when_it_is_protected() {
    race(
        dirty_page,
        |tables, owner| {
            let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
            tables.protect(page_range(), change, owner).unwrap();
        },
        |machine, _, _, wrote_later| {
            let entry = Entry::from_bits(machine.tables[1][0].load(Relaxed));
            assert_eq!((entry.flags().contains(Flags::ACCESSED_DIRTY), wrote_later), (true, false));
        },
    );
}

#[test]
fn an_unhooked_table_reports_every_write() {
    race(
        small_page,
        |tables, owner| tables.unmap_range(table_range(), Unmap::default(), owner).unwrap(),
        |_, owner, wrote, wrote_later| {
            assert_eq!((&owner.dirty[..], wrote_later), (&[wrote][..], false))
        },
    );
}

#[test]
fn a_protected_page_keeps_every_write() {
    race(
        small_page,
        |tables, owner| {
            let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
            tables.protect(page_range(), change, owner).unwrap();
        },
        |machine, _, wrote, wrote_later| {
            let entry = Entry::from_bits(machine.tables[1][0].load(Relaxed));
            assert_eq!((entry.flags().contains(Flags::DIRTY), wrote_later), (wrote, false));
        },
    );
}

#[test]
fn a_large_page_split_and_unmapped_in_part_reports_every_write() {
    race(
        large_page,
        |tables, owner| tables.unmap_range(page_range(), Unmap::default(), owner).unwrap(),
        |machine, owner, wrote, wrote_later| {
            assert_eq!((&owner.dirty[..], wrote_later), (&[wrote][..], false));
            let next = Entry::from_bits(machine.tables[1][1].load(Relaxed));
            assert_eq!(next.frame(Level::L1), Some(pfn(9)));
        },
    );
}

#[test]
fn a_split_large_page_is_never_in_a_tlb_in_two_sizes() {
    loom::model(|| {
        let machine = Arc::new(Machine::new(large_page()));
        let writer = {
            let machine = machine.clone();
            loom::thread::spawn(move || (0..2).for_each(|_| machine.read()))
        };
        let mut owner = RecordingOwner { new_table: Some(pfn(2)), ..RecordingOwner::default() };
        let mut batch = Batch::new();
        let space = Space::new(pfn(1), Level::L2);
        let native = Native::new(&*machine, |_: Flush| machine.flush());
        let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
        PageTables::new(native, space, &mut batch)
            .protect(page_range(), change, &mut owner)
            .unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn a_large_page_split_in_place_and_unmapped_in_part_reports_every_write() {
    race_splitting(
        Split::InPlace,
        large_page,
        |tables, owner| tables.unmap_range(page_range(), Unmap::default(), owner).unwrap(),
        |_, owner, wrote, wrote_later| {
            assert_eq!((&owner.dirty[..], wrote_later), (&[wrote][..], false))
        },
    );
}

#[test]
fn a_table_unhooked_from_both_roots_reports_every_write_of_user_mode() {
    loom::model(|| {
        let [root, leaf, _] = small_page();
        let machine = Arc::new(Machine::new([root, leaf, root]));
        let user = 2;
        let writer = {
            let machine = machine.clone();
            loom::thread::spawn(move || machine.write_from(user))
        };
        let mut owner = RecordingOwner::default();
        let mut batch = Batch::new();
        let space = Space::new(pfn(1), Level::L2).with_user_root(pfn(3));
        let native = Native::new(&*machine, |_: Flush| machine.flush());
        PageTables::new(native, space, &mut batch)
            .unmap_range(table_range(), Unmap::default(), &mut owner)
            .unwrap();
        let wrote_later = machine.write_from(user);
        let wrote = writer.join().unwrap();
        assert_eq!((&owner.dirty[..], wrote_later), (&[wrote][..], false));
    });
}

/// Moves the page to another frame, by `move_page`, while another processor writes. The new
/// frame must have all writes, and the page must be dirty if and only if it was written.
fn race_move(
    move_page: impl Fn(&Machine, PageTables<'_, Native<&Machine, &mut dyn FnMut(Flush)>>)
    + Sync
    + Send
    + 'static,
) {
    loom::model(move || {
        let machine = Arc::new(Machine::new(small_page()));
        let writer = {
            let machine = machine.clone();
            loom::thread::spawn(move || machine.write())
        };
        let mut batch = Batch::new();
        let space = Space::new(pfn(1), Level::L2);
        let mut flush = |_: Flush| machine.flush();
        let flush: &mut dyn FnMut(Flush) = &mut flush;
        let tables = PageTables::new(Native::new(&*machine, flush), space, &mut batch);
        move_page(&machine, tables);
        let wrote = writer.join().unwrap();
        let entry = machine.l1_entry();
        assert_eq!(entry.frame(Level::L1), Some(pfn(10)));
        assert_eq!(entry.flags().contains(Flags::DIRTY), wrote);
        assert!(machine.write());
        let written = machine.page(pfn(10)).load(loom::sync::atomic::Ordering::Relaxed);
        assert_eq!(written, u64::from(wrote) + 1);
    });
}

fn copy(machine: &Machine) {
    let order = loom::sync::atomic::Ordering::Relaxed;
    machine.page(pfn(10)).store(machine.page(pfn(9)).load(order), order);
}

#[test]
fn a_moved_page_keeps_every_write() {
    race_move(|machine, tables| {
        let moved = tables.move_pages([0], |moving| {
            copy(machine);
            moving.place(0, pfn(10))
        });
        assert_eq!(moved, Ok(true));
    });
}

#[test]
#[should_panic(expected = "left == right")]
fn a_page_copied_before_it_is_unmapped_loses_writes() {
    race_move(|machine, tables| {
        copy(machine);
        assert_eq!(tables.move_pages([0], |moving| moving.place(0, pfn(10))), Ok(true));
    });
}

#[test]
fn a_new_table_is_seen_empty() {
    let uncleared_table = || {
        // The page is dirty already, so a processor need not change the entry.
        let leaf = Entry::new(pfn(8), WRITABLE | Flags::DIRTY);
        [Entry::EMPTY, leaf, Entry::EMPTY]
    };
    race(
        uncleared_table,
        |tables, owner| {
            let run =
                Run { virt: page_range(), entry: Entry::new(pfn(9), WRITABLE), level: Level::L1 };
            tables.map(run, owner).unwrap();
        },
        |machine, _, wrote, wrote_later| {
            let order = loom::sync::atomic::Ordering::Relaxed;
            assert!(wrote_later);
            assert_eq!(
                machine.page(pfn(8)).load(order),
                0,
                "the processor used the previous contents of the table's frame"
            );
            assert_eq!(machine.page(pfn(9)).load(order), u64::from(wrote) + 1);
        },
    );
}
