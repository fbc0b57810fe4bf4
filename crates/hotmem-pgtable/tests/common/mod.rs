//! An arena of frames for page tables, an owner that records its calls, and a naive map without
//! tables.
#![allow(dead_code, reason = "each test uses a part of it")]

use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    AtomicU64, ENTRIES, Entry, Flags, Flush, Kind, Level, Native, Owner, Run, Space, Table, Tables,
    entry_at,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// The contents of a freed table: reading it leads to an address that a test notices.
const FREED: u64 = 0xdead_dead_dead_d001;

/// Frames from number 1 up, all of which can be tables.
pub(crate) struct Arena {
    frames: Vec<Table>,
    owned: RefCell<BTreeSet<usize>>,
    pub(crate) flushes: RefCell<Vec<Flush>>,
}

impl Arena {
    pub(crate) fn new(frames: usize) -> Arena {
        let table = || std::array::from_fn(|_| AtomicU64::new(FREED));
        Arena {
            frames: (0..=frames).map(|_| table()).collect(),
            owned: RefCell::default(),
            flushes: RefCell::default(),
        }
    }

    /// Returns an empty table.
    pub(crate) fn table(&self) -> Option<Pfn> {
        let pfn = self.dirty_table()?;
        self.words(pfn).iter().for_each(|word| word.store(0, Relaxed));
        Some(pfn)
    }

    /// Returns a table with old contents.
    fn dirty_table(&self) -> Option<Pfn> {
        let mut owned = self.owned.borrow_mut();
        let frame = (1..self.frames.len()).find(|frame| !owned.contains(frame))?;
        owned.insert(frame);
        Some(Pfn::new(frame as u64).unwrap())
    }

    pub(crate) fn free(&self, table: Pfn) {
        assert!(self.owned.borrow_mut().remove(&number(table)), "freed twice");
        self.words(table).iter().for_each(|word| word.store(FREED, Relaxed));
    }

    pub(crate) fn owned(&self) -> usize {
        self.owned.borrow().len()
    }

    /// Returns the table in a frame, if it is one.
    pub(crate) fn words_of(&self, frame: Pfn) -> Option<&Table> {
        let frame = usize::try_from(frame.number()).ok()?;
        self.owned.borrow().contains(&frame).then(|| &self.frames[frame])
    }

    pub(crate) fn words(&self, table: Pfn) -> &Table {
        &self.frames[number(table)]
    }

    pub(crate) fn native(&self) -> Native<&Arena, impl FnMut(Flush)> {
        Native::new(self, |flush| self.flushes.borrow_mut().push(flush))
    }

    /// Puts an entry at an address, and makes missing tables. Returns whether there was room.
    pub(crate) fn put(&self, space: Space, virt: u64, level: Level, entry: Entry) -> bool {
        let (mut table, mut at) = (space.root, space.levels);
        loop {
            let index = usize::try_from(virt / at.entry_bytes().0 % ENTRIES as u64).unwrap();
            let word = &self.words(table)[index];
            let there = entry_at(self.words(table), index);
            match (at == level, there.kind(at)) {
                (true, Kind::Empty) => {
                    word.store(entry.bits(), Relaxed);
                    self.share(space);
                    return true;
                }
                (false, Kind::Table(below)) => table = below,
                (false, Kind::Empty) => {
                    let below = self.table().expect("enough frames");
                    word.store(link(below).bits(), Relaxed);
                    table = below;
                }
                _ => return false,
            }
            at = at.below().expect("the level is one of the space's");
        }
    }

    /// Copies the root's lower half into the user's root.
    fn share(&self, space: Space) {
        let Some(user) = space.user_root else { return };
        let words = self.words(space.root).iter().zip(self.words(user));
        words.take(ENTRIES / 2).for_each(|(word, copy)| copy.store(word.load(Relaxed), Relaxed));
    }

    /// Returns whether the user's root has the kernel's entries of the lower half, and none of the
    /// upper.
    pub(crate) fn is_shared(&self, space: Space) -> bool {
        let bits = |table, index| entry_at(self.words(table), index).bits();
        space.user_root.is_none_or(|user| {
            let half = ENTRIES / 2;
            (0..half).all(|index| bits(space.root, index) == bits(user, index))
                && (half..ENTRIES).all(|index| bits(user, index) == 0)
        })
    }

    /// Returns all mappings, in pieces.
    pub(crate) fn pieces(&self, space: Space) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.pieces_of(space, space.root, space.levels, 0, &mut pieces);
        pieces
    }

    fn pieces_of(&self, space: Space, table: Pfn, level: Level, base: u64, out: &mut Vec<Piece>) {
        for index in 0..ENTRIES {
            let offset = base + index as u64 * level.entry_bytes().0;
            let entry = entry_at(self.words(table), index);
            match entry.kind(level) {
                Kind::Empty => {}
                Kind::Table(table) => {
                    self.pieces_of(space, table, level.below().unwrap(), offset, out);
                }
                _ => out.push(Piece::new(canonical(offset, space), level, entry)),
            }
        }
    }
}

impl Tables for &Arena {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.words_of(frame)
    }
}

/// Returns the frame's index, which lies beyond the arena if `usize` cannot hold it.
fn number(table: Pfn) -> usize {
    usize::try_from(table.number()).unwrap_or(usize::MAX)
}

pub(crate) fn link(table: Pfn) -> Entry {
    Entry::new(table, Flags::PRESENT | Flags::WRITABLE | Flags::USER)
}

pub(crate) fn canonical(offset: u64, space: Space) -> u64 {
    let whole = space.levels.table_bytes().0;
    if offset & (whole / 2) != 0 { offset | !(whole - 1) } else { offset }
}

/// A part of a map, described as if it were mapped by 4 KiB pages, whatever the real page size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) virt: u64,
    pub(crate) bytes: u64,
    /// The entry of the first 4 KiB page, or the kernel's data in an entry that is not present.
    pub(crate) bits: u64,
}

impl Piece {
    pub(crate) fn new(virt: u64, level: Level, entry: Entry) -> Piece {
        let bytes = level.entry_bytes().0;
        let is_large = entry.is_present() && level != Level::L1;
        let large = if is_large { Flags::LARGE } else { Flags::empty() };
        Piece { virt, bytes, bits: entry.bits() & !large.bits() }
    }

    fn is_present(self) -> bool {
        self.bits & 1 != 0
    }

    fn part(self, from: u64, bytes: u64) -> Piece {
        Piece { virt: self.virt + from, bytes, bits: self.bits + from }
    }
}

/// Joins pieces that continue each other.
pub(crate) fn normal(pieces: &[Piece]) -> Vec<Piece> {
    let mut normal: Vec<Piece> = Vec::new();
    for piece in pieces {
        match normal.last_mut() {
            Some(last)
                if last.is_present()
                    && last.virt + last.bytes == piece.virt
                    && last.bits + last.bytes == piece.bits =>
            {
                last.bytes += piece.bytes;
            }
            _ => normal.push(*piece),
        }
    }
    normal
}

/// A naive map: a list of pieces in the order of addresses.
#[derive(Clone, Default, Debug)]
pub(crate) struct Naive(pub(crate) Vec<Piece>);

impl Naive {
    pub(crate) fn put(&mut self, piece: Piece) {
        let at = self.0.partition_point(|other| other.virt < piece.virt);
        self.0.insert(at, piece);
    }

    /// Returns whether the range ends within an entry with data of the kernel.
    fn cuts_note(&self, start: u64, last: u64) -> bool {
        let cut = |p: &Piece, at: u64| !p.is_present() && p.virt < at && at - p.virt < p.bytes;
        self.0.iter().any(|piece| cut(piece, start) || cut(piece, last.wrapping_add(1)))
    }

    /// Splits the pieces at both ends of the range, unless they hold data of the kernel, and
    /// returns those between.
    fn cut(&mut self, start: u64, last: u64) -> std::ops::Range<usize> {
        for at in [start, last.wrapping_add(1)] {
            let inside = |p: &Piece| p.is_present() && p.virt < at && at - p.virt < p.bytes;
            if let Some(index) = self.0.iter().position(inside) {
                let piece = self.0[index];
                let below = at - piece.virt;
                self.0[index] = piece.part(0, below);
                self.0.insert(index + 1, piece.part(below, piece.bytes - below));
            }
        }
        let first = self.0.partition_point(|piece| piece.virt < start);
        let end = self.0.partition_point(|piece| piece.virt <= last);
        first..end
    }

    pub(crate) fn unmap(&mut self, start: u64, last: u64) -> Option<Vec<Piece>> {
        let cuts_note = self.cuts_note(start, last);
        let range = self.cut(start, last);
        (!cuts_note).then(|| self.0.drain(range).collect())
    }

    pub(crate) fn overlaps(&self, start: u64, bytes: u64) -> bool {
        let meets =
            |p: &Piece| p.virt.abs_diff(start) < if p.virt < start { p.bytes } else { bytes };
        self.0.iter().any(meets)
    }

    pub(crate) fn is_mapped(&self, virt: u64) -> bool {
        self.overlaps(virt, 1)
    }

    /// Moves the page at an address to other frames.
    pub(crate) fn relocate(&mut self, virt: u64, level: Level, to: Pfn) {
        let range = self.cut(virt, virt + (level.entry_bytes().0 - 1));
        for piece in &mut self.0[range] {
            let flags = Entry::from_bits(piece.bits).flags();
            let from = to.phys_addr() + (piece.virt - virt);
            piece.bits = flags.bits() | from;
        }
    }

    pub(crate) fn protect(&mut self, start: u64, last: u64, set: Flags, clear: Flags) {
        let range = self.cut(start, last);
        for piece in self.0[range].iter_mut().filter(|piece| piece.is_present()) {
            piece.bits = piece.bits & !clear.bits() | set.bits();
        }
    }
}

/// An owner that records its calls.
pub(crate) struct Notes<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) runs: Vec<Run>,
    pub(crate) freed: usize,
    pub(crate) stuck: Vec<Pfn>,
    /// The number of tables that were requested.
    pub(crate) given: usize,
}

impl Notes<'_> {
    pub(crate) fn new(arena: &Arena) -> Notes<'_> {
        Notes { arena, runs: Vec::new(), freed: 0, stuck: Vec::new(), given: 0 }
    }

    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let of = |run: &Run| Piece {
            bytes: run.virt.bytes().0,
            ..Piece::new(run.virt.start(), run.level, run.entry)
        };
        self.runs.iter().map(of).collect()
    }

    /// Returns the number of entries and tables that were reported.
    pub(crate) fn entries(&self) -> usize {
        let of = |run: &Run| run.virt.bytes().0 / run.level.entry_bytes().0;
        self.freed + usize::try_from(self.runs.iter().map(of).sum::<u64>()).expect("64 bits")
    }

    pub(crate) fn told(&self) -> Bytes {
        Bytes(self.runs.iter().map(|run| run.virt.bytes().0).sum())
    }
}

impl Owner for Notes<'_> {
    fn unmapped(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn free_table(&mut self, table: Pfn) {
        self.freed += 1;
        self.arena.free(table);
    }

    fn stuck_table(&mut self, table: Pfn) {
        self.stuck.push(table);
    }

    fn new_table(&mut self) -> Option<Pfn> {
        self.given += 1;
        self.arena.dirty_table()
    }
}
