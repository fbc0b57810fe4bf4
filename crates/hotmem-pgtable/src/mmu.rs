//! Defines the interface to an MMU, which changes page tables in batches.

use crate::batch::Batch;
use crate::entry::{Entry, bits_of};
use crate::format::Format;
use crate::level::{ENTRIES, LINE_ENTRIES};
use crate::located::LocatedEntry;
use crate::range::VirtRange;
use crate::space::Space;
use crate::sync::{AtomicU64, Ordering};
use bitflags::Flags;
use core::fmt;
use hotmem_addr::Pfn;

/// A page table as the kernel accesses it.
pub type Table = [AtomicU64; ENTRIES];

/// An MMU, real or virtual, that changes page tables in batches.
///
/// The caller of an operation holds the lock that guards the entries of a range: no other CPU adds,
/// changes or removes these entries meanwhile. Processors continue to use the entries, and to set
/// Accessed and Dirty in them.
///
/// A batch holds the values that were read from its entries before the call. Since then, processors
/// may have set Accessed and Dirty in the entries, but nothing else has changed; code that clears
/// these bits holds the same lock. No entry is in a batch twice. If a call stops, it has changed
/// the entries before [`BatchError::entries_done`] and no others.
///
/// In an address space with two roots ([`Space::user_root`]), an entry of the kernel's root may
/// have a [copy](Batch::user_copy) in the user's root. An implementation clears both or neither.
pub trait Mmu {
    /// The format of the entries.
    type Format: Format;

    /// The reason why the MMU refuses a change.
    type Fault: Copy + fmt::Debug;

    /// Returns the table in this frame, or `None` if the kernel has no table there.
    fn table(&self, frame: Pfn) -> Option<&Table>;

    /// Clears the entries of the batch, and puts their final Accessed and Dirty bits into the
    /// batch. Entries that point to tables are cleared too; the tables keep their contents. The
    /// values of entries that are not present stay as they are in the batch.
    ///
    /// # Errors
    /// [`BatchError`] if the MMU refused an entry.
    fn get_and_clear(
        &mut self,
        batch: &mut Batch<Self::Format>,
    ) -> Result<(), BatchError<Self::Fault>>;

    /// Clears the entries of the batch. Their final Accessed and Dirty bits may be lost, as for
    /// anonymous memory.
    ///
    /// # Errors
    /// [`BatchError`] if the MMU refused an entry.
    fn clear(&mut self, batch: &mut Batch<Self::Format>) -> Result<(), BatchError<Self::Fault>> {
        self.get_and_clear(batch)
    }

    /// Clears the entries of the batch, which are those of a dying address space: no processor uses
    /// the address space any more.
    ///
    /// # Errors
    /// [`BatchError`] if the MMU refused an entry.
    fn get_and_clear_full(
        &mut self,
        batch: &mut Batch<Self::Format>,
    ) -> Result<(), BatchError<Self::Fault>> {
        self.get_and_clear(batch)
    }

    /// Changes the flags of the batch's pages. No Accessed or Dirty bit is lost.
    ///
    /// # Errors
    /// [`BatchError`] if the MMU refused an entry.
    fn protect(
        &mut self,
        batch: &Batch<Self::Format>,
        change: Change<Self::Format>,
    ) -> Result<(), BatchError<Self::Fault>>;

    /// Replaces a large page by `table`, which then maps the same frames by smaller pages. No
    /// Accessed or Dirty bit is lost. The previous contents of `table` are overwritten. Returns
    /// after the large page was flushed from all TLBs, so that the entries of the table can be
    /// changed. [`Split`](crate::Split) says what processors find meanwhile.
    ///
    /// # Errors
    /// The MMU's fault. Nothing is changed.
    fn split(
        &mut self,
        located: &LocatedEntry<Self::Format>,
        table: Pfn,
    ) -> Result<(), Self::Fault>;

    /// Returns when no TLB caches the cleared or changed entries, and no page walk is in a table
    /// that was unhooked. Page walks include those that the kernel itself makes without a lock.
    ///
    /// # Errors
    /// The MMU's fault. TLBs may still cache any of the entries.
    fn flush(&mut self, flush: Flush) -> Result<(), Self::Fault>;

    /// Turns the tables that the entries of the batch pointed to, and all tables below them, into
    /// ordinary memory. The entries were cleared and flushed before.
    ///
    /// # Errors
    /// The MMU's fault. Some of the tables are not ordinary memory yet.
    fn reclaim(&mut self, batch: &Batch<Self::Format>) -> Result<(), Self::Fault> {
        let _ = batch;
        Ok(())
    }

    /// Turns the roots and all tables of the lower half of an address space into ordinary memory,
    /// and flushes the address space. No processor uses it any more. The tables keep their
    /// contents.
    ///
    /// # Errors
    /// The MMU's fault. Some of the tables are not ordinary memory yet, and the call can be
    /// repeated.
    fn retire(&mut self, space: Space<Self::Format>) -> Result<(), Self::Fault>;

    /// Returns the least number of entries in use from which on it costs less to unhook `tables`
    /// tables together than to clear their entries. Returns `None` if unhooking always costs less.
    fn min_entries_to_unhook(&self, tables: u64) -> Option<u64> {
        let _ = tables;
        None
    }
}

/// The error of a batch of which only the first entries were changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchError<F> {
    /// The number of entries that were changed: the first ones of the batch, and possibly all.
    pub entries_done: usize,
    /// The reason why the next entry was not changed. If all entries were changed, the reason why a
    /// later step failed.
    pub fault: F,
}

/// A request to flush TLBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// The addresses to flush.
    pub range: VirtRange,
    /// Whether entries that point to tables were changed. Tables may have been unhooked, so no page
    /// walk may be in them after the flush, or a table may have replaced a large page in place.
    pub tables: bool,
}

/// A change of the flags of pages: sets some flags and clears others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<F: Format> {
    set: F::Flags,
    clear: F::Flags,
}

/// The error for flags that a [`Change`] cannot have: [those](Format::UNCHANGEABLE) that determine
/// the kind of an entry, that the processor sets, or whose change needs break-before-make; and bits
/// that are no flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forbidden<F: Format>(pub F::Flags);

impl<F: Format> Change<F> {
    /// Creates a change. A flag that is in both arguments is set.
    ///
    /// # Errors
    /// [`Forbidden`] with the flags that a change cannot have.
    pub fn new(set: F::Flags, clear: F::Flags) -> Result<Change<F>, Forbidden<F>> {
        let allowed = F::Flags::all().difference(F::UNCHANGEABLE);
        let forbidden = set.union(clear).difference(allowed);
        if forbidden.is_empty() { Ok(Change { set, clear }) } else { Err(Forbidden(forbidden)) }
    }

    /// Returns the entry with the change applied.
    #[must_use]
    pub fn apply(self, entry: Entry<F>) -> Entry<F> {
        Entry::from_bits(F::changed(entry.bits(), self.set, self.clear))
    }
}

impl<F: Format> fmt::Display for Forbidden<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a change cannot have the flags {:#x}", bits_of::<F>(self.0))
    }
}

impl<F: Format> core::error::Error for Forbidden<F> {}

/// Returns an entry of a table. The index wraps within the table.
///
/// The processor's page walk is not a thread of the program. Only the atomicity of the entries and
/// the flush order the accesses of the page walk and those of the kernel, so all plain reads are
/// `Relaxed`.
#[inline]
#[must_use]
pub fn entry_at<F: Format>(table: &Table, index: usize) -> Entry<F> {
    Entry::from_bits(table[index % ENTRIES].load(Ordering::Relaxed))
}

/// Finds the first cache line with an entry in use, among the lines from number `from` to number
/// `last`. Returns the number of the line, and its entries.
#[inline]
pub(crate) fn occupied_line<F: Format>(
    table: &Table,
    from: usize,
    last: usize,
) -> Option<(usize, [Entry<F>; LINE_ENTRIES])> {
    let lines = table.as_chunks::<LINE_ENTRIES>().0.get(from..=last)?;
    let bits = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let is_occupied = |words: &[AtomicU64; LINE_ENTRIES]| {
        // In a dense table, the first entry is in use, and then no other entry need be read.
        let is_in_use = |bits| !Entry::<F>::from_bits(bits).is_empty();
        is_in_use(bits(&words[0])) || is_in_use(words.iter().fold(0, |all, word| all | bits(word)))
    };
    let number = lines.iter().position(is_occupied)?;
    let entries = lines.get(number)?.each_ref().map(|word| Entry::from_bits(bits(word)));
    Some((from + number, entries))
}

/// Finds the first entry in use, among those from index `from` to index `last`, and reads it and
/// the entries in use that directly follow it, until `buffer` is full. Returns the index of the first
/// one, and how many entries it read.
#[inline]
pub(crate) fn read_occupied<F: Format>(
    table: &Table,
    from: usize,
    last: usize,
    buffer: &mut [Entry<F>],
) -> Option<(usize, usize)> {
    let words = table.get(..=last)?;
    let entry = |word: &AtomicU64| Entry::<F>::from_bits(word.load(Ordering::Relaxed));
    let mut start = from;
    while entry(words.get(start)?).is_empty() {
        let line =
            words.get(start..start + LINE_ENTRIES).filter(|_| start.is_multiple_of(LINE_ENTRIES));
        let all = |line: &[AtomicU64]| line.iter().fold(0, |all, word| all | entry(word).bits());
        let is_empty = line.is_some_and(|line| Entry::<F>::from_bits(all(line)).is_empty());
        start += if is_empty { LINE_ENTRIES } else { 1 };
    }
    let mut count = 0;
    for (slot, word) in buffer.iter_mut().zip(words.get(start..)?) {
        *slot = entry(word);
        if slot.is_empty() {
            break;
        }
        count += 1;
    }
    Some((start, count))
}
