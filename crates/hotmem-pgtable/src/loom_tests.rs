//! Models each operation while another processor writes to a mapped page. In every interleaving, if
//! the processor wrote, the entry that the operation cleared has Dirty set; and no write happens
//! after the flush.

mod machine;

use crate::{
    Batch, Change, ENTRIES, Entry, Flags, Flush, Level, Native, Owner, PageTables, Run, Space,
    Split, Unmap, VirtRange,
};
use hotmem_addr::{Bytes, Pfn};
use loom::sync::Arc;
use machine::{Machine, WRITABLE, pfn};
use std::sync::atomic::Ordering::Relaxed;

#[derive(Default)]
struct Seen {
    dirty: Vec<bool>,
    new: Option<Pfn>,
}

impl Owner for Seen {
    fn unmapped(&mut self, run: Run) {
        if run.virt.start() == 0 {
            self.dirty.push(run.is_dirty());
        }
    }

    fn free_table(&mut self, _: Pfn) {}

    fn new_table(&mut self) -> Option<Pfn> {
        self.new.take()
    }
}

/// Runs `operation` while another processor writes, and writes once more after it. Then `agree`
/// checks the results: its last two arguments are whether the first and the second write happened.
fn race(
    entries: impl Fn() -> [Entry; 3] + Sync + Send + 'static,
    operation: impl Fn(&mut PageTables<'_, Native<&Machine, &mut dyn FnMut(Flush)>>, &mut Seen)
    + Sync
    + Send
    + 'static,
    agree: impl Fn(&Machine, &Seen, bool, bool) + Sync + Send + 'static,
) {
    race_splitting(Split::ClearFirst, entries, operation, agree);
}

fn race_splitting(
    split: Split,
    entries: impl Fn() -> [Entry; 3] + Sync + Send + 'static,
    operation: impl Fn(&mut PageTables<'_, Native<&Machine, &mut dyn FnMut(Flush)>>, &mut Seen)
    + Sync
    + Send
    + 'static,
    agree: impl Fn(&Machine, &Seen, bool, bool) + Sync + Send + 'static,
) {
    loom::model(move || {
        let machine = Arc::new(Machine::new(entries()));
        let other = {
            let machine = machine.clone();
            loom::thread::spawn(move || machine.write())
        };
        let mut seen = Seen { new: Some(pfn(2)), ..Seen::default() };
        let mut batch = Batch::new();
        let space = Space::new(pfn(1), Level::L2);
        // The flush waits for the end of the current walk. Later walks read the changed tables.
        let mut flush = |_: Flush| machine.flush();
        let flush: &mut dyn FnMut(Flush) = &mut flush;
        let native = Native::new(&*machine, flush).with_split(split);
        let mut tables = PageTables::new(native, space, &mut batch);
        operation(&mut tables, &mut seen);
        let after = machine.write();
        agree(&machine, &seen, other.join().unwrap(), after);
    });
}

fn page() -> VirtRange {
    VirtRange::new(0, Bytes(4096)).unwrap()
}

fn table() -> VirtRange {
    VirtRange::new(0, Bytes(4096 * ENTRIES as u64)).unwrap()
}

fn small() -> [Entry; 3] {
    let leaf = Entry::new(pfn(9), WRITABLE);
    [Entry::new(pfn(2), WRITABLE), leaf, Entry::EMPTY]
}

fn dirty() -> [Entry; 3] {
    small().map(|entry| if entry.is_empty() { entry } else { entry.with(Flags::DIRTY) })
}

fn large() -> [Entry; 3] {
    [Entry::new(pfn(8), WRITABLE | Flags::LARGE), Entry::EMPTY, Entry::EMPTY]
}

#[test]
fn an_unmapped_page_reports_every_write() {
    race(
        small,
        |tables, seen| tables.unmap_range(page(), Unmap::default(), seen).unwrap(),
        |_, seen, wrote, after| assert_eq!((&seen.dirty[..], after), (&[wrote][..], false)),
    );
}

#[test]
#[should_panic(expected = "left == right")]
fn reading_an_entry_before_clearing_it_may_lose_dirty() {
    race(
        small,
        |tables, seen| {
            let options = Unmap { ignore_accessed_and_dirty: true, ..Unmap::default() };
            tables.unmap_range(page(), options, seen).unwrap();
        },
        |_, seen, wrote, after| assert_eq!((&seen.dirty[..], after), (&[wrote][..], false)),
    );
}

#[test]
fn a_dirty_page_is_unmapped_and_reported_dirty() {
    race(
        dirty,
        |tables, seen| tables.unmap_range(page(), Unmap::default(), seen).unwrap(),
        |_, seen, _, after| assert_eq!((&seen.dirty[..], after), (&[true][..], false)),
    );
}

#[test]
fn a_dirty_page_stays_dirty_when_it_is_protected() {
    race(
        dirty,
        |tables, seen| {
            let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
            tables.protect(page(), change, seen).unwrap();
        },
        |machine, _, _, after| {
            let entry = Entry::from_bits(machine.tables[1][0].load(Relaxed));
            assert_eq!((entry.flags().contains(Flags::ACCESSED_DIRTY), after), (true, false));
        },
    );
}

#[test]
fn an_unhooked_table_reports_every_write() {
    race(
        small,
        |tables, seen| tables.unmap_range(table(), Unmap::default(), seen).unwrap(),
        |_, seen, wrote, after| assert_eq!((&seen.dirty[..], after), (&[wrote][..], false)),
    );
}

#[test]
fn a_protected_page_keeps_every_write() {
    race(
        small,
        |tables, seen| {
            let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
            tables.protect(page(), change, seen).unwrap();
        },
        |machine, _, wrote, after| {
            let entry = Entry::from_bits(machine.tables[1][0].load(Relaxed));
            assert_eq!((entry.flags().contains(Flags::DIRTY), after), (wrote, false));
        },
    );
}

#[test]
fn a_large_page_split_and_unmapped_in_part_reports_every_write() {
    race(
        large,
        |tables, seen| tables.unmap_range(page(), Unmap::default(), seen).unwrap(),
        |machine, seen, wrote, after| {
            assert_eq!((&seen.dirty[..], after), (&[wrote][..], false));
            let next = Entry::from_bits(machine.tables[1][1].load(Relaxed));
            assert_eq!(next.frame(Level::L1), Some(pfn(9)));
        },
    );
}

#[test]
fn a_split_large_page_is_never_in_a_tlb_in_two_sizes() {
    loom::model(|| {
        let machine = Arc::new(Machine::new(large()));
        let other = {
            let machine = machine.clone();
            loom::thread::spawn(move || (0..2).for_each(|_| machine.read()))
        };
        let mut seen = Seen { new: Some(pfn(2)), ..Seen::default() };
        let mut batch = Batch::new();
        let space = Space::new(pfn(1), Level::L2);
        let native = Native::new(&*machine, |_: Flush| machine.flush());
        let change = Change::new(Flags::NO_EXECUTE, Flags::WRITABLE).unwrap();
        PageTables::new(native, space, &mut batch).protect(page(), change, &mut seen).unwrap();
        other.join().unwrap();
    });
}

#[test]
fn a_large_page_split_in_place_and_unmapped_in_part_reports_every_write() {
    race_splitting(
        Split::InPlace,
        large,
        |tables, seen| tables.unmap_range(page(), Unmap::default(), seen).unwrap(),
        |_, seen, wrote, after| assert_eq!((&seen.dirty[..], after), (&[wrote][..], false)),
    );
}

#[test]
fn a_table_unhooked_from_both_roots_reports_every_write_of_user_mode() {
    loom::model(|| {
        let [root, leaf, _] = small();
        let machine = Arc::new(Machine::new([root, leaf, root]));
        let user = 2;
        let other = {
            let machine = machine.clone();
            loom::thread::spawn(move || machine.write_from(user))
        };
        let mut seen = Seen::default();
        let mut batch = Batch::new();
        let space = Space::new(pfn(1), Level::L2).with_user_root(pfn(3));
        let native = Native::new(&*machine, |_: Flush| machine.flush());
        PageTables::new(native, space, &mut batch)
            .unmap_range(table(), Unmap::default(), &mut seen)
            .unwrap();
        let after = machine.write_from(user);
        let wrote = other.join().unwrap();
        assert_eq!((&seen.dirty[..], after), (&[wrote][..], false));
    });
}

/// Moves the page to another frame, as `order` does it, while another processor writes. The new
/// frame must have all writes, and the page must be dirty if and only if it was written.
fn race_move(
    order: impl Fn(&Machine, PageTables<'_, Native<&Machine, &mut dyn FnMut(Flush)>>)
    + Sync
    + Send
    + 'static,
) {
    loom::model(move || {
        let machine = Arc::new(Machine::new(small()));
        let other = {
            let machine = machine.clone();
            loom::thread::spawn(move || machine.write())
        };
        let mut batch = Batch::new();
        let space = Space::new(pfn(1), Level::L2);
        let mut flush = |_: Flush| machine.flush();
        let flush: &mut dyn FnMut(Flush) = &mut flush;
        let tables = PageTables::new(Native::new(&*machine, flush), space, &mut batch);
        order(&machine, tables);
        let wrote = other.join().unwrap();
        let entry = machine.entry();
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
    let rubbish = || {
        // The page is dirty already, so a processor need not change the entry.
        let leaf = Entry::new(pfn(8), WRITABLE | Flags::DIRTY);
        [Entry::EMPTY, leaf, Entry::EMPTY]
    };
    race(
        rubbish,
        |tables, seen| {
            let run = Run { virt: page(), entry: Entry::new(pfn(9), WRITABLE), level: Level::L1 };
            tables.map(run, seen).unwrap();
        },
        |machine, _, wrote, after| {
            let order = loom::sync::atomic::Ordering::Relaxed;
            assert!(after);
            assert_eq!(
                machine.page(pfn(8)).load(order),
                0,
                "the processor used the previous contents of the table's frame"
            );
            assert_eq!(machine.page(pfn(9)).load(order), u64::from(wrote) + 1);
        },
    );
}
