//! Runs a script of bytes, which determines the contents of tables and the operations on them.

use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    AtomicU64, Batch, Change, Covered, ENTRIES, Entry, Flags, Flush, Level, Native, Owner,
    PageTables, Run, Space, Table, Tables, Unmap, VirtRange, slot_at, slot_from,
};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;

/// The number of frames that can be tables. Frames with a number above `INITIAL_TABLES` become
/// tables on request.
const TABLES: u64 = 12;
const INITIAL_TABLES: u64 = 8;
/// The maximal number of links in a script. The number is small because a walk visits a table once
/// for each path that leads to it.
const LINKS: usize = 12;
const OPERATIONS: usize = 24;

struct Frames {
    tables: Vec<Table>,
    owned: RefCell<Vec<bool>>,
    flushes: Cell<usize>,
}

impl Tables for &Frames {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let index = usize::try_from(frame.number().checked_sub(1)?).ok()?;
        self.owned.borrow().get(index).is_some_and(|&owned| owned).then(|| &self.tables[index])
    }
}

impl Frames {
    /// Returns whether at most one entry points to each table, even if the entry is one of a page.
    fn are_a_tree(&self) -> bool {
        let mut has_entry = vec![false; self.tables.len()];
        has_entry[0] = true;
        let entries = self.tables.iter().flatten().map(|word| Entry::from_bits(word.load(Relaxed)));
        let frames = entries.filter_map(|entry| entry.frame(Level::L1)).map(index);
        let mut tables = frames.filter(|&index| index < self.tables.len());
        tables.all(|index| !core::mem::replace(&mut has_entry[index], true))
    }
}

/// A kernel that checks that reports lie in the range and are in the order of addresses, and that
/// tables are freed only after a flush.
struct Kernel<'a> {
    frames: &'a Frames,
    range: Option<VirtRange>,
    next_address: u64,
    new_tables: Vec<Pfn>,
    flushes: usize,
}

impl Owner for Kernel<'_> {
    fn unmapped(&mut self, run: Run) {
        let range = self.range.expect("pages are reported only while a range is being unmapped");
        assert!(
            self.next_address <= run.virt.start() && run.virt.last() <= range.last(),
            "{run:?}"
        );
        self.next_address = run.virt.last().saturating_add(1);
    }

    fn free_table(&mut self, table: Pfn) {
        assert!(self.frames.flushes.get() > self.flushes || self.new_tables.contains(&table));
        if let Some(owned) = self.frames.owned.borrow_mut().get_mut(index(table)) {
            *owned = false;
        }
    }

    fn new_table(&mut self) -> Option<Pfn> {
        let mut owned = self.frames.owned.borrow_mut();
        let free = owned.iter().position(|owned| !owned)?;
        owned[free] = true;
        let table = Pfn::new(free as u64 + 1)?;
        self.new_tables.push(table);
        Some(table)
    }
}

fn index(table: Pfn) -> usize {
    // The frame is not a table if `usize` cannot hold its number.
    usize::try_from(table.number()).map_or(usize::MAX, |number| number.wrapping_sub(1))
}

/// Runs a script.
pub(crate) fn run(script: &[u8]) {
    let Some((&first, script)) = script.split_first() else { return };
    let levels = if first & 1 == 0 { Level::L4 } else { Level::L5 };
    let table = |_| -> Table { std::array::from_fn(|_| AtomicU64::new(0)) };
    let frames = Frames {
        tables: (0..TABLES).map(table).collect(),
        owned: RefCell::new((0..TABLES).map(|table| table < INITIAL_TABLES).collect()),
        flushes: Cell::new(0),
    };
    let space = Space::new(Pfn::new(1).expect("small"), levels);
    let mut batch = Box::new(Batch::new());
    let mut links = 0;
    for record in script.as_chunks::<12>().0.iter().take(OPERATIONS + LINKS) {
        let [op, a, b, c, value @ ..] = *record;
        let value = u64::from_le_bytes(value);
        let word = &frames.tables[usize::from(a) % frames.tables.len()];
        let word = &word[(usize::from(b) | usize::from(a) << 3 & 0x100) % ENTRIES];
        let flags = Flags::from_bits_retain(value & !0x000f_ffff_ffff_f000);
        match op % 10 {
            0 => word.store(value & !1, Relaxed),
            1 => word.store(value | Flags::LARGE.bits() | 1, Relaxed),
            link @ (2 | 3) if links < LINKS => {
                // Operation 2 makes a link to any table or to one of two frames that are not
                // tables, so that two links may point to one table. Operation 3 makes links to the
                // tables in order.
                let to = if link == 2 { u64::from(c) % (TABLES + 2) } else { 1 + links as u64 };
                let to = Pfn::new(1 + to).expect("small");
                word.store(Entry::link(to).with(flags - Flags::LARGE).bits(), Relaxed);
                links += 1;
            }
            2 | 3 => {}
            op => operate(op, [a, b, c], value, &frames, space, &mut batch),
        }
    }
    let mut kernel = kernel(&frames, VirtRange::new(0, Bytes(1 << 56)).ok());
    if first & 2 != 0 {
        let native = Native::new(&frames, |_: Flush| frames.flushes.set(frames.flushes.get() + 1));
        let is_tree = frames.are_a_tree();
        let torn_down = PageTables::new(native, space, &mut batch).teardown(&mut kernel);
        let is_unchanged = kernel.next_address == 0 && frames.flushes.get() == kernel.flushes;
        assert!(!is_tree || torn_down.is_ok() || is_unchanged, "{torn_down:?}");
    }
}

fn kernel(frames: &Frames, range: Option<VirtRange>) -> Kernel<'_> {
    let next_address = range.map_or(0, VirtRange::start);
    Kernel { frames, range, next_address, new_tables: Vec::new(), flushes: frames.flushes.get() }
}

fn operate(
    op: u8,
    [a, b, c]: [u8; 3],
    value: u64,
    frames: &Frames,
    space: Space,
    batch: &mut Batch,
) {
    // If bit 0 of `a` is clear, the start is canonical and aligned; if bit 1 is clear, the length
    // is aligned.
    let shift = 64 - (space.levels as u32 * 9 + 12);
    let start = if a & 1 == 0 {
        ((value << shift).cast_signed() >> shift).cast_unsigned() & !0xfff
    } else {
        value
    };
    let len = Bytes(((1 + u64::from(c)) << (b % 48)) & !(u64::from(a & 2 == 0) * 0xfff));
    let Ok(range) = VirtRange::new(start, len) else { return };
    let flags = Flags::from_bits_truncate(value.rotate_left(u32::from(b)));
    let native = Native::new(frames, |_: Flush| frames.flushes.set(frames.flushes.get() + 1));
    let seen = slot_at(&native, space, start);
    for lowest in [Level::L1, Level::L2, Level::L3, Level::L4, Level::L5] {
        if let (Ok(seen), Ok(above)) = (seen, slot_from(&native, space, start, lowest)) {
            assert_eq!(above.level, seen.level.max(lowest).min(space.levels));
            assert!(above.level > seen.level || above == seen);
        }
    }
    let mut tables = PageTables::new(native, space, batch);
    let mut kernel = kernel(frames, Some(range));
    match op {
        4 | 8 => {
            let covered = [Covered::Free, Covered::Keep, Covered::Cheapest];
            let covered = covered[usize::from(a >> 2) % 3];
            let options = Unmap { tables: covered, ignore_used: a & 64 != 0, dying: a & 128 != 0 };
            let is_tree = frames.are_a_tree();
            if let Err(stopped) = tables.unmap_range(range, options, &mut kernel) {
                assert!(stopped.flushed);
                // No page from `stopped.at` on was reported.
                assert!(!is_tree || kernel.next_address <= stopped.at, "{stopped:?}");
            }
        }
        5 => {
            if let Ok(change) = Change::new(flags - Flags::USED, Flags::WRITABLE) {
                let _ = tables.protect(range, change, &mut kernel);
            }
        }
        6 => {
            let level = [Level::L1, Level::L2, Level::L3, Level::L4][usize::from(a >> 2) % 4];
            // The length is limited, because each page of the run costs a store.
            let most = Bytes(level.entry_bytes().0 * 700);
            let Ok(virt) = VirtRange::new(start, Bytes(len.0.min(most.0))) else { return };
            let frame = Pfn::containing(value & !(level.entry_bytes().0 - 1)).unwrap_or(Pfn::ZERO);
            let entry = Entry::new(frame, flags | Flags::PRESENT);
            let _ = tables.map(Run { virt, entry, level }, &mut kernel);
        }
        _ => {
            let pages = (0..u64::from(c)).map(|page| start.wrapping_add(page << (b % 32)));
            let moved = tables.move_pages(pages, |moving| {
                for page in 0..usize::from(c) {
                    moving.place(page, Pfn::new(u64::from(b) << 9).unwrap_or(Pfn::ZERO));
                }
            });
            if moved.is_err() {
                // The page at the first address is as it was.
                let native = Native::new(frames, |_: Flush| {});
                assert_eq!(slot_at(&native, space, start), seen);
            }
        }
    }
}
