//! Defines entries with their places: the table, the address that they map, and the level.

use crate::entry::{Entry, EntryAddr};
use crate::format::Format;
use crate::level::{Kind, Level};
use core::{iter, ops::Range};

/// An entry that is to be changed, with the value that was read from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocatedEntry<F: Format> {
    /// The lowest virtual address that the entry maps.
    pub virt: u64,
    /// The entry's physical address.
    pub addr: EntryAddr,
    /// The value that was read. After a get-and-clear, it has the final Accessed and Dirty bits.
    pub entry: Entry<F>,
    /// The level of the table that holds the entry.
    pub level: Level,
}

/// Consecutive entries of one table. `E` is a slice of their values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocatedEntries<E> {
    /// The lowest virtual address that the first entry maps.
    pub virt: u64,
    /// The first entry's physical address.
    pub first_addr: EntryAddr,
    /// The values that were read. After a get-and-clear, they have the final Accessed and Dirty
    /// bits.
    pub entries: E,
    /// The level of the table that holds the entries.
    pub level: Level,
}

impl<F: Format> LocatedEntry<F> {
    /// Returns the kind of the entry.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.entry.kind(self.level)
    }

    pub(crate) fn as_entries(&self) -> LocatedEntries<&[Entry<F>]> {
        let LocatedEntry { virt, addr, level, .. } = *self;
        LocatedEntries {
            virt,
            first_addr: addr,
            level,
            entries: core::slice::from_ref(&self.entry),
        }
    }
}

/// Returns the entry that is `number` entries after a first entry of the same table. The first
/// entry is at `addr`, and maps `virt`. The returned entry has the value `entry`.
#[inline]
pub(crate) fn entry_after<F: Format>(
    virt: u64,
    addr: EntryAddr,
    level: Level,
    number: usize,
    entry: Entry<F>,
) -> LocatedEntry<F> {
    let (after, bytes) = (number as u64, level.entry_span().0);
    LocatedEntry { virt: virt.wrapping_add(after * bytes), addr: addr.after(after), entry, level }
}

impl<'e, F: Format> LocatedEntries<&'e [Entry<F>]> {
    /// Returns the entry that is `number` entries after the first one, with the value `entry`.
    #[inline]
    fn nth_entry(&self, number: usize, entry: Entry<F>) -> LocatedEntry<F> {
        entry_after(self.virt, self.first_addr, self.level, number, entry)
    }

    /// Returns the virtual address after the last one that the entries map.
    pub(crate) fn end(&self) -> u64 {
        self.nth_entry(self.entries.len(), Entry::EMPTY).virt
    }

    /// Iterates over the entries one by one.
    pub fn each(self) -> impl Iterator<Item = LocatedEntry<F>> + 'e {
        self.entries.iter().enumerate().map(move |(number, &entry)| self.nth_entry(number, entry))
    }

    /// Returns whether these entries can be appended to a run. `next` is the entry after the last
    /// one of the run. If its index is 0, the run ends with its table, and nothing can be appended.
    #[inline]
    pub(crate) fn continue_run_at(&self, next: LocatedEntry<F>) -> bool {
        let same_table = next.addr.index() != 0;
        (self.first_addr, self.virt, self.level) == (next.addr, next.virt, next.level) && same_table
    }

    /// Returns the entries whose numbers are in `range`, or none if `range` passes the last entry.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> LocatedEntries<&'e [Entry<F>]> {
        let LocatedEntry { virt, addr, level, .. } = self.nth_entry(range.start, Entry::EMPTY);
        LocatedEntries {
            virt,
            first_addr: addr,
            level,
            entries: self.entries.get(range).unwrap_or_default(),
        }
    }

    /// Iterates over the maximal runs of entries for which `is_wanted` returns true.
    #[inline]
    pub(crate) fn runs_where(
        self,
        is_wanted: impl Fn(Entry<F>) -> bool,
    ) -> impl Iterator<Item = LocatedEntries<&'e [Entry<F>]>> {
        let mut next = 0;
        iter::from_fn(move || {
            let remaining = self.entries.get(next..)?;
            let start = next + remaining.iter().position(|&entry| is_wanted(entry))?;
            let count = |remaining: &[Entry<F>]| {
                remaining.iter().take_while(|entry| is_wanted(**entry)).count()
            };
            next = start + self.entries.get(start..).map_or(0, count);
            Some(self.part(start..next))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::X86_64;
    use hotmem_addr::Pfn;

    #[test]
    fn parts_are_maximal_runs() {
        let entries = [0, 1, 1, 0, 0, 1].map(Entry::<X86_64>::from_bits);
        let addr = EntryAddr::new(Pfn::new(7).unwrap(), 8);
        let located = LocatedEntries {
            virt: 0x8000,
            first_addr: addr,
            level: Level::L1,
            entries: entries.as_slice(),
        };
        let parts: Vec<_> = located.runs_where(|entry| !entry.is_empty()).collect();
        let part = |number: usize, count| {
            let addr = EntryAddr::new(Pfn::new(7).unwrap(), 8 + number);
            let virt = 0x8000 + 0x1000 * number as u64;
            LocatedEntries {
                virt,
                first_addr: addr,
                level: Level::L1,
                entries: &entries[number..number + count],
            }
        };
        assert_eq!(parts, [part(1, 2), part(5, 1)]);
    }
}
