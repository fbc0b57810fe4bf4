//! Defines batches: lists of entries that a machine changes together.

use crate::entry::{ENTRIES, Entry, EntryAddr, Kind, LINE_ENTRIES, Level};
use crate::space::Space;
use core::{iter, ops::Range};
use hotmem_addr::Pfn;

/// The number of entries that a batch can hold. It is smaller under loom, whose threads have small
/// stacks.
const CAPACITY: usize = if cfg!(loom) { 4 } else { 512 };

/// An entry that is to be changed, with the value that was read from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The lowest virtual address that the entry maps.
    pub virt: u64,
    /// The entry's physical address.
    pub at: EntryAddr,
    /// The value that was read. After a get-and-clear, it has the final Accessed and Dirty bits.
    pub entry: Entry,
    /// The level of the table that holds the entry.
    pub level: Level,
}

/// Consecutive slots of one table. `E` is a slice of their entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots<E> {
    /// The lowest virtual address that the first entry maps.
    pub virt: u64,
    /// The first entry's physical address.
    pub at: EntryAddr,
    /// The values that were read. After a get-and-clear, they have the final Accessed and Dirty
    /// bits.
    pub entries: E,
    /// The level of the table that holds the entries.
    pub level: Level,
}

/// A list of entries, in the order in which they were added, that a machine changes together. A
/// batch takes 20 KiB, so a kernel should not keep it on a stack.
#[derive(Clone)]
pub struct Batch {
    entries: [Entry; CAPACITY],
    len: usize,
    /// The runs of consecutive entries. The `entries` of a run is the index in the batch that
    /// follows its last entry.
    runs: [Slots<usize>; CAPACITY],
    runs_len: usize,
    roots: Roots,
}

/// The kernel's and the user's root of the address space that a batch belongs to, if the space has
/// two roots.
#[derive(Clone, Copy, Default)]
pub(crate) struct Roots(Option<(Pfn, Pfn)>);

impl Roots {
    /// Returns the address of the entry in the user's root that must change together with the entry
    /// at `at`, if there is one.
    pub(crate) fn user_copy(self, at: EntryAddr) -> Option<EntryAddr> {
        let (kernel, user) = self.0?;
        let is_shared = at.table() == kernel && at.index() < ENTRIES / 2;
        is_shared.then(|| EntryAddr::new(user, at.index()))
    }
}

impl Slot {
    /// Returns the kind of the entry.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.entry.kind(self.level)
    }

    pub(crate) fn as_slots(&self) -> Slots<&[Entry]> {
        let Slot { virt, at, level, .. } = *self;
        Slots { virt, at, level, entries: core::slice::from_ref(&self.entry) }
    }
}

impl<E> Slots<E> {
    /// Returns the slot that is `number` slots after the first one, with the value `entry`.
    #[inline]
    fn slot(&self, number: usize, entry: Entry) -> Slot {
        let (after, bytes) = (number as u64, self.level.entry_bytes().0);
        let virt = self.virt.wrapping_add(after * bytes);
        Slot { virt, at: self.at.after(after), entry, level: self.level }
    }

    fn with_entries<T>(&self, entries: T) -> Slots<T> {
        Slots { virt: self.virt, at: self.at, level: self.level, entries }
    }
}

impl<'e> Slots<&'e [Entry]> {
    /// Returns the virtual address after the last one that the slots map.
    pub(crate) fn end(&self) -> u64 {
        self.slot(self.entries.len(), Entry::EMPTY).virt
    }

    /// Iterates over the slots one by one.
    pub fn each(self) -> impl Iterator<Item = Slot> + 'e {
        self.entries.iter().enumerate().map(move |(number, &entry)| self.slot(number, entry))
    }

    /// Returns whether these slots begin at `next`, the slot after one of the same table.
    #[inline]
    fn begin_at(&self, next: Slot) -> bool {
        let same_table = next.at.index() != 0;
        (self.at, self.virt, self.level) == (next.at, next.virt, next.level) && same_table
    }

    /// Returns the slots whose numbers are in `range`, or no slots if `range` passes the last slot.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Slots<&'e [Entry]> {
        let Slot { virt, at, level, .. } = self.slot(range.start, Entry::EMPTY);
        Slots { virt, at, level, entries: self.entries.get(range).unwrap_or_default() }
    }

    /// Iterates over the maximal runs of slots for whose entries `is_wanted` returns true.
    #[inline]
    pub(crate) fn runs_where(
        self,
        is_wanted: impl Fn(Entry) -> bool,
    ) -> impl Iterator<Item = Slots<&'e [Entry]>> {
        let mut next = 0;
        iter::from_fn(move || {
            let remaining = self.entries.get(next..)?;
            let start = next + remaining.iter().position(|&entry| is_wanted(entry))?;
            let count = |remaining: &[Entry]| {
                remaining.iter().take_while(|entry| is_wanted(**entry)).count()
            };
            next = start + self.entries.get(start..).map_or(0, count);
            Some(self.part(start..next))
        })
    }
}

impl Batch {
    /// Creates an empty batch.
    #[must_use]
    pub const fn new() -> Batch {
        let at = EntryAddr::new(Pfn::ZERO, 0);
        let no_run = Slots { virt: 0, at, entries: 0, level: Level::L1 };
        let runs = [no_run; CAPACITY];
        let entries = [Entry::EMPTY; CAPACITY];
        Batch { entries, len: 0, runs, runs_len: 0, roots: Roots(None) }
    }

    /// Empties the batch, and makes it one of `space`.
    pub(crate) fn begin(&mut self, space: Space) {
        self.clear();
        self.roots = Roots(space.user_root.map(|user| (space.root, user)));
    }

    pub(crate) fn roots(&self) -> Roots {
        self.roots
    }

    /// Returns the address of the entry in the user's root that must change together with the entry
    /// at `at`. Returns `None` if the address space has no user's root, or if `at` is not in the
    /// half of the kernel's root that both roots share.
    #[must_use]
    pub fn user_copy(&self, at: EntryAddr) -> Option<EntryAddr> {
        self.roots.user_copy(at)
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

    /// Iterates over the batch in runs of consecutive slots.
    pub fn slots(&self) -> impl Iterator<Item = Slots<&[Entry]>> {
        let mut start = 0;
        self.runs.iter().take(self.runs_len).map(move |run| {
            let range = core::mem::replace(&mut start, run.entries)..run.entries;
            run.with_entries(self.entries.get(range).unwrap_or_default())
        })
    }

    /// Iterates over the batch in runs of consecutive slots, whose entries can be changed.
    pub fn slots_mut(&mut self) -> impl Iterator<Item = Slots<&mut [Entry]>> {
        let (mut start, mut entries) = (0, self.entries.as_mut_slice());
        self.runs.iter().take(self.runs_len).map_while(move |run| {
            let count = run.entries - core::mem::replace(&mut start, run.entries);
            let (run_entries, remaining) =
                core::mem::take(&mut entries).split_at_mut_checked(count)?;
            entries = remaining;
            Some(run.with_entries(run_entries))
        })
    }

    /// Returns slot `number` of the batch.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<Slot> {
        let entry = *self.entries.get(..self.len)?.get(number)?;
        let runs = self.runs.get(..self.runs_len)?;
        let index = runs.partition_point(|run| run.entries <= number);
        let start = index.checked_sub(1).map_or(0, |before| runs[before].entries);
        Some(runs.get(index)?.slot(number - start, entry))
    }

    /// Returns the virtual address of slot `number`. If `number` is the number of slots, returns
    /// the address after the last slot.
    pub(crate) fn address_of(&self, number: usize) -> Option<u64> {
        let end = || self.slots().last().map(|slots| slots.end());
        self.get(number).map(|slot| slot.virt).or_else(end)
    }

    /// Shortens the batch to its first `len` entries. A shorter batch stays as it is.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        let runs = self.runs.get_mut(..self.runs_len).unwrap_or_default();
        self.runs_len = runs.partition_point(|run| run.entries < self.len);
        if self.len > 0
            && let Some(last) = runs.get_mut(self.runs_len)
        {
            last.entries = self.len;
            self.runs_len += 1;
        }
    }

    /// Returns entry `number` of the batch.
    pub(crate) fn entry_mut(&mut self, number: usize) -> Option<&mut Entry> {
        self.entries.get_mut(..self.len)?.get_mut(number)
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        (self.len, self.runs_len) = (0, 0);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == CAPACITY
    }

    /// Adds a slot. Returns false, and changes nothing, if the batch is full.
    pub fn push(&mut self, slot: Slot) -> bool {
        self.extend(slot.as_slots()) == 1
    }

    /// Adds the slots, the first ones first, until the batch is full. Returns how many it has
    /// added.
    #[inline]
    pub(crate) fn extend(&mut self, slots: Slots<&[Entry]>) -> usize {
        let free_entries = self.entries.get_mut(self.len..).unwrap_or_default();
        let count = free_entries.len().min(slots.entries.len());
        if count == 0 {
            return 0;
        }
        // Copy a whole cache line of entries, as a walk of dense tables yields it, without a call
        // or a loop.
        match (free_entries.first_chunk_mut::<LINE_ENTRIES>(), slots.entries.try_into()) {
            (Some(free_line), Ok::<&[_; LINE_ENTRIES], _>(line)) => *free_line = *line,
            _ => free_entries
                .iter_mut()
                .zip(slots.entries)
                .for_each(|(free_entry, entry)| *free_entry = *entry),
        }
        let continues_last_run = match self.runs.get(..self.runs_len).unwrap_or_default() {
            [.., before, last] => {
                slots.begin_at(last.slot(self.len - before.entries, Entry::EMPTY))
            }
            [last] => slots.begin_at(last.slot(self.len, Entry::EMPTY)),
            [] => false,
        };
        if !continues_last_run && let Some(free_run) = self.runs.get_mut(self.runs_len) {
            *free_run = slots.with_entries(0);
            self.runs_len += 1;
        }
        self.len += count;
        if let [.., last] = self.runs.get_mut(..self.runs_len).unwrap_or_default() {
            last.entries = self.len;
        }
        count
    }
}

impl core::fmt::Debug for Batch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.slots()).finish()
    }
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::entry::Flags;

    fn slot(table: u64, index: usize, virt: u64) -> Slot {
        let at = EntryAddr::new(Pfn::new(table).unwrap(), index);
        let entry = Entry::from_bits(virt | Flags::PRESENT.bits());
        Slot { virt, at, entry, level: Level::L1 }
    }

    #[test]
    fn slots_of_a_table_that_follow_each_other_are_together() {
        let mut batch = Batch::new();
        // The next table lies in the next frame, but its slots do not continue those of the first
        // table.
        let slots = [
            slot(7, 510, 0x1fe000),
            slot(7, 511, 0x1ff000),
            slot(8, 0, 0x200000),
            slot(8, 2, 0x202000),
            slot(8, 3, 0x40203000),
        ];
        for slot in &slots {
            assert!(batch.push(*slot));
        }
        assert_eq!(
            batch.slots().map(|slots| slots.entries.len()).collect::<Vec<_>>(),
            [2, 1, 1, 1]
        );
        assert_eq!(batch.slots().flat_map(Slots::each).collect::<Vec<_>>(), slots);
        for len in (0..=5).rev() {
            batch.truncate(len);
            assert_eq!(batch.slots().flat_map(Slots::each).collect::<Vec<_>>(), slots[..len]);
            assert_eq!((batch.len(), batch.get(len), batch.is_empty()), (len, None, len == 0));
        }
    }

    #[test]
    fn a_batch_takes_what_it_has_room_for() {
        let mut batch = Batch::new();
        let at = EntryAddr::new(Pfn::new(7).unwrap(), 0);
        let entries = [Entry::from_bits(1); 300];
        let slots = Slots { virt: 0, at, level: Level::L1, entries: entries.as_slice() };
        assert_eq!([300, 212, 0], [(); 3].map(|()| batch.extend(slots)));
        assert!(batch.is_full());
        assert_eq!(batch.slots().count(), 2, "the same twice");
    }

    #[test]
    fn parts_are_maximal_runs() {
        let entries = [0, 1, 1, 0, 0, 1].map(Entry::from_bits);
        let at = EntryAddr::new(Pfn::new(7).unwrap(), 8);
        let slots = Slots { virt: 0x8000, at, level: Level::L1, entries: entries.as_slice() };
        let parts: Vec<_> = slots.runs_where(|entry| !entry.is_empty()).collect();
        let part = |number: usize, count| {
            let at = EntryAddr::new(Pfn::new(7).unwrap(), 8 + number);
            let virt = 0x8000 + 0x1000 * number as u64;
            Slots { virt, at, level: Level::L1, entries: &entries[number..number + count] }
        };
        assert_eq!(parts, [part(1, 2), part(5, 1)]);
    }
}
