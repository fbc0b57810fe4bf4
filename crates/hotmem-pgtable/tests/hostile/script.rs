//! Runs a script of bytes, which determines the contents of tables and the operations on them.

use bitflags::Flags as _;
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    Aarch64, AtomicU64, Attributes, Batch, Change, CoveredTables, ENTRIES, Entry, Flush, Flusher,
    Format, Level, Native, Owner, PageTables, Riscv64, Run, Space, Table, Tables, Unmap, VirtRange,
    X86_64, find_entry, find_entry_from,
};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

/// The number of frames that can be tables. Frames with a number above `INITIAL_TABLES` become
/// tables on request.
const TABLES: u64 = 12;
const INITIAL_TABLES: u64 = 8;
/// The maximal number of links in a script: entries that a script makes to point to a table. The
/// number is small because a walk visits a table once for each path that leads to it.
const MAX_LINKS: usize = 12;
const MAX_OPERATIONS: usize = 24;

struct Frames {
    tables: Vec<Table>,
    /// Whether each frame is a table at present.
    is_table: RefCell<Vec<bool>>,
    flushes: Cell<usize>,
}

impl Tables for &Frames {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let index = usize::try_from(frame.number().checked_sub(1)?).ok()?;
        self.is_table
            .borrow()
            .get(index)
            .is_some_and(|&is_table| is_table)
            .then(|| &self.tables[index])
    }
}

impl Frames {
    /// Returns whether at most one entry points to each table. An entry that maps the frame of a table
    /// as a page counts as an entry that points to the table.
    fn are_a_tree<F: Format>(&self) -> bool {
        let mut has_entry = vec![false; self.tables.len()];
        has_entry[0] = true;
        let present = self.tables.iter().flatten().map(|word| word.load(Relaxed));
        let addresses = present.filter(|bits| bits & 1 != 0);
        let addresses = addresses.map(|bits| (bits & F::ADDRESS) << F::ADDRESS_SHIFT);
        let frames = addresses.filter_map(Pfn::containing).map(index);
        let mut tables = frames.filter(|&index| index < self.tables.len());
        tables.all(|index| !core::mem::replace(&mut has_entry[index], true))
    }
}

/// Counts the flushes of the frames.
struct FlushCounter<'a, F>(&'a Frames, PhantomData<F>);

impl<F: Format> Flusher for FlushCounter<'_, F> {
    type Format = F;

    fn flush(&mut self, _: Flush) {
        self.0.flushes.set(self.0.flushes.get() + 1);
    }

    fn publish(&mut self, _: VirtRange) {}
}

fn native<F: Format>(frames: &Frames) -> Native<&Frames, FlushCounter<'_, F>> {
    Native::new(frames, FlushCounter(frames, PhantomData))
}

/// A kernel that checks that unmapped pages lie in the range and arrive in the order of addresses,
/// and that tables are freed only after a flush.
struct Kernel<'a> {
    frames: &'a Frames,
    range: Option<VirtRange>,
    next_address: u64,
    new_tables: Vec<Pfn>,
    /// The number of flushes when the kernel was made.
    flushes_at_start: usize,
}

impl<F: Format> Owner<F> for Kernel<'_> {
    fn unmapped(&mut self, run: Run<F>) {
        let range = self.range.expect("pages arrive only while a range is being unmapped");
        assert!(
            self.next_address <= run.virt.start() && run.virt.last() <= range.last(),
            "{run:?}"
        );
        self.next_address = run.virt.last().saturating_add(1);
    }

    fn free_table(&mut self, table: Pfn) {
        assert!(
            self.frames.flushes.get() > self.flushes_at_start || self.new_tables.contains(&table)
        );
        if let Some(is_table) = self.frames.is_table.borrow_mut().get_mut(index(table)) {
            *is_table = false;
        }
    }

    fn new_table(&mut self) -> Option<Pfn> {
        let mut is_table = self.frames.is_table.borrow_mut();
        let free = is_table.iter().position(|is_table| !is_table)?;
        is_table[free] = true;
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
    let Some((&options, script)) = script.split_first() else { return };
    let choose = |roots: [Level; 2]| roots[usize::from(options & 1)];
    match options >> 2 & 3 {
        0 | 1 => run_in::<X86_64>(choose([Level::L4, Level::L5]), options, script),
        2 => run_in::<Aarch64>(choose([Level::L4, Level::L3]), options, script),
        _ => run_in::<Riscv64>(choose([Level::L3, Level::L5]), options, script),
    }
}

fn run_in<F: Format>(root_level: Level, options: u8, script: &[u8]) {
    let table = |_| -> Table { std::array::from_fn(|_| AtomicU64::new(0)) };
    let frames = Frames {
        tables: (0..TABLES).map(table).collect(),
        is_table: RefCell::new((0..TABLES).map(|table| table < INITIAL_TABLES).collect()),
        flushes: Cell::new(0),
    };
    let space = Space::<F>::new(Pfn::new(1).expect("small"), root_level);
    let upper_half = options & 16 != 0;
    let space = if upper_half { space.in_half_of(u64::MAX) } else { space };
    let mut batch = Box::new(Batch::new());
    let mut links = 0;
    for record in script.as_chunks::<12>().0.iter().take(MAX_OPERATIONS + MAX_LINKS) {
        let [op, table, entry, target, value @ ..] = *record;
        let operands = [table, entry, target];
        let value = u64::from_le_bytes(value);
        let (table_number, entry_number) = (usize::from(table), usize::from(entry));
        let table = &frames.tables[table_number % frames.tables.len()];
        let entry = &table[(entry_number | table_number << 3 & 0x100) % ENTRIES];
        let size = F::size_flags(Level::L2);
        let flags = Entry::<F>::from_bits(value).flags();
        match op % 10 {
            0 => entry.store(value & !1, Relaxed),
            1 => entry.store(Entry::<F>::from_bits(value | 1).with(size).bits(), Relaxed),
            link @ (2 | 3) if links < MAX_LINKS => {
                // The script chooses the target of operation 2: any table, or one of two frames
                // that are never tables. So two links may point to the same table. The targets of
                // operation 3 are the tables in the order of their numbers.
                let to =
                    if link == 2 { u64::from(target) % (TABLES + 2) } else { 1 + links as u64 };
                let to = Pfn::new(1 + to).expect("small");
                entry.store(Entry::<F>::link(to).with(flags.difference(size)).bits(), Relaxed);
                links += 1;
            }
            2 | 3 => {}
            op => operate(op, operands, value, &frames, space, &mut batch),
        }
    }
    let is_upper = upper_half && !F::SPANS_BOTH_HALVES;
    let (lowest, bytes) = if is_upper { (0xffff << 48, 1 << 48) } else { (0, 1 << 56) };
    let mut kernel = kernel(&frames, VirtRange::new(lowest, Bytes(bytes)).ok());
    if options & 2 != 0 {
        let is_tree = frames.are_a_tree::<F>();
        let torn_down = PageTables::new(native(&frames), space, &mut batch).teardown(&mut kernel);
        let is_unchanged =
            kernel.next_address == lowest && frames.flushes.get() == kernel.flushes_at_start;
        assert!(!is_tree || torn_down.is_ok() || is_unchanged, "{torn_down:?}");
    }
}

fn kernel(frames: &Frames, range: Option<VirtRange>) -> Kernel<'_> {
    let next_address = range.map_or(0, VirtRange::start);
    Kernel {
        frames,
        range,
        next_address,
        new_tables: Vec::new(),
        flushes_at_start: frames.flushes.get(),
    }
}

fn operate<F: Format>(
    op: u8,
    [switches, scale, count]: [u8; 3],
    value: u64,
    frames: &Frames,
    space: Space<F>,
    batch: &mut Batch<F>,
) {
    // If bit 0 of `switches` is clear, the start is canonical and aligned; if bit 1 is clear, the
    // length is aligned.
    let shift = 64 - (space.root_level as u32 * 9 + 12);
    let start = if switches & 1 == 0 {
        F::address_at(value & (u64::MAX >> shift), 1 << (64 - shift), space.half) & !0xfff
    } else {
        value
    };
    let len =
        Bytes(((1 + u64::from(count)) << (scale % 48)) & !(u64::from(switches & 2 == 0) * 0xfff));
    let Ok(range) = VirtRange::new(start, len) else { return };
    let flags = F::Flags::from_bits_truncate(value.rotate_left(u32::from(scale)));
    let native = native::<F>(frames);
    let entry_before = find_entry(&native, space, start);
    for lowest in [Level::L1, Level::L2, Level::L3, Level::L4, Level::L5] {
        if let (Ok(located), Ok(above)) =
            (entry_before, find_entry_from(&native, space, start, lowest))
        {
            assert_eq!(above.level, located.level.max(lowest).min(space.root_level));
            assert!(above.level > located.level || above == located);
        }
    }
    let mut tables = PageTables::new(native, space, batch);
    let mut kernel = kernel(frames, Some(range));
    match op {
        4 | 8 => {
            let covered = [CoveredTables::Free, CoveredTables::Keep, CoveredTables::Cheapest];
            let covered = covered[usize::from(switches >> 2) % 3];
            let options = Unmap {
                tables: covered,
                ignore_accessed_and_dirty: switches & 64 != 0,
                is_dying: switches & 128 != 0,
            };
            let is_tree = frames.are_a_tree::<F>();
            if let Err(stopped) = tables.unmap_range(range, options, &mut kernel) {
                assert!(stopped.is_flushed);
                // The owner has received no page at or above `stopped.address`.
                assert!(!is_tree || kernel.next_address <= stopped.address, "{stopped:?}");
            }
        }
        5 => {
            let writable = F::page_flags(Attributes::KERNEL_DATA, Level::L1)
                .difference(F::page_flags(Attributes::KERNEL_READ_ONLY, Level::L1));
            if let Ok(change) =
                Change::new(flags.difference(F::UNCHANGEABLE), writable.difference(F::UNCHANGEABLE))
            {
                let _ = tables.protect(range, change, &mut kernel);
            }
        }
        6 => {
            let level =
                [Level::L1, Level::L2, Level::L3, Level::L4][usize::from(switches >> 2) % 4];
            // Limit the length, because `map` stores an entry for each page of the run.
            let max = Bytes(level.entry_span().0 * 700);
            let Ok(virt) = VirtRange::new(start, Bytes(len.0.min(max.0))) else { return };
            let frame = Pfn::containing(value & !(level.entry_span().0 - 1)).unwrap_or(Pfn::ZERO);
            let entry = Entry::<F>::new(frame, flags).with_presence(true);
            let _ = tables.map(Run { virt, entry, level }, &mut kernel);
        }
        _ => {
            let pages = (0..u64::from(count)).map(|page| start.wrapping_add(page << (scale % 32)));
            let moved = tables.move_pages(pages, |moving| {
                for page in 0..usize::from(count) {
                    moving.place(page, Pfn::new(u64::from(scale) << 9).unwrap_or(Pfn::ZERO));
                }
            });
            if moved.is_err() {
                // The entry of the first address is unchanged.
                let native = self::native::<F>(frames);
                assert_eq!(find_entry(&native, space, start), entry_before);
            }
        }
    }
}
