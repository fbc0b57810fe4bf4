//! One entry of a page table: Intel SDM volume 3, 4.5; AMD APM volume 2, 5.3.

use hotmem_addr::{Bytes, Pfn};
use hotmem_invariant::Known;

/// The number of address bits that index one table; fewer under loom, whose machines are small.
pub(crate) const INDEX_BITS: u32 = if cfg!(loom) { 3 } else { 9 };

/// Entries in a table.
pub const ENTRIES: usize = 1 << INDEX_BITS;

/// Entries in a cache line.
pub(crate) const LINE: usize = 8;

const PAGE_SHIFT: u32 = 12;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The PAT bit of large pages; in small pages it is bit 7.
const LARGE_PAT: u64 = 1 << 12;

bitflags::bitflags! {
    /// The bits of an entry other than the address.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Flags: u64 {
        /// The processor uses the entry. Without this bit all other bits belong to the kernel.
        const PRESENT = 1 << 0;
        /// Writes are allowed.
        const WRITABLE = 1 << 1;
        /// User mode is allowed.
        const USER = 1 << 2;
        /// Cached write-through.
        const WRITE_THROUGH = 1 << 3;
        /// Not cached.
        const CACHE_DISABLE = 1 << 4;
        /// Accessed since the bit was last cleared; set by the processor.
        const ACCESSED = 1 << 5;
        /// Written since the bit was last cleared; set by the processor.
        const DIRTY = 1 << 6;
        /// Above L1: the entry maps a page, not a table. In L1: the PAT bit.
        const LARGE = 1 << 7;
        /// Global: the translation survives a flush of one address space.
        const GLOBAL = 1 << 8;
        /// Ignored by the processor, and available to the kernel.
        const AVAILABLE = 0b111 << 9 | 0x7f << 52;
        /// Protection key.
        const KEY = 0xf << 59;
        /// Not to be executed.
        const NO_EXECUTE = 1 << 63;
    }
}

/// A level of tables, by its number: tables of [`Level::L1`] map pages of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// Page tables.
    L1 = 1,
    /// Page directories: tables, or pages of 2 MiB.
    L2,
    /// Page-directory-pointer tables: directories, or pages of 1 GiB.
    L3,
    /// The root of four levels.
    L4,
    /// The root of five levels.
    L5,
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Entry(u64);

/// The physical address of an entry. Under Xen it is a machine address, like the addresses in
/// entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct EntryAddr(u64);

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Not in use. Accessed and Dirty may be left over from a former page, because Xen cannot clear
    /// them.
    Empty,
    /// Data of the kernel in an entry that is not present, for example of a page that is swapped
    /// out or being migrated.
    Software,
    /// A page.
    Page,
    /// A table of the level below.
    Table(Pfn),
    /// A large page on a level that has no pages.
    Malformed,
}

impl Level {
    const ALL: [Level; 5] = [Level::L1, Level::L2, Level::L3, Level::L4, Level::L5];

    /// Returns the level of the tables that this level's entries point to.
    #[must_use]
    pub fn below(self) -> Option<Level> {
        Self::ALL.get((self as usize).checked_sub(2)?).copied()
    }

    /// Returns the span of one entry: 4 KiB, 2 MiB, 1 GiB…
    #[must_use]
    pub const fn entry_bytes(self) -> Bytes {
        Bytes(1 << (PAGE_SHIFT + INDEX_BITS * (self as u32 - 1)))
    }

    /// Returns the index, in a table of this level, of the entry for an offset into the root's
    /// span.
    pub(crate) fn index(self, offset: u64) -> usize {
        // The remainder is below `ENTRIES`; the quotient may not fit in 32 bits.
        let index = offset / self.entry_bytes().0 % ENTRIES as u64;
        usize::try_from(index).known().unwrap_or_default()
    }

    /// Returns the span of a table of this level.
    #[must_use]
    pub const fn table_bytes(self) -> Bytes {
        Bytes(self.entry_bytes().0 << INDEX_BITS)
    }
}

impl Entry {
    /// The empty entry.
    pub const EMPTY: Entry = Entry(0);

    /// Returns the entry with these bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Entry {
        Entry(bits)
    }

    /// Makes an entry for a frame.
    #[must_use]
    pub const fn new(frame: Pfn, flags: Flags) -> Entry {
        Entry(frame.phys_addr() & ADDRESS | flags.bits() & !ADDRESS)
    }

    /// Returns its bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the bits other than the address.
    #[must_use]
    pub const fn flags(self) -> Flags {
        Flags::from_bits_retain(self.0 & !ADDRESS)
    }

    /// Returns the first frame that it points to, if it is present. In large pages the lowest
    /// address bit is the PAT bit.
    #[must_use]
    pub fn frame(self, level: Level) -> Option<Pfn> {
        let size = if self.kind(level) == Kind::Page { level } else { Level::L1 };
        let address = self.0 & ADDRESS & !(size.entry_bytes().0 - 1);
        self.is_present().then(|| Pfn::containing(address)).flatten()
    }

    /// Returns whether the processor uses it.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.flags().contains(Flags::PRESENT)
    }

    /// Returns whether no bits are set except, perhaps, Accessed and Dirty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 & !Flags::USED.bits() == 0
    }

    /// Returns whether a processor has nothing to set in it: it is not present, or has both
    /// Accessed and Dirty already.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        !self.is_present() || self.flags().contains(Flags::USED)
    }

    /// Returns the kind of this entry in a table of this level.
    #[must_use]
    pub fn kind(self, level: Level) -> Kind {
        let large = self.flags().contains(Flags::LARGE);
        match level {
            _ if self.is_empty() => Kind::Empty,
            _ if !self.is_present() => Kind::Software,
            Level::L1 => Kind::Page,
            Level::L2 | Level::L3 if large => Kind::Page,
            _ if large => Kind::Malformed,
            _ => Pfn::containing(self.0 & ADDRESS).map_or(Kind::Malformed, Kind::Table),
        }
    }

    /// Returns the entry with these flags set in addition.
    #[must_use]
    pub const fn with(self, flags: Flags) -> Entry {
        Entry(self.0 | flags.bits() & !ADDRESS)
    }

    /// Returns an entry for a table. It allows all accesses, so that the pages below decide.
    #[must_use]
    pub const fn link(table: Pfn) -> Entry {
        let all = Flags::PRESENT.union(Flags::WRITABLE).union(Flags::USER);
        Entry::new(table, all.union(Flags::ACCESSED))
    }

    /// Returns the entry of the same page with its contents in other frames, from `frame` on, or
    /// `None` if no page of this level can begin there.
    #[must_use]
    pub const fn moved_to(self, frame: Pfn, level: Level) -> Option<Entry> {
        let within = level.entry_bytes().0 - 1;
        let address = frame.phys_addr();
        let kept = self.0 & (!ADDRESS | LARGE_PAT & within);
        if address & within == 0 { Some(Entry(kept | address)) } else { None }
    }

    /// Returns the entry for part `index` of a large page, one level below, with the same flags.
    pub(crate) fn part(self, level: Level, index: usize) -> Option<Entry> {
        let below = level.below()?;
        let offset = index as u64 * below.entry_bytes().0;
        let address = self.frame(level)?.phys_addr() + offset;
        let mut bits = self.flags().bits() & !Flags::LARGE.bits() | address;
        bits |= match (below, self.0 & LARGE_PAT != 0) {
            (Level::L1, pat) => u64::from(pat) * Flags::LARGE.bits(),
            (_, pat) => Flags::LARGE.bits() | (u64::from(pat) * LARGE_PAT),
        };
        Some(Entry(bits))
    }
}

impl Flags {
    /// The flags that the processor sets: Accessed and Dirty.
    pub const USED: Flags = Flags::ACCESSED.union(Flags::DIRTY);
}

impl EntryAddr {
    /// Returns the address of entry `index` of a table; wraps within it.
    #[must_use]
    pub const fn new(table: Pfn, index: usize) -> EntryAddr {
        EntryAddr(table.phys_addr() | (index as u64 % ENTRIES as u64) << 3)
    }

    /// Returns the entry that holds the byte at this address.
    #[must_use]
    pub const fn from_phys_addr(address: u64) -> EntryAddr {
        EntryAddr(address & !7)
    }

    /// Returns the table.
    #[must_use]
    pub fn table(self) -> Pfn {
        Pfn::containing(self.0).unwrap_or(Pfn::LIMIT)
    }

    /// Returns the entry's index in its table.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 >> 3) as usize % ENTRIES
    }

    /// Returns the address.
    #[must_use]
    pub const fn phys_addr(self) -> u64 {
        self.0
    }

    /// Returns the address of the entry that lies `entries` further on in the same table.
    #[must_use]
    pub(crate) const fn after(self, entries: u64) -> EntryAddr {
        EntryAddr(self.0.wrapping_add(entries * size_of::<Entry>() as u64))
    }
}

impl core::fmt::Debug for Entry {
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

    #[test]
    fn kinds() {
        let frame = Pfn::new(0x1234).unwrap();
        let table = Entry::new(frame, Flags::PRESENT);
        let large = Entry::new(frame, Flags::PRESENT | Flags::LARGE);
        assert_eq!(table.kind(Level::L1), Kind::Page);
        assert_eq!(table.kind(Level::L4), Kind::Table(frame));
        assert_eq!(large.kind(Level::L1), Kind::Page, "bit 7 is the PAT bit there");
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
        assert_eq!(part.bits(), 0x4020_3000 | 0x81, "the PAT bit moves to bit 7");
        let entry = Entry::from_bits(0x4000_0000 | 1 << 12 | 0xe3);
        assert_eq!(entry.part(Level::L3, 1).unwrap().bits(), 0x4020_0000 | 1 << 12 | 0xe3);
        let plain = Entry::from_bits(0x4020_0000 | 0xe3);
        assert_eq!(plain.part(Level::L2, 0).unwrap().bits(), 0x4020_0000 | 0x63);
    }

    #[test]
    fn addresses_of_entries() {
        let at = EntryAddr::new(Pfn::new(7).unwrap(), 511);
        assert_eq!((at.phys_addr(), at.table().number(), at.index()), (0x7ff8, 7, 511));
    }

    #[test]
    fn levels() {
        assert_eq!(Level::L1.below(), None);
        assert_eq!(Level::L5.below(), Some(Level::L4));
        assert_eq!(Level::L2.entry_bytes(), Bytes::mib(2));
        assert_eq!(Level::L4.table_bytes(), Bytes::tib(256));
    }
}
