//! The interface to the machine, which changes page tables in batches.

use crate::batch::{Batch, Slot};
use crate::entry::{ENTRIES, Entry, Flags, LINE};
use crate::range::VirtRange;
use crate::space::Space;
use crate::sync::{AtomicU64, Ordering};
use core::fmt;
use hotmem_addr::Pfn;

/// A page table as the kernel accesses it.
pub type Table = [AtomicU64; ENTRIES];

/// A machine that changes page tables in batches.
///
/// The caller holds the lock that guards a range's entries: no other CPU adds, changes or removes
/// them meanwhile. Processors continue to use the entries and to set Accessed and Dirty in them.
///
/// The entries of a batch hold the values that were read before. Since then processors may have set
/// Accessed and Dirty, but nothing else may have changed; code that clears these bits holds the
/// same lock. No entry is in a batch twice. A call that stops has changed the entries before
/// [`Halted::done`] and no others.
///
/// In an address space with two roots ([`Space::user_root`]) an entry of the root may have a
/// [copy](Batch::user_copy) in the user's root. An implementation clears both or neither.
pub trait Mmu {
    /// The reason for a refusal.
    type Fault: Copy + fmt::Debug;

    /// Returns the table in this frame, or `None` if the kernel has no table there.
    fn table(&self, frame: Pfn) -> Option<&Table>;

    /// Clears entries and puts their final Accessed and Dirty bits into the batch. Entries that
    /// point to a table are cleared too; the tables below keep their contents. Entries that are not
    /// present are cleared as they are.
    ///
    /// # Errors
    /// [`Halted`]
    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), Halted<Self::Fault>>;

    /// Clears entries whose final Accessed and Dirty bits do not matter, as for anonymous memory.
    ///
    /// # Errors
    /// [`Halted`]
    fn clear(&mut self, batch: &mut Batch) -> Result<(), Halted<Self::Fault>> {
        self.get_and_clear(batch)
    }

    /// Clears entries of a dying address space, which no processor uses any more.
    ///
    /// # Errors
    /// [`Halted`]
    fn get_and_clear_full(&mut self, batch: &mut Batch) -> Result<(), Halted<Self::Fault>> {
        self.get_and_clear(batch)
    }

    /// Changes the flags of the batch's pages. No Accessed or Dirty bit is lost.
    ///
    /// # Errors
    /// [`Halted`]
    fn protect(&mut self, batch: &Batch, change: Change) -> Result<(), Halted<Self::Fault>>;

    /// Replaces a large page by `table`, which maps the same frames by smaller pages. No Accessed
    /// or Dirty bit is lost. The former contents of `table` do not matter. Returns when the large
    /// page has been flushed from all TLBs, so that the entries of the table can be changed.
    /// [`Split`](crate::Split) says what processors find meanwhile.
    ///
    /// # Errors
    /// The machine's fault; nothing is changed.
    fn split(&mut self, slot: &Slot, table: Pfn) -> Result<(), Self::Fault>;

    /// Returns when no TLB caches the cleared or changed entries, and no page walk is in a table
    /// that was unhooked. This includes lockless page walks of the kernel itself.
    ///
    /// # Errors
    /// The machine's fault; TLBs may still cache any of the entries.
    fn flush(&mut self, flush: Flush) -> Result<(), Self::Fault>;

    /// Turns the tables below these cleared and flushed entries into ordinary memory.
    ///
    /// # Errors
    /// The machine's fault; some of the tables are not ordinary memory yet.
    fn reclaim(&mut self, batch: &Batch) -> Result<(), Self::Fault> {
        let _ = batch;
        Ok(())
    }

    /// Turns the roots and all tables of the lower half of an unused address space into ordinary
    /// memory, flushed and with their contents.
    ///
    /// # Errors
    /// The machine's fault; some of the tables are not ordinary memory yet. It can be called again.
    fn retire(&mut self, space: Space) -> Result<(), Self::Fault>;

    /// Returns the least number of mapped entries with which unhooking `tables` tables together
    /// costs less than clearing the entries; `None` if unhooking always costs less.
    fn unhooking_pays_from(&self, tables: u64) -> Option<u64> {
        let _ = tables;
        None
    }
}

/// A batch that stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Halted<F> {
    /// The number of entries, from the first, that are done. It may be all.
    pub done: usize,
    /// The reason why the next entry is not done, or what failed after the last.
    pub fault: F,
}

/// What to flush from the TLBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// The addresses to flush.
    pub range: VirtRange,
    /// Whether tables were unhooked too.
    pub tables: bool,
}

/// A change of flags: sets some and clears others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    set: Flags,
    clear: Flags,
}

/// Flags that a [`Change`] cannot have: those that determine the kind of an entry, and those that
/// the processor sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forbidden(pub Flags);

impl Change {
    const FORBIDDEN: Flags = Flags::PRESENT.union(Flags::LARGE).union(Flags::USED);

    /// Makes a change. A flag that is in both arguments is set.
    ///
    /// # Errors
    /// [`Forbidden`]
    pub fn new(set: Flags, clear: Flags) -> Result<Change, Forbidden> {
        let forbidden = (set | clear).difference(Flags::all().difference(Self::FORBIDDEN));
        if forbidden.is_empty() { Ok(Change { set, clear }) } else { Err(Forbidden(forbidden)) }
    }

    /// Returns the entry after the change.
    #[must_use]
    pub fn of(self, entry: Entry) -> Entry {
        Entry::from_bits(entry.bits() & !self.clear.bits() | self.set.bits())
    }
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flags {:#x} are not the caller's to change", self.0.bits())
    }
}

impl core::error::Error for Forbidden {}

/// Returns an entry of a table. The index wraps within the table.
///
/// The processor's page walk is not a thread of the program. Only the atomicity of the entries and
/// the flush order its reads and writes with those of the kernel, so all plain reads are `Relaxed`.
#[inline]
#[must_use]
pub fn entry_at(table: &Table, index: usize) -> Entry {
    Entry::from_bits(table[index % ENTRIES].load(Ordering::Relaxed))
}

/// Finds the first cache line, of those from `from` to `last`, that is not empty. Returns its
/// number and its entries.
#[inline]
pub(crate) fn occupied_line(
    table: &Table,
    from: usize,
    last: usize,
) -> Option<(usize, [Entry; LINE])> {
    let lines = table.as_chunks::<LINE>().0.get(from..=last)?;
    let bits = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let is_occupied = |words: &[AtomicU64; LINE]| {
        // In a dense table the first entry is already in use.
        let anything = |bits| !Entry::from_bits(bits).is_empty();
        anything(bits(&words[0])) || anything(words.iter().fold(0, |all, word| all | bits(word)))
    };
    let number = lines.iter().position(is_occupied)?;
    let entries = lines.get(number)?.each_ref().map(|word| Entry::from_bits(bits(word)));
    Some((from + number, entries))
}

/// Reads consecutive entries in use, from the first one between `from` and `last` on, as many as
/// there is room for. Returns the number of the first and how many it read.
#[inline]
pub(crate) fn occupied(
    table: &Table,
    from: usize,
    last: usize,
    room: &mut [Entry],
) -> Option<(usize, usize)> {
    let words = table.get(..=last)?;
    let entry = |word: &AtomicU64| Entry::from_bits(word.load(Ordering::Relaxed));
    let mut start = from;
    while entry(words.get(start)?).is_empty() {
        let line = words.get(start..start + LINE).filter(|_| start.is_multiple_of(LINE));
        let all = |line: &[AtomicU64]| line.iter().fold(0, |all, word| all | entry(word).bits());
        let is_empty = line.is_some_and(|line| Entry::from_bits(all(line)).is_empty());
        start += if is_empty { LINE } else { 1 };
    }
    let mut count = 0;
    for (room, word) in room.iter_mut().zip(words.get(start..)?) {
        *room = entry(word);
        if room.is_empty() {
            break;
        }
        count += 1;
    }
    Some((start, count))
}
