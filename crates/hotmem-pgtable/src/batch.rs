//! Batches of entries that are changed together.

use crate::entry::{ENTRIES, Entry, EntryAddr, Kind, LINE, Level};
use crate::space::Space;
use core::{iter, ops::Range};
use hotmem_addr::Pfn;

/// The capacity of a batch in entries; smaller under loom, whose stacks are small.
const CAPACITY: usize = if cfg!(loom) { 4 } else { 512 };

/// An entry to be changed, and its former value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The lowest virtual address that the entry maps.
    pub virt: u64,
    /// The entry's physical address.
    pub at: EntryAddr,
    /// The value that was read; after a get-and-clear, with the final Accessed and Dirty bits.
    pub entry: Entry,
    /// The level of its table.
    pub level: Level,
}

/// Consecutive slots of one table; `E` holds their entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots<E> {
    /// The lowest virtual address that the first entry maps.
    pub virt: u64,
    /// The first entry's physical address.
    pub at: EntryAddr,
    /// The values that were read; after a get-and-clear, with the final Accessed and Dirty bits.
    pub entries: E,
    /// The level of their table.
    pub level: Level,
}

/// A batch of entries in the order of their addition. It takes 20 KiB, so that a kernel keeps it
/// outside its stack.
#[derive(Clone)]
pub struct Batch {
    entries: [Entry; CAPACITY],
    len: usize,
    /// The runs of consecutive entries; each has the batch index after its last entry.
    places: [Slots<usize>; CAPACITY],
    places_len: usize,
    copies: Copies,
}

/// The kernel's and the user's root of the address space that a batch belongs to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Copies(Option<(Pfn, Pfn)>);

impl Copies {
    /// Returns the entry that must change with the one `at`.
    pub(crate) fn of(self, at: EntryAddr) -> Option<EntryAddr> {
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

    pub(crate) fn alone(&self) -> Slots<&[Entry]> {
        let Slot { virt, at, level, .. } = *self;
        Slots { virt, at, level, entries: core::slice::from_ref(&self.entry) }
    }
}

impl<E> Slots<E> {
    /// Returns the slot this many after the first, with this entry.
    #[inline]
    fn slot(&self, number: usize, entry: Entry) -> Slot {
        let (after, bytes) = (number as u64, self.level.entry_bytes().0);
        let virt = self.virt.wrapping_add(after * bytes);
        Slot { virt, at: self.at.after(after), entry, level: self.level }
    }

    fn with<T>(&self, entries: T) -> Slots<T> {
        Slots { virt: self.virt, at: self.at, level: self.level, entries }
    }
}

impl<'e> Slots<&'e [Entry]> {
    /// Returns the address after the last one that the slots map.
    pub(crate) fn end(&self) -> u64 {
        self.slot(self.entries.len(), Entry::EMPTY).virt
    }

    /// Iterates over the slots one by one.
    pub fn each(self) -> impl Iterator<Item = Slot> + 'e {
        self.entries.iter().enumerate().map(move |(number, &entry)| self.slot(number, entry))
    }

    /// Returns whether `next` directly follows these slots in their table.
    #[inline]
    fn follow(&self, next: Slot) -> bool {
        let same_table = next.at.index() != 0;
        (self.at, self.virt, self.level) == (next.at, next.virt, next.level) && same_table
    }

    /// Returns the slots of `range`, cut off at the end.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Slots<&'e [Entry]> {
        let Slot { virt, at, level, .. } = self.slot(range.start, Entry::EMPTY);
        Slots { virt, at, level, entries: self.entries.get(range).unwrap_or_default() }
    }

    /// Returns the maximal runs of slots for which `wanted` is true.
    #[inline]
    pub(crate) fn parts(
        self,
        wanted: impl Fn(Entry) -> bool,
    ) -> impl Iterator<Item = Slots<&'e [Entry]>> {
        let mut next = 0;
        iter::from_fn(move || {
            let rest = self.entries.get(next..)?;
            let start = next + rest.iter().position(|&entry| wanted(entry))?;
            let count = |rest: &[Entry]| rest.iter().take_while(|entry| wanted(**entry)).count();
            next = start + self.entries.get(start..).map_or(0, count);
            Some(self.part(start..next))
        })
    }
}

impl Batch {
    /// Makes an empty batch.
    #[must_use]
    pub const fn new() -> Batch {
        let at = EntryAddr::new(Pfn::ZERO, 0);
        let nowhere = Slots { virt: 0, at, entries: 0, level: Level::L1 };
        let places = [nowhere; CAPACITY];
        let entries = [Entry::EMPTY; CAPACITY];
        Batch { entries, len: 0, places, places_len: 0, copies: Copies(None) }
    }

    /// Empties the batch and starts one for this address space.
    pub(crate) fn begin(&mut self, space: Space) {
        self.clear();
        self.copies = Copies(space.user_root.map(|user| (space.root, user)));
    }

    pub(crate) fn copies(&self) -> Copies {
        self.copies
    }

    /// Returns the entry of the user root that must change together with the entry `at`. There is
    /// one if the address space has a user root and `at` lies in the half of the root that both
    /// roots share.
    #[must_use]
    pub fn user_copy(&self, at: EntryAddr) -> Option<EntryAddr> {
        self.copies.of(at)
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
        self.places.iter().take(self.places_len).map(move |place| {
            let range = core::mem::replace(&mut start, place.entries)..place.entries;
            place.with(self.entries.get(range).unwrap_or_default())
        })
    }

    /// Iterates over the batch in runs of consecutive slots, whose entries can be changed.
    pub fn slots_mut(&mut self) -> impl Iterator<Item = Slots<&mut [Entry]>> {
        let (mut start, mut entries) = (0, self.entries.as_mut_slice());
        self.places.iter().take(self.places_len).map_while(move |place| {
            let count = place.entries - core::mem::replace(&mut start, place.entries);
            let (these, rest) = core::mem::take(&mut entries).split_at_mut_checked(count)?;
            entries = rest;
            Some(place.with(these))
        })
    }

    /// Returns the slot of this number.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<Slot> {
        let entry = *self.entries.get(..self.len)?.get(number)?;
        let places = self.places.get(..self.places_len)?;
        let index = places.partition_point(|place| place.entries <= number);
        let start = index.checked_sub(1).map_or(0, |before| places[before].entries);
        Some(places.get(index)?.slot(number - start, entry))
    }

    /// Returns the virtual address of the slot of this number; for the number after the last slot,
    /// the address after it.
    pub(crate) fn address_of(&self, number: usize) -> Option<u64> {
        let end = || self.slots().last().map(|slots| slots.end());
        self.get(number).map(|slot| slot.virt).or_else(end)
    }

    /// Shortens the batch to `len` entries.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        let places = self.places.get_mut(..self.places_len).unwrap_or_default();
        self.places_len = places.partition_point(|place| place.entries < self.len);
        if self.len > 0
            && let Some(last) = places.get_mut(self.places_len)
        {
            last.entries = self.len;
            self.places_len += 1;
        }
    }

    /// Returns the entry of this number.
    pub(crate) fn entry_mut(&mut self, number: usize) -> Option<&mut Entry> {
        self.entries.get_mut(..self.len)?.get_mut(number)
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        (self.len, self.places_len) = (0, 0);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == CAPACITY
    }

    /// Adds a slot, and returns whether there was room.
    pub fn push(&mut self, slot: Slot) -> bool {
        self.extend(slot.alone()) == 1
    }

    /// Adds as many of the slots as there is room for, and returns how many.
    #[inline]
    pub(crate) fn extend(&mut self, slots: Slots<&[Entry]>) -> usize {
        let room = self.entries.get_mut(self.len..).unwrap_or_default();
        let count = room.len().min(slots.entries.len());
        if count == 0 {
            return 0;
        }
        // A whole cache line of entries, as a walk of dense tables yields them, is copied without a
        // call or a loop.
        match (room.first_chunk_mut::<LINE>(), slots.entries.try_into()) {
            (Some(room), Ok::<&[_; LINE], _>(line)) => *room = *line,
            _ => room.iter_mut().zip(slots.entries).for_each(|(room, entry)| *room = *entry),
        }
        let goes_on = match self.places.get(..self.places_len).unwrap_or_default() {
            [.., before, last] => slots.follow(last.slot(self.len - before.entries, Entry::EMPTY)),
            [last] => slots.follow(last.slot(self.len, Entry::EMPTY)),
            [] => false,
        };
        if !goes_on && let Some(free) = self.places.get_mut(self.places_len) {
            *free = slots.with(0);
            self.places_len += 1;
        }
        self.len += count;
        if let [.., last] = self.places.get_mut(..self.places_len).unwrap_or_default() {
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
        let parts: Vec<_> = slots.parts(|entry| !entry.is_empty()).collect();
        let part = |number: usize, count| {
            let at = EntryAddr::new(Pfn::new(7).unwrap(), 8 + number);
            let virt = 0x8000 + 0x1000 * number as u64;
            Slots { virt, at, level: Level::L1, entries: &entries[number..number + count] }
        };
        assert_eq!(parts, [part(1, 2), part(5, 1)]);
    }
}
