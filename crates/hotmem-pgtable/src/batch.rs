//! Entries that are changed together.

use crate::entry::{ENTRIES, Entry, EntryAddr, Kind, LINE, Level};
use crate::space::Space;
use core::{iter, ops::Range};
use hotmem_addr::Pfn;

/// Entries in a batch; fewer under loom, whose stacks are small.
const CAPACITY: usize = if cfg!(loom) { 4 } else { 512 };

/// An entry to be changed, and what it held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The lowest address that it maps.
    pub virt: u64,
    /// Where it is.
    pub at: EntryAddr,
    /// What it was when it was read; after a get-and-clear, with its final bits.
    pub entry: Entry,
    /// The level of its table.
    pub level: Level,
}

/// Slots one after another in one table; `E` is their entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots<E> {
    /// The lowest address that the first maps.
    pub virt: u64,
    /// Where the first is.
    pub at: EntryAddr,
    /// What they were when they were read; after a get-and-clear, with their final bits.
    pub entries: E,
    /// The level of their table.
    pub level: Level,
}

/// Entries, as they were added: 20 KiB, which the caller keeps where it has room.
#[derive(Clone)]
pub struct Batch {
    entries: [Entry; CAPACITY],
    len: usize,
    /// Where they are, table by table; each with the number behind its last one's.
    places: [Slots<usize>; CAPACITY],
    places_len: usize,
    copies: Copies,
}

/// The two roots, the kernel's and the user's, of the address space whose entries are in a batch.
#[derive(Clone, Copy, Default)]
pub(crate) struct Copies(Option<(Pfn, Pfn)>);

impl Copies {
    /// The entry that must change with the one `at`.
    pub(crate) fn of(self, at: EntryAddr) -> Option<EntryAddr> {
        let (kernel, user) = self.0?;
        let is_shared = at.table() == kernel && at.index() < ENTRIES / 2;
        is_shared.then(|| EntryAddr::new(user, at.index()))
    }
}

impl Slot {
    /// What its entry is.
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
    /// The slot so many after the first, with this entry.
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
    /// What follows the last address that they map.
    pub(crate) fn end(&self) -> u64 {
        self.slot(self.entries.len(), Entry::EMPTY).virt
    }

    /// One by one.
    pub fn each(self) -> impl Iterator<Item = Slot> + 'e {
        self.entries.iter().enumerate().map(move |(number, &entry)| self.slot(number, entry))
    }

    /// Whether they begin at what comes next in their table.
    #[inline]
    fn follow(&self, next: Slot) -> bool {
        let same_table = next.at.index() != 0;
        (self.at, self.virt, self.level) == (next.at, next.virt, next.level) && same_table
    }

    /// Some of them, as far as there are.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Slots<&'e [Entry]> {
        let Slot { virt, at, level, .. } = self.slot(range.start, Entry::EMPTY);
        Slots { virt, at, level, entries: self.entries.get(range).unwrap_or_default() }
    }

    /// Those of which `wanted` is true, as long parts as can be.
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
    /// An empty batch.
    #[must_use]
    pub const fn new() -> Batch {
        let at = EntryAddr::new(Pfn::ZERO, 0);
        let nowhere = Slots { virt: 0, at, entries: 0, level: Level::L1 };
        let places = [nowhere; CAPACITY];
        let entries = [Entry::EMPTY; CAPACITY];
        Batch { entries, len: 0, places, places_len: 0, copies: Copies(None) }
    }

    /// Forgets all entries; those to come are this address space's.
    pub(crate) fn begin(&mut self, space: Space) {
        self.clear();
        self.copies = Copies(space.user_root.map(|user| (space.root, user)));
    }

    pub(crate) fn copies(&self) -> Copies {
        self.copies
    }

    /// The user root's entry that must change with the entry `at`: where that is the root's, of the
    /// half that both roots share, and there is a user root.
    #[must_use]
    pub fn user_copy(&self, at: EntryAddr) -> Option<EntryAddr> {
        self.copies.of(at)
    }

    /// How many entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, table by table.
    pub fn slots(&self) -> impl Iterator<Item = Slots<&[Entry]>> {
        let mut start = 0;
        self.places.iter().take(self.places_len).map(move |place| {
            let range = core::mem::replace(&mut start, place.entries)..place.entries;
            place.with(self.entries.get(range).unwrap_or_default())
        })
    }

    /// The same, to be changed.
    pub fn slots_mut(&mut self) -> impl Iterator<Item = Slots<&mut [Entry]>> {
        let (mut start, mut entries) = (0, self.entries.as_mut_slice());
        self.places.iter().take(self.places_len).map_while(move |place| {
            let count = place.entries - core::mem::replace(&mut start, place.entries);
            let (these, rest) = core::mem::take(&mut entries).split_at_mut_checked(count)?;
            entries = rest;
            Some(place.with(these))
        })
    }

    /// The slot of this number.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<Slot> {
        let entry = *self.entries.get(..self.len)?.get(number)?;
        let places = self.places.get(..self.places_len)?;
        let index = places.partition_point(|place| place.entries <= number);
        let start = index.checked_sub(1).map_or(0, |before| places[before].entries);
        Some(places.get(index)?.slot(number - start, entry))
    }

    /// The address of the slot of this number, or behind the last one if there are not so many.
    pub(crate) fn address_of(&self, number: usize) -> Option<u64> {
        let end = || self.slots().last().map(|slots| slots.end());
        self.get(number).map(|slot| slot.virt).or_else(end)
    }

    /// Forgets all but the first `len` entries.
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

    /// The entry of this number.
    pub(crate) fn entry_mut(&mut self, number: usize) -> Option<&mut Entry> {
        self.entries.get_mut(..self.len)?.get_mut(number)
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        (self.len, self.places_len) = (0, 0);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == CAPACITY
    }

    /// Adds a slot; whether there was room.
    pub fn push(&mut self, slot: Slot) -> bool {
        self.extend(slot.alone()) == 1
    }

    /// Adds slots, as many as there is room for; returns how many.
    #[inline]
    pub(crate) fn extend(&mut self, slots: Slots<&[Entry]>) -> usize {
        let room = self.entries.get_mut(self.len..).unwrap_or_default();
        let count = room.len().min(slots.entries.len());
        if count == 0 {
            return 0;
        }
        // A whole line, as a walk of dense tables brings them, takes no call and no loop.
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
        // The next table's frame is the next, too: its slots are still another table's.
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
    fn parts_as_long_as_can_be() {
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
