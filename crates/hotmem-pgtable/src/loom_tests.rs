//! Models each operation while another processor writes to a mapped page. In every interleaving, if
//! the processor wrote, the entry that the operation cleared has Dirty set; and no write happens
//! after the flush.

use crate::{
    AtomicU64, Batch, Change, ENTRIES, Entry, Flags, Flush, Kind, Level, Native, Owner, PageTables,
    Run, Space, Split, Table, Tables, Unmap, VirtRange,
};
use hotmem_addr::{Bytes, Pfn};
use loom::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A small machine: tables of eight entries in frames 1 to 3, and the pages that they map.
struct Machine {
    tables: [Table; 3],
    /// The number of writes to each of the frames 8 to 10.
    pages: [AtomicU64; 3],
    /// The other processor's TLB: the level of the page whose translation it caches. The processor
    /// holds the lock during an access, so that a flush waits for the end of the access.
    tlb: loom::sync::Mutex<Option<Level>>,
}

const WRITABLE: Flags = Flags::PRESENT.union(Flags::WRITABLE).union(Flags::ACCESSED);

fn pfn(number: u64) -> Pfn {
    Pfn::new(number).unwrap()
}

impl Machine {
    fn new(entries: [Entry; 3]) -> Machine {
        let table = |first: Entry| -> Table {
            std::array::from_fn(|index| AtomicU64::new(if index == 0 { first.bits() } else { 0 }))
        };
        let pages = std::array::from_fn(|_| AtomicU64::new(0));
        Machine { tables: entries.map(table), pages, tlb: loom::sync::Mutex::new(None) }
    }

    fn page(&self, frame: Pfn) -> &AtomicU64 {
        let index = usize::try_from(frame.number()).unwrap() - 8;
        &self.pages[index]
    }

    fn entry(&self) -> Entry {
        Entry::from_bits(self.tables[1][0].load(loom::sync::atomic::Ordering::Relaxed))
    }

    /// Writes to page 0 as a processor does: walks the tables, sets Dirty in the page's entry by a
    /// compare-exchange if it is clear, and increments the page's counter. If the compare-exchange
    /// fails, walks the tables again. Returns whether it wrote.
    fn write(&self) -> bool {
        self.write_from(0)
    }

    /// Writes as [`write`](Self::write) does, by the root with this index in `tables`.
    fn write_from(&self, root: usize) -> bool {
        let _access = self.tlb.lock().unwrap();
        let mut level = Level::L2;
        let mut table = &self.tables[root];
        loop {
            let bits = table[0].load(loom::sync::atomic::Ordering::Acquire);
            let entry = Entry::from_bits(bits);
            match entry.kind(level) {
                Kind::Table(below) => {
                    table = Tables::table(&self, below).unwrap();
                    level = level.below().unwrap();
                }
                Kind::Page if entry.flags().contains(Flags::WRITABLE) => {
                    let dirty = entry.with(Flags::DIRTY).bits();
                    let order = loom::sync::atomic::Ordering::Relaxed;
                    if bits == dirty || table[0].compare_exchange(bits, dirty, order, order).is_ok()
                    {
                        let page = self.page(entry.frame(level).unwrap());
                        page.store(page.load(order) + 1, order);
                        return true;
                    }
                    (level, table) = (Level::L2, &self.tables[root]);
                }
                _ => return false,
            }
        }
    }
}

impl Machine {
    /// Reads page 0. The TLB caches the translation. It must not already cache a translation of
    /// another page size.
    fn read(&self) {
        let mut cached_level = self.tlb.lock().unwrap();
        let (mut level, mut table) = (Level::L2, &self.tables[0]);
        loop {
            let entry = Entry::from_bits(table[0].load(loom::sync::atomic::Ordering::Acquire));
            match entry.kind(level) {
                Kind::Table(below) => {
                    table = Tables::table(&self, below).unwrap();
                    level = level.below().unwrap();
                }
                Kind::Page => break,
                _ => return,
            }
        }
        assert_eq!(
            *cached_level.get_or_insert(level),
            level,
            "the TLB caches pages of two sizes for one address"
        );
    }

    /// Flushes the TLB, as the handler of a flush interrupt does.
    fn flush(&self) {
        *self.tlb.lock().unwrap() = None;
    }
}

impl Tables for &Machine {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let index = usize::try_from(frame.number()).ok()?.checked_sub(1)?;
        self.tables.get(index)
    }
}

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
    race_splitting(Split::OutOfSight, entries, operation, agree);
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
        let native = Native::new(&*machine, flush).splitting(split);
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
            let options = Unmap { ignore_used: true, ..Unmap::default() };
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
            assert_eq!((entry.flags().contains(Flags::USED), after), (true, false));
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
        let found = machine.page(pfn(10)).load(loom::sync::atomic::Ordering::Relaxed);
        assert_eq!(found, u64::from(wrote) + 1);
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
