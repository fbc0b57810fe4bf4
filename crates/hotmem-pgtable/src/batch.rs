//! Defines batches: lists of entries that an `Mmu` changes in one step.

use crate::entry::{Entry, EntryAddr};
use crate::format::Format;
use crate::level::{LINE_ENTRIES, Level};
use crate::located::{LocatedEntries, LocatedEntry, entry_after};
use crate::space::{Roots, Space};
use hotmem_addr::Pfn;

/// The number of entries that a batch can hold. It is smaller under loom, whose threads have small
/// stacks.
const CAPACITY: usize = if cfg!(loom) { 4 } else { 512 };

/// A list of entries, in the order in which they were added, that an `Mmu` changes in one step. A
/// batch takes 20 KiB, so a kernel should not keep it on a stack.
#[derive(Clone)]
pub struct Batch<F: Format> {
    entries: [Entry<F>; CAPACITY],
    len: usize,
    runs: [EntryRun; CAPACITY],
    runs_len: usize,
    roots: Roots,
}

/// Consecutive entries of one table in a batch.
#[derive(Clone, Copy)]
struct EntryRun {
    /// The lowest virtual address that the first entry maps.
    virt: u64,
    /// The first entry's physical address.
    first_addr: EntryAddr,
    /// The index in the batch after the last entry.
    end: usize,
    /// The level of the table that holds the entries.
    level: Level,
}

impl EntryRun {
    /// Returns the entry that is `number` entries after the first one, with the value `entry`.
    #[inline]
    fn nth_entry<F: Format>(&self, number: usize, entry: Entry<F>) -> LocatedEntry<F> {
        entry_after(self.virt, self.first_addr, self.level, number, entry)
    }

    fn with_entries<E>(&self, entries: E) -> LocatedEntries<E> {
        LocatedEntries { virt: self.virt, first_addr: self.first_addr, level: self.level, entries }
    }
}

impl<F: Format> Batch<F> {
    /// Creates an empty batch.
    #[must_use]
    pub const fn new() -> Batch<F> {
        let addr = EntryAddr::new(Pfn::ZERO, 0);
        let no_run = EntryRun { virt: 0, first_addr: addr, end: 0, level: Level::L1 };
        let runs = [no_run; CAPACITY];
        let entries = [Entry::EMPTY; CAPACITY];
        Batch { entries, len: 0, runs, runs_len: 0, roots: Roots::NONE }
    }

    /// Empties the batch, and assigns it to `space`.
    pub(crate) fn begin(&mut self, space: Space<F>) {
        self.clear();
        self.roots = Roots::of(space);
    }

    pub(crate) fn roots(&self) -> Roots {
        self.roots
    }

    /// Returns the address of the entry in the user's root that must change together with the entry
    /// at `addr`. Returns `None` if the address space has no user's root, or if `addr` is not in the
    /// part of the kernel's root that both roots share.
    #[must_use]
    pub fn user_copy(&self, addr: EntryAddr) -> Option<EntryAddr> {
        self.roots.user_copy(addr)
    }

    /// Returns the number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the batch has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over the batch in runs of consecutive entries.
    pub fn entry_runs(&self) -> impl Iterator<Item = LocatedEntries<&[Entry<F>]>> {
        let mut start = 0;
        self.runs.iter().take(self.runs_len).map(move |run| {
            let range = core::mem::replace(&mut start, run.end)..run.end;
            run.with_entries(self.entries.get(range).unwrap_or_default())
        })
    }

    /// Iterates over the batch in runs of consecutive entries, whose entries can be changed.
    pub fn entry_runs_mut(&mut self) -> impl Iterator<Item = LocatedEntries<&mut [Entry<F>]>> {
        let (mut start, mut entries) = (0, self.entries.as_mut_slice());
        self.runs.iter().take(self.runs_len).map_while(move |run| {
            let count = run.end - core::mem::replace(&mut start, run.end);
            let (run_entries, remaining) =
                core::mem::take(&mut entries).split_at_mut_checked(count)?;
            entries = remaining;
            Some(run.with_entries(run_entries))
        })
    }

    /// Returns entry number `number` of the batch.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<LocatedEntry<F>> {
        let entry = *self.entries.get(..self.len)?.get(number)?;
        let runs = self.runs.get(..self.runs_len)?;
        let index = runs.partition_point(|run| run.end <= number);
        let start = index.checked_sub(1).map_or(0, |before| runs[before].end);
        Some(runs.get(index)?.nth_entry(number - start, entry))
    }

    /// Returns the virtual address that entry `number` maps. If `number` is the number of entries,
    /// returns the address after the last entry.
    pub(crate) fn address_of(&self, number: usize) -> Option<u64> {
        let end = || self.entry_runs().last().map(|located| located.end());
        self.get(number).map(|located| located.virt).or_else(end)
    }

    /// Shortens the batch to its first `len` entries. A shorter batch stays as it is.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        let runs = self.runs.get_mut(..self.runs_len).unwrap_or_default();
        self.runs_len = runs.partition_point(|run| run.end < self.len);
        if self.len > 0
            && let Some(last) = runs.get_mut(self.runs_len)
        {
            last.end = self.len;
            self.runs_len += 1;
        }
    }

    /// Returns entry `number` of the batch.
    pub(crate) fn entry_mut(&mut self, number: usize) -> Option<&mut Entry<F>> {
        self.entries.get_mut(..self.len)?.get_mut(number)
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        (self.len, self.runs_len) = (0, 0);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == CAPACITY
    }

    /// Adds an entry. Returns false, and changes nothing, if the batch is full.
    pub fn push(&mut self, located: LocatedEntry<F>) -> bool {
        self.extend(located.as_entries()) == 1
    }

    /// Adds the entries, the first ones first, until the batch is full. Returns how many it has
    /// added.
    #[inline]
    pub(crate) fn extend(&mut self, located: LocatedEntries<&[Entry<F>]>) -> usize {
        let free_entries = self.entries.get_mut(self.len..).unwrap_or_default();
        let count = free_entries.len().min(located.entries.len());
        if count == 0 {
            return 0;
        }
        // A walk of dense tables yields whole cache lines of entries. Copy them without a call or a
        // loop.
        match (free_entries.first_chunk_mut::<LINE_ENTRIES>(), located.entries.try_into()) {
            (Some(free_line), Ok::<&[_; LINE_ENTRIES], _>(line)) => *free_line = *line,
            _ => free_entries
                .iter_mut()
                .zip(located.entries)
                .for_each(|(free_entry, entry)| *free_entry = *entry),
        }
        let continues_last_run = match self.runs.get(..self.runs_len).unwrap_or_default() {
            [.., before, last] => {
                located.continue_run_at(last.nth_entry(self.len - before.end, Entry::EMPTY))
            }
            [last] => located.continue_run_at(last.nth_entry(self.len, Entry::EMPTY)),
            [] => false,
        };
        if !continues_last_run && let Some(free_run) = self.runs.get_mut(self.runs_len) {
            let LocatedEntries { virt, first_addr, level, .. } = located;
            *free_run = EntryRun { virt, first_addr, end: 0, level };
            self.runs_len += 1;
        }
        self.len += count;
        if let [.., last] = self.runs.get_mut(..self.runs_len).unwrap_or_default() {
            last.end = self.len;
        }
        count
    }
}

impl<F: Format> core::fmt::Debug for Batch<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.entry_runs()).finish()
    }
}

impl<F: Format> Default for Batch<F> {
    fn default() -> Batch<F> {
        Batch::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::{X86_64, X86Flags as Flags};

    type LocatedEntry = super::LocatedEntry<X86_64>;

    fn located(table: u64, index: usize, virt: u64) -> LocatedEntry {
        let addr = EntryAddr::new(Pfn::new(table).unwrap(), index);
        let entry = Entry::from_bits(virt | Flags::PRESENT.bits());
        LocatedEntry { virt, addr, entry, level: Level::L1 }
    }

    #[test]
    fn consecutive_entries_of_a_table_form_one_run() {
        let mut batch = Batch::new();
        // The next table lies in the next frame, but its entries do not continue those of the first
        // table.
        let located = [
            located(7, 510, 0x1fe000),
            located(7, 511, 0x1ff000),
            located(8, 0, 0x200000),
            located(8, 2, 0x202000),
            located(8, 3, 0x40203000),
        ];
        for located in &located {
            assert!(batch.push(*located));
        }
        assert_eq!(
            batch.entry_runs().map(|located| located.entries.len()).collect::<Vec<_>>(),
            [2, 1, 1, 1]
        );
        assert_eq!(batch.entry_runs().flat_map(LocatedEntries::each).collect::<Vec<_>>(), located);
        for len in (0..=5).rev() {
            batch.truncate(len);
            assert_eq!(
                batch.entry_runs().flat_map(LocatedEntries::each).collect::<Vec<_>>(),
                located[..len]
            );
            assert_eq!((batch.len(), batch.get(len), batch.is_empty()), (len, None, len == 0));
        }
    }

    #[test]
    fn a_batch_accepts_entries_until_it_is_full() {
        let mut batch = Batch::new();
        let addr = EntryAddr::new(Pfn::new(7).unwrap(), 0);
        let entries = [Entry::<X86_64>::from_bits(1); 300];
        let located = LocatedEntries {
            virt: 0,
            first_addr: addr,
            level: Level::L1,
            entries: entries.as_slice(),
        };
        assert_eq!([300, 212, 0], [(); 3].map(|()| batch.extend(located)));
        assert!(batch.is_full());
        assert_eq!(batch.entry_runs().count(), 2, "entries that are added twice are two runs");
    }
}
