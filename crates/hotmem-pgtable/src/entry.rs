//! Defines an entry of a page table, in one of the [formats](Format).

use crate::format::{Attributes, Format, PRESENT};
use crate::level::{ENTRIES, Kind, Level};
use core::marker::PhantomData;
use hotmem_addr::Pfn;

/// The value of an entry in the format `F`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Entry<F: Format>(u64, PhantomData<F>);

/// The physical address of an entry. Under Xen it is a machine address, like the addresses in
/// entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct EntryAddr(u64);

impl<F: Format> Entry<F> {
    /// The empty entry.
    pub const EMPTY: Entry<F> = Entry::from_bits(0);

    /// Returns the entry with these bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Entry<F> {
        Entry(bits, PhantomData)
    }

    /// Returns the entry that points to `frame` and has these flags. Returns the empty entry if the
    /// format has no bits for a frame that high, so that no entry points to a wrong frame.
    #[must_use]
    pub fn new(frame: Pfn, flags: F::Flags) -> Entry<F> {
        let address = frame.phys_addr() >> F::ADDRESS_SHIFT;
        if address & !F::ADDRESS != 0 {
            return Entry::EMPTY;
        }
        Entry::from_bits(address | bits_of::<F>(flags) & !F::ADDRESS)
    }

    /// Returns the entry of a page on this level that begins at `frame`. Returns `None` if no such
    /// page can begin there.
    #[must_use]
    pub fn page(frame: Pfn, attributes: Attributes, level: Level) -> Option<Entry<F>> {
        let entry = Entry::new(frame, F::page_flags(attributes, level));
        let is_page = entry.kind(level) == Kind::Page && entry.frame(level) == Some(frame);
        is_page.then_some(entry)
    }

    /// Returns the bits of the entry.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the bits other than the address.
    #[must_use]
    pub fn flags(self) -> F::Flags {
        bitflags::Flags::from_bits_retain(self.0 & !F::ADDRESS)
    }

    /// Returns the first frame of the page or of the table that the entry points to, or `None` if
    /// the entry points to neither.
    #[must_use]
    pub fn frame(self, level: Level) -> Option<Pfn> {
        match self.kind(level) {
            Kind::Page => {
                let address = (self.0 & F::ADDRESS) << F::ADDRESS_SHIFT;
                Pfn::containing(address & !(level.entry_span().0 - 1))
            }
            Kind::Table(frame) => Some(frame),
            _ => None,
        }
    }

    /// Returns whether the processor uses the entry.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Returns whether no bit is set, except those that the format leaves over in empty entries.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 & !F::LEFTOVER == 0
    }

    /// Returns whether no processor will set Accessed or Dirty in the entry any more, because the
    /// entry is not present or has both already.
    #[must_use]
    pub fn has_final_flags(self) -> bool {
        F::has_final_flags(self.0)
    }

    /// Returns whether the entry is present, and its page may have been accessed since Accessed was
    /// last cleared.
    #[must_use]
    pub fn is_accessed(self) -> bool {
        self.is_present() && F::is_accessed(self.0)
    }

    /// Returns whether the entry is present, and its page may have been written since Dirty was last
    /// cleared.
    #[must_use]
    pub fn is_dirty(self) -> bool {
        self.is_present() && F::is_dirty(self.0)
    }

    /// Returns whether the entry, if it maps a page, allows writes.
    #[must_use]
    pub fn is_writable(self) -> bool {
        F::is_writable(self.0)
    }

    /// Returns the same entry, present or not.
    #[must_use]
    pub const fn with_presence(self, present: bool) -> Entry<F> {
        let other_bits = self.0 & !PRESENT;
        Entry::from_bits(if present { other_bits | PRESENT } else { other_bits })
    }

    /// Returns the kind of this entry in a table of this level.
    #[must_use]
    pub fn kind(self, level: Level) -> Kind {
        match () {
            () if self.is_empty() => Kind::Empty,
            () if !self.is_present() => Kind::Software,
            () => F::kind_of_present(self.0, level),
        }
    }

    /// Returns whether this entry, in a table of this level, maps a page.
    #[inline]
    #[must_use]
    pub fn is_page(self, level: Level) -> bool {
        self.is_present() && F::kind_of_present(self.0, level) == Kind::Page
    }

    /// Returns the entry with these flags set in addition.
    #[must_use]
    pub fn with(self, flags: F::Flags) -> Entry<F> {
        Entry::from_bits(self.0 | bits_of::<F>(flags) & !F::ADDRESS)
    }

    /// Returns the entry without these flags.
    #[must_use]
    pub fn without(self, flags: F::Flags) -> Entry<F> {
        Entry::from_bits(self.0 & !(bits_of::<F>(flags) & !F::ADDRESS))
    }

    /// Returns the entry marked as accessed, as written, or both, as the processor marks it.
    #[must_use]
    pub fn with_use(self, accessed: bool, dirty: bool) -> Entry<F> {
        Entry::from_bits(F::with_use(self.0, accessed, dirty))
    }

    /// Returns the entry as if its page was neither accessed nor written yet.
    #[must_use]
    pub fn without_use(self) -> Entry<F> {
        Entry::from_bits(F::without_use(self.0))
    }

    /// Returns the entry that points to `table`. The entry allows all accesses, so that the entries
    /// below decide which are allowed. Returns the empty entry if the format has no bits for a table
    /// that high.
    #[must_use]
    pub fn link(table: Pfn) -> Entry<F> {
        Entry::new(table, F::link_flags())
    }

    /// Returns the entry of the same page after its contents were moved to the frames from `frame`
    /// on. Returns `None` if no page of this level can begin at `frame`.
    #[must_use]
    pub const fn moved_to(self, frame: Pfn, level: Level) -> Option<Entry<F>> {
        let offset_mask = level.entry_span().0 - 1;
        let address = frame.phys_addr() >> F::ADDRESS_SHIFT;
        let kept_bits = self.0 & (!F::ADDRESS | F::LARGE_FLAGS & offset_mask);
        let is_aligned = frame.phys_addr() & offset_mask == 0;
        if is_aligned && address & !F::ADDRESS == 0 {
            Some(Entry::from_bits(kept_bits | address))
        } else {
            None
        }
    }

    /// Returns the entry, one level below, for part `index` of a large page, with the same flags.
    /// `level` is the level of the large page.
    pub(crate) fn part(self, level: Level, index: usize) -> Option<Entry<F>> {
        let below = level.below()?;
        let offset = index as u64 * below.entry_span().0;
        let address = self.frame(level)?.phys_addr() + offset;
        Some(Entry::from_bits(F::part_flags(self.0, below) | address >> F::ADDRESS_SHIFT))
    }

    /// Returns the bits of the entry of the page that is `bytes` bytes after this one, and has the
    /// same flags.
    #[inline]
    pub(crate) const fn bits_after(self, bytes: u64) -> u64 {
        self.0.wrapping_add(bytes >> F::ADDRESS_SHIFT)
    }
}

#[inline]
pub(crate) fn bits_of<F: Format>(flags: F::Flags) -> u64 {
    bitflags::Flags::bits(&flags)
}

impl EntryAddr {
    /// Returns the address of entry `index` of a table. The index wraps within the table.
    #[must_use]
    pub const fn new(table: Pfn, index: usize) -> EntryAddr {
        EntryAddr(table.phys_addr() | (index as u64 % ENTRIES as u64) << 3)
    }

    /// Returns the address of the entry that contains the byte at this address.
    #[must_use]
    pub const fn from_phys_addr(address: u64) -> EntryAddr {
        EntryAddr(address & !7)
    }

    /// Returns the frame of the table that contains the entry.
    #[must_use]
    pub fn table(self) -> Pfn {
        Pfn::containing(self.0).unwrap_or(Pfn::LIMIT)
    }

    /// Returns the entry's index in its table.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 >> 3) as usize % ENTRIES
    }

    /// Returns the physical address as a number.
    #[must_use]
    pub const fn phys_addr(self) -> u64 {
        self.0
    }

    /// Returns the address of the entry that is `entries` entries after this one. The caller
    /// ensures that both are in the same table.
    #[must_use]
    pub(crate) const fn after(self, entries: u64) -> EntryAddr {
        EntryAddr(self.0.wrapping_add(entries * size_of::<u64>() as u64))
    }
}

impl<F: Format> core::fmt::Debug for Entry<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "entry {:#x}", self.0)
    }
}

impl core::fmt::Debug for EntryAddr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "entry at {:#x}", self.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::{X86_64, X86Flags as Flags};

    type Entry = super::Entry<X86_64>;

    #[test]
    fn the_level_and_the_flags_decide_the_kind_of_an_entry() {
        let frame = Pfn::new(0x1234).unwrap();
        let table = Entry::new(frame, Flags::PRESENT);
        let large = Entry::new(frame, Flags::PRESENT | Flags::LARGE);
        assert_eq!(table.kind(Level::L1), Kind::Page);
        assert_eq!(table.kind(Level::L4), Kind::Table(frame));
        assert_eq!(large.kind(Level::L1), Kind::Page, "bit 7 of an L1 entry is the PAT bit");
        assert_eq!(large.kind(Level::L3), Kind::Page);
        assert_eq!(large.kind(Level::L4), Kind::Malformed);
        assert_eq!(Entry::from_bits(0x60).kind(Level::L1), Kind::Empty);
        assert_eq!(Entry::from_bits(0x2).kind(Level::L1), Kind::Software);
    }

    #[test]
    fn the_pat_bit_is_not_part_of_a_large_pages_frame() {
        let entry = Entry::from_bits(0x4020_0000 | 1 << 12 | 0x81);
        assert_eq!(entry.frame(Level::L2), Pfn::containing(0x4020_0000));
        let part = entry.part(Level::L2, 3).unwrap();
        assert_eq!(part.bits(), 0x4020_3000 | 0x81, "the PAT bit is bit 7 in an L1 entry");
        let entry = Entry::from_bits(0x4000_0000 | 1 << 12 | 0xe3);
        assert_eq!(entry.part(Level::L3, 1).unwrap().bits(), 0x4020_0000 | 1 << 12 | 0xe3);
        let plain = Entry::from_bits(0x4020_0000 | 0xe3);
        assert_eq!(plain.part(Level::L2, 0).unwrap().bits(), 0x4020_0000 | 0x63);
    }

    #[test]
    fn the_address_of_an_entry_gives_its_table_and_its_index() {
        let addr = EntryAddr::new(Pfn::new(7).unwrap(), 511);
        assert_eq!((addr.phys_addr(), addr.table().number(), addr.index()), (0x7ff8, 7, 511));
    }
}
