//! The machine behind the page tables, whose unit is a batch.

use crate::batch::{Batch, Slot};
use crate::entry::{ENTRIES, Entry, Flags, LINE};
use crate::range::VirtRange;
use crate::space::Space;
use crate::sync::{AtomicU64, Ordering};
use core::fmt;
use hotmem_addr::Pfn;

/// A table where the kernel reads it.
pub type Table = [AtomicU64; ENTRIES];

/// A machine's page tables.
///
/// The caller holds what the kernel guards a range's entries with: nobody else adds, changes or
/// removes them meanwhile. Processors go on using them, and setting Accessed and Dirty.
///
/// The entries of a batch are what was read before: nothing but Accessed and Dirty, set by
/// processors, may have changed since; who clears these holds the same lock. No two are the same
/// one. A call that stops has done those before [`Halted::done`] and no others.
///
/// In an address space with two roots ([`Space::user_root`]) an entry of the root may have a
/// [copy](Batch::user_copy). Who clears the entry clears the copy, and neither if one cannot be.
pub trait Mmu {
    /// Why it refuses.
    type Fault: Copy + fmt::Debug;

    /// The table in this frame, `None` if it is none of the kernel's.
    fn table(&self, frame: Pfn) -> Option<&Table>;

    /// Clears entries and puts their final Accessed and Dirty bits into the batch. What points to a
    /// table is cleared too; those below it keep what they hold. Entries that are not present go as
    /// they are.
    ///
    /// # Errors
    /// [`Halted`]
    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), Halted<Self::Fault>>;

    /// The same where nobody wants to know Accessed and Dirty: memory that is nobody's file.
    ///
    /// # Errors
    /// [`Halted`]
    fn clear(&mut self, batch: &mut Batch) -> Result<(), Halted<Self::Fault>> {
        self.get_and_clear(batch)
    }

    /// The same of an address space that dies: no processor uses the entries any more.
    ///
    /// # Errors
    /// [`Halted`]
    fn get_and_clear_full(&mut self, batch: &mut Batch) -> Result<(), Halted<Self::Fault>> {
        self.get_and_clear(batch)
    }

    /// Changes the flags of the batch's pages; no Accessed or Dirty bit is lost.
    ///
    /// # Errors
    /// [`Halted`]
    fn protect(&mut self, batch: &Batch, change: Change) -> Result<(), Halted<Self::Fault>>;

    /// Puts a table in a large page's place, which maps the same by smaller pages; no Accessed or
    /// Dirty bit is lost. What `table` held does not matter. Returns when no processor remembers
    /// the large page, so that what the table maps can be changed. [`Split`](crate::Split) says
    /// what processors find meanwhile.
    ///
    /// # Errors
    /// Its fault; nothing is changed then.
    fn split(&mut self, slot: &Slot, table: Pfn) -> Result<(), Self::Fault>;

    /// Returns when no processor remembers anything of what was cleared or changed, and none walks
    /// a table that was unhooked, the kernel's own walkers without locks included.
    ///
    /// # Errors
    /// Its fault; nothing is known then of what processors remember.
    fn flush(&mut self, flush: Flush) -> Result<(), Self::Fault>;

    /// Makes the tables below these cleared entries ordinary memory. They were flushed.
    ///
    /// # Errors
    /// Its fault; some of the tables are not yet ordinary memory then.
    fn reclaim(&mut self, batch: &Batch) -> Result<(), Self::Fault> {
        let _ = batch;
        Ok(())
    }

    /// Makes both roots and all tables of the lower half of an address space that nobody uses any
    /// more ordinary memory, flushed, but with what they hold.
    ///
    /// # Errors
    /// Its fault; some of the tables are not ordinary memory then. It can be called again.
    fn retire(&mut self, space: Space) -> Result<(), Self::Fault>;

    /// With how many entries it costs less to unhook so many tables together than to clear the
    /// entries; `None`: with any number.
    fn unhooking_pays_from(&self, tables: u64) -> Option<u64> {
        let _ = tables;
        None
    }
}

/// A batch that stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Halted<F> {
    /// How many entries, from the first, are done; perhaps all.
    pub done: usize,
    /// Why the next one is not, or what else of it failed.
    pub fault: F,
}

/// What processors are to forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// These addresses.
    pub range: VirtRange,
    /// Tables were unhooked too.
    pub tables: bool,
}

/// A change of flags: some set, some cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    set: Flags,
    clear: Flags,
}

/// Flags that a [`Change`] cannot have: those that say what an entry is, and those that are the
/// processor's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forbidden(pub Flags);

impl Change {
    const FORBIDDEN: Flags = Flags::PRESENT.union(Flags::LARGE).union(Flags::USED);

    /// Sets and clears; what is in both is set.
    ///
    /// # Errors
    /// [`Forbidden`]
    pub fn new(set: Flags, clear: Flags) -> Result<Change, Forbidden> {
        let forbidden = (set | clear).difference(Flags::all().difference(Self::FORBIDDEN));
        if forbidden.is_empty() { Ok(Change { set, clear }) } else { Err(Forbidden(forbidden)) }
    }

    /// The entry after the change.
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

/// An entry of a table; the index wraps within it.
///
/// The processor's walker is no thread of the program: what orders its reads and writes with the
/// kernel's are the entries' own atomicity and the flush, so all plain reads are `Relaxed`.
#[inline]
#[must_use]
pub fn entry_at(table: &Table, index: usize) -> Entry {
    Entry::from_bits(table[index % ENTRIES].load(Ordering::Relaxed))
}

/// The first cache line of a table, of those from `from` to `last`, in which anything is: its
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
        // In a dense table it is the first that says so.
        let anything = |bits| !Entry::from_bits(bits).is_empty();
        anything(bits(&words[0])) || anything(words.iter().fold(0, |all, word| all | bits(word)))
    };
    let number = lines.iter().position(is_occupied)?;
    let entries = lines.get(number)?.each_ref().map(|word| Entry::from_bits(bits(word)));
    Some((from + number, entries))
}

/// Reads what is not empty, one entry after another, from the first such entry on of those from
/// `from` to `last`: as many as there is room for. Its number, and how many.
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
