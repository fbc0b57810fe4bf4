//! Provides an arena of frames for page tables, an owner that records its calls, and a naive map
//! without tables.
#![allow(dead_code, reason = "each test uses a part of this module")]

use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::x86_64::{Entry, Flags, Run, Space};
use hotmem_pgtable::{
    AtomicU64, CoveredTables, ENTRIES, Flush, Kind, Level, Native, Owner, Table, Tables, Unmap,
    VirtRange, X86_64, entry_at,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// The contents of a freed table. An operation that reads them finds a page at an address that no
/// test has mapped.
const FREED_WORD: u64 = 0xdead_dead_dead_d001;

/// The frames from number 1 on. A frame is a table while its number is in `owned_tables`.
pub(crate) struct Arena {
    frames: Vec<Table>,
    owned_tables: RefCell<BTreeSet<usize>>,
    pub(crate) flushes: RefCell<Vec<Flush>>,
}

impl Arena {
    pub(crate) fn new(frames: usize) -> Arena {
        let table = || std::array::from_fn(|_| AtomicU64::new(FREED_WORD));
        Arena {
            frames: (0..=frames).map(|_| table()).collect(),
            owned_tables: RefCell::default(),
            flushes: RefCell::default(),
        }
    }

    /// Makes an empty table, if a frame is free.
    pub(crate) fn table(&self) -> Option<Pfn> {
        let pfn = self.uncleared_table()?;
        self.words(pfn).iter().for_each(|word| word.store(0, Relaxed));
        Some(pfn)
    }

    /// Makes a table with the contents of a freed table, if a frame is free.
    fn uncleared_table(&self) -> Option<Pfn> {
        let mut owned = self.owned_tables.borrow_mut();
        let frame = (1..self.frames.len()).find(|frame| !owned.contains(frame))?;
        owned.insert(frame);
        Some(Pfn::new(frame as u64).unwrap())
    }

    pub(crate) fn free(&self, table: Pfn) {
        assert!(
            self.owned_tables.borrow_mut().remove(&number(table)),
            "a frame was freed that is not a table in use"
        );
        self.words(table).iter().for_each(|word| word.store(FREED_WORD, Relaxed));
    }

    pub(crate) fn table_count(&self) -> usize {
        self.owned_tables.borrow().len()
    }

    /// Returns the table in a frame, if the frame is a table.
    pub(crate) fn table_at(&self, frame: Pfn) -> Option<&Table> {
        let frame = usize::try_from(frame.number()).ok()?;
        self.owned_tables.borrow().contains(&frame).then(|| &self.frames[frame])
    }

    pub(crate) fn words(&self, table: Pfn) -> &Table {
        &self.frames[number(table)]
    }

    pub(crate) fn native(&self) -> Native<&Arena, impl FnMut(Flush)> {
        Native::new(self, |flush| self.flushes.borrow_mut().push(flush))
    }

    /// Stores an entry for an address at a level, and makes missing tables above it. Returns false
    /// if an entry on the way is in use.
    pub(crate) fn put_entry(&self, space: Space, virt: u64, level: Level, entry: Entry) -> bool {
        let (mut table, mut table_level) = (space.root, space.root_level);
        loop {
            let index =
                usize::try_from(virt / table_level.entry_span().0 % ENTRIES as u64).unwrap();
            let word = &self.words(table)[index];
            let found: Entry = entry_at(self.words(table), index);
            match (table_level == level, found.kind(table_level)) {
                (true, Kind::Empty) => {
                    word.store(entry.bits(), Relaxed);
                    self.share(space);
                    return true;
                }
                (false, Kind::Table(below)) => table = below,
                (false, Kind::Empty) => {
                    let below = self.table().expect("the arena has frames for all tables");
                    word.store(link(below).bits(), Relaxed);
                    table = below;
                }
                _ => return false,
            }
            table_level = table_level.below().expect("`level` is one of the space's levels");
        }
    }

    /// Copies the root's lower half into the user's root.
    fn share(&self, space: Space) {
        let Some(user) = space.user_root else { return };
        let words = self.words(space.root).iter().zip(self.words(user));
        words.take(ENTRIES / 2).for_each(|(word, copy)| copy.store(word.load(Relaxed), Relaxed));
    }

    /// Returns whether the user's root has the entries of the kernel's root in the lower half, and
    /// none in the upper half.
    pub(crate) fn is_shared(&self, space: Space) -> bool {
        let bits = |table, index| entry_at::<X86_64>(self.words(table), index).bits();
        space.user_root.is_none_or(|user| {
            let half = ENTRIES / 2;
            (0..half).all(|index| bits(space.root, index) == bits(user, index))
                && (half..ENTRIES).all(|index| bits(user, index) == 0)
        })
    }

    /// Returns the entries that map pages or hold data of the kernel, in the order of addresses.
    pub(crate) fn mappings(&self, space: Space) -> Vec<MappedRange> {
        let mut mappings = Vec::new();
        self.add_mappings(space, space.root, space.root_level, 0, &mut mappings);
        mappings
    }

    fn add_mappings(
        &self,
        space: Space,
        table: Pfn,
        level: Level,
        base: u64,
        mappings: &mut Vec<MappedRange>,
    ) {
        for index in 0..ENTRIES {
            let offset = base + index as u64 * level.entry_span().0;
            let entry = entry_at(self.words(table), index);
            match entry.kind(level) {
                Kind::Empty => {}
                Kind::Table(table) => {
                    self.add_mappings(space, table, level.below().unwrap(), offset, mappings);
                }
                _ => mappings.push(MappedRange::new(canonical(offset, space), level, entry)),
            }
        }
    }
}

impl Tables for &Arena {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.table_at(frame)
    }
}

pub(crate) const PAGE_BYTES: u64 = 4096;
pub(crate) const LARGE_PAGE_BYTES: u64 = 2 << 20;

pub(crate) fn pfn(number: u64) -> Pfn {
    Pfn::new(number).unwrap()
}

pub(crate) fn range(start: u64, bytes: u64) -> VirtRange {
    VirtRange::new(start, Bytes(bytes)).unwrap()
}

/// Returns the entry of a page of 4 KiB in frame 0x1000 + `number`.
pub(crate) fn page_entry(number: u64) -> Entry {
    Entry::new(pfn(0x1000 + number), Flags::PRESENT | Flags::WRITABLE | Flags::DIRTY)
}

/// Returns an address space in which pages 0 to `pages`, the end excluded, are mapped.
pub(crate) fn mapped_space(arena: &Arena, pages: u64) -> Space {
    let space = Space::new(arena.table().unwrap(), Level::L4);
    for number in 0..pages {
        assert!(arena.put_entry(space, number * PAGE_BYTES, Level::L1, page_entry(number)));
    }
    space
}

/// Unmaps and keeps all tables.
pub(crate) const KEEP: Unmap =
    Unmap { tables: CoveredTables::Keep, ignore_accessed_and_dirty: false, is_dying: false };

/// Returns the index of a frame. If `usize` cannot hold it, the result lies beyond the arena.
fn number(table: Pfn) -> usize {
    usize::try_from(table.number()).unwrap_or(usize::MAX)
}

pub(crate) fn link(table: Pfn) -> Entry {
    Entry::new(table, Flags::PRESENT | Flags::WRITABLE | Flags::USER)
}

pub(crate) fn canonical(offset: u64, space: Space) -> u64 {
    let span = space.root_level.table_span().0;
    if offset & (span / 2) != 0 { offset | !(span - 1) } else { offset }
}

/// A part of a map. `bits` does not say which size of page maps it, so that adjacent parts can be
/// joined and compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MappedRange {
    pub(crate) virt: u64,
    pub(crate) bytes: u64,
    /// The L1 entry of the first 4 KiB, or the data of the kernel in an entry that is not present.
    pub(crate) bits: u64,
}

impl MappedRange {
    pub(crate) fn new(virt: u64, level: Level, entry: Entry) -> MappedRange {
        let bytes = level.entry_span().0;
        let is_large = entry.is_present() && level != Level::L1;
        let large = if is_large { Flags::LARGE } else { Flags::empty() };
        MappedRange { virt, bytes, bits: entry.bits() & !large.bits() }
    }

    fn is_present(self) -> bool {
        self.bits & 1 != 0
    }

    /// Returns whether an address lies in the mapping, but is not its first one.
    fn contains_inside(&self, address: u64) -> bool {
        self.virt < address && address - self.virt < self.bytes
    }

    fn part(self, offset: u64, bytes: u64) -> MappedRange {
        MappedRange { virt: self.virt + offset, bytes, bits: self.bits + offset }
    }
}

/// Joins mappings that are consecutive in addresses and frames and have equal flags.
pub(crate) fn join_adjacent(mappings: &[MappedRange]) -> Vec<MappedRange> {
    let mut joined: Vec<MappedRange> = Vec::new();
    for mapping in mappings {
        match joined.last_mut() {
            Some(last)
                if last.is_present()
                    && last.virt + last.bytes == mapping.virt
                    && last.bits + last.bytes == mapping.bits =>
            {
                last.bytes += mapping.bytes;
            }
            _ => joined.push(*mapping),
        }
    }
    joined
}

/// A naive map: a list of mappings in the order of addresses.
#[derive(Clone, Default, Debug)]
pub(crate) struct NaiveTables(pub(crate) Vec<MappedRange>);

impl NaiveTables {
    pub(crate) fn insert(&mut self, mapping: MappedRange) {
        let index = self.0.partition_point(|existing| existing.virt < mapping.virt);
        self.0.insert(index, mapping);
    }

    /// Returns whether the range starts or ends within an entry with data of the kernel.
    fn cuts_kernel_data(&self, start: u64, last: u64) -> bool {
        let is_cut =
            |mapping: &MappedRange, end: u64| !mapping.is_present() && mapping.contains_inside(end);
        self.0.iter().any(|mapping| is_cut(mapping, start) || is_cut(mapping, last.wrapping_add(1)))
    }

    /// Splits the mappings at both ends of the range, except those with data of the kernel. Returns
    /// the indices of the mappings in the range.
    fn split_at_ends(&mut self, start: u64, last: u64) -> std::ops::Range<usize> {
        for end in [start, last.wrapping_add(1)] {
            let is_cut =
                |mapping: &MappedRange| mapping.is_present() && mapping.contains_inside(end);
            if let Some(index) = self.0.iter().position(is_cut) {
                let mapping = self.0[index];
                let below = end - mapping.virt;
                self.0[index] = mapping.part(0, below);
                self.0.insert(index + 1, mapping.part(below, mapping.bytes - below));
            }
        }
        let first = self.0.partition_point(|mapping| mapping.virt < start);
        let end = self.0.partition_point(|mapping| mapping.virt <= last);
        first..end
    }

    pub(crate) fn unmap(&mut self, start: u64, last: u64) -> Option<Vec<MappedRange>> {
        let cuts_kernel_data = self.cuts_kernel_data(start, last);
        let range = self.split_at_ends(start, last);
        (!cuts_kernel_data).then(|| self.0.drain(range).collect())
    }

    pub(crate) fn overlaps(&self, start: u64, bytes: u64) -> bool {
        let overlaps = |mapping: &MappedRange| {
            let lower_bytes = if mapping.virt < start { mapping.bytes } else { bytes };
            mapping.virt.abs_diff(start) < lower_bytes
        };
        self.0.iter().any(overlaps)
    }

    pub(crate) fn is_mapped(&self, virt: u64) -> bool {
        self.overlaps(virt, 1)
    }

    /// Moves the page at an address to other frames.
    pub(crate) fn relocate(&mut self, virt: u64, level: Level, new_frame: Pfn) {
        let range = self.split_at_ends(virt, virt + (level.entry_span().0 - 1));
        for mapping in &mut self.0[range] {
            let flags = Entry::from_bits(mapping.bits).flags();
            let address = new_frame.phys_addr() + (mapping.virt - virt);
            mapping.bits = flags.bits() | address;
        }
    }

    pub(crate) fn protect(&mut self, start: u64, last: u64, set: Flags, clear: Flags) {
        let range = self.split_at_ends(start, last);
        for mapping in self.0[range].iter_mut().filter(|mapping| mapping.is_present()) {
            mapping.bits = mapping.bits & !clear.bits() | set.bits();
        }
    }
}

/// An owner that records the calls to it.
pub(crate) struct RecordingOwner<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) runs: Vec<Run>,
    pub(crate) freed_tables: usize,
    /// The tables that [`Owner::stuck_table`] was called for.
    pub(crate) stuck_tables: Vec<Pfn>,
    /// The number of frames for tables that were requested.
    pub(crate) requested_tables: usize,
}

impl RecordingOwner<'_> {
    pub(crate) fn new(arena: &Arena) -> RecordingOwner<'_> {
        RecordingOwner {
            arena,
            runs: Vec::new(),
            freed_tables: 0,
            stuck_tables: Vec::new(),
            requested_tables: 0,
        }
    }

    pub(crate) fn mappings(&self) -> Vec<MappedRange> {
        let mapping = |run: &Run| MappedRange {
            bytes: run.virt.bytes().0,
            ..MappedRange::new(run.virt.start(), run.level, run.entry)
        };
        self.runs.iter().map(mapping).collect()
    }

    /// Returns the sum of the unmapped entries and the freed tables that the owner received.
    pub(crate) fn entries(&self) -> usize {
        let entries = |run: &Run| run.virt.bytes().0 / run.level.entry_span().0;
        self.freed_tables
            + usize::try_from(self.runs.iter().map(entries).sum::<u64>())
                .expect("`usize` has 64 bits")
    }

    pub(crate) fn unmapped_bytes(&self) -> Bytes {
        Bytes(self.runs.iter().map(|run| run.virt.bytes().0).sum())
    }
}

impl Owner<X86_64> for RecordingOwner<'_> {
    fn unmapped(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn free_table(&mut self, table: Pfn) {
        self.freed_tables += 1;
        self.arena.free(table);
    }

    fn stuck_table(&mut self, table: Pfn) {
        self.stuck_tables.push(table);
    }

    fn new_table(&mut self) -> Option<Pfn> {
        self.requested_tables += 1;
        self.arena.uncleared_table()
    }
}
