//! Defines an entry of a page table: see Intel SDM volume 3, 4.5, and AMD APM volume 2, 5.3.

use hotmem_addr::{Bytes, Pfn};
use hotmem_invariant::OrRecordViolation;

/// The number of address bits that select an entry of one table. There are fewer under loom, whose
/// models must be small.
pub(crate) const INDEX_BITS: u32 = if cfg!(loom) { 3 } else { 9 };

/// The number of entries in a table.
pub const ENTRIES: usize = 1 << INDEX_BITS;

/// The number of entries in a cache line.
pub(crate) const LINE_ENTRIES: usize = 8;

const PAGE_SHIFT: u32 = 12;
const ADDRESS_MASK: u64 = 0x000f_ffff_ffff_f000;
/// The PAT bit of large pages; in small pages it is bit 7.
const LARGE_PAT: u64 = 1 << 12;

bitflags::bitflags! {
    /// The bits of an entry other than the address.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Flags: u64 {
        /// The processor uses the entry. Without this bit all other bits belong to the kernel.
        const PRESENT = 1 << 0;
        /// Writes to the page are allowed.
        const WRITABLE = 1 << 1;
        /// Accesses in user mode are allowed.
        const USER = 1 << 2;
        /// The page is cached write-through.
        const WRITE_THROUGH = 1 << 3;
        /// The page is not cached.
        const CACHE_DISABLE = 1 << 4;
        /// The page was accessed since this bit was last cleared. The processor sets this bit.
        const ACCESSED = 1 << 5;
        /// The page was written since this bit was last cleared. The processor sets this bit.
        const DIRTY = 1 << 6;
        /// Above L1: the entry maps a page, not a table. In L1: the PAT bit.
        const LARGE = 1 << 7;
        /// The page is global: a flush of one address space keeps its translation in the TLB.
        const GLOBAL = 1 << 8;
        /// The bits that the processor ignores, so that the kernel may use them.
        const AVAILABLE = 0b111 << 9 | 0x7f << 52;
        /// The protection key of the page.
        const KEY = 0xf << 59;
        /// The page must not be executed.
        const NO_EXECUTE = 1 << 63;
    }
}

/// The level of a table or of its entries. Entries of [`Level::L1`] map pages of 4 KiB.
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

/// The value of an entry.
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
    /// The entry is not in use. Accessed and Dirty may be left over from a previous page, because
    /// Xen cannot clear them.
    Empty,
    /// The entry is not present and holds data of the kernel, for example about a page that is
    /// swapped out or being migrated.
    Software,
    /// The entry maps a page.
    Page,
    /// The entry points to a table of the level below, in this frame.
    Table(Pfn),
    /// The entry maps a large page on a level that has no pages.
    Malformed,
}

impl Level {
    const ALL: [Level; 5] = [Level::L1, Level::L2, Level::L3, Level::L4, Level::L5];

    /// Returns the level of the tables that this level's entries point to, or `None` for
    /// [`Level::L1`].
    #[must_use]
    pub fn below(self) -> Option<Level> {
        Self::ALL.get((self as usize).checked_sub(2)?).copied()
    }

    /// Returns the number of bytes that one entry of this level spans: 4 KiB, 2 MiB, 1 GiB and so
    /// on.
    #[must_use]
    pub const fn entry_span(self) -> Bytes {
        Bytes(1 << (PAGE_SHIFT + INDEX_BITS * (self as u32 - 1)))
    }

    /// Returns the index of the entry for an offset into the root's span, in a table of this level.
    pub(crate) fn index(self, offset: u64) -> usize {
        // The remainder is below `ENTRIES`; the quotient may not fit in 32 bits.
        let index = offset / self.entry_span().0 % ENTRIES as u64;
        usize::try_from(index).or_record_violation().unwrap_or_default()
    }

    /// Returns the number of bytes that a table of this level spans.
    #[must_use]
    pub const fn table_span(self) -> Bytes {
        Bytes(self.entry_span().0 << INDEX_BITS)
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

    /// Returns the entry that points to `frame` and has these flags.
    #[must_use]
    pub const fn new(frame: Pfn, flags: Flags) -> Entry {
        Entry(frame.phys_addr() & ADDRESS_MASK | flags.bits() & !ADDRESS_MASK)
    }

    /// Returns the bits of the entry.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the bits other than the address.
    #[must_use]
    pub const fn flags(self) -> Flags {
        Flags::from_bits_retain(self.0 & !ADDRESS_MASK)
    }

    /// Returns the first frame that the entry points to, or `None` if the entry is not present. In
    /// entries of large pages, the lowest address bit is the PAT bit, not a bit of the frame.
    #[must_use]
    pub fn frame(self, level: Level) -> Option<Pfn> {
        let size = if self.kind(level) == Kind::Page { level } else { Level::L1 };
        let address = self.0 & ADDRESS_MASK & !(size.entry_span().0 - 1);
        self.is_present().then(|| Pfn::containing(address)).flatten()
    }

    /// Returns whether the processor uses the entry.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.flags().contains(Flags::PRESENT)
    }

    /// Returns whether no bit except Accessed and Dirty is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 & !Flags::ACCESSED_DIRTY.bits() == 0
    }

    /// Returns whether no processor will set Accessed or Dirty in the entry any more, because the
    /// entry is not present or has both bits already.
    #[must_use]
    pub const fn has_final_flags(self) -> bool {
        !self.is_present() || self.flags().contains(Flags::ACCESSED_DIRTY)
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
            _ => Pfn::containing(self.0 & ADDRESS_MASK).map_or(Kind::Malformed, Kind::Table),
        }
    }

    /// Returns the entry with these flags set in addition.
    #[must_use]
    pub const fn with(self, flags: Flags) -> Entry {
        Entry(self.0 | flags.bits() & !ADDRESS_MASK)
    }

    /// Returns the entry that points to `table`. The entry allows all accesses, so that the entries
    /// below decide which are allowed.
    #[must_use]
    pub const fn link(table: Pfn) -> Entry {
        let all = Flags::PRESENT.union(Flags::WRITABLE).union(Flags::USER);
        Entry::new(table, all.union(Flags::ACCESSED))
    }

    /// Returns the entry of the same page after its contents were moved to the frames from `frame`
    /// on. Returns `None` if no page of this level can begin at `frame`.
    #[must_use]
    pub const fn moved_to(self, frame: Pfn, level: Level) -> Option<Entry> {
        let offset_mask = level.entry_span().0 - 1;
        let address = frame.phys_addr();
        let kept_bits = self.0 & (!ADDRESS_MASK | LARGE_PAT & offset_mask);
        if address & offset_mask == 0 { Some(Entry(kept_bits | address)) } else { None }
    }

    /// Returns the entry, one level below, for part `index` of a large page, with the same flags.
    /// `level` is the level of the large page.
    pub(crate) fn part(self, level: Level, index: usize) -> Option<Entry> {
        let below = level.below()?;
        let offset = index as u64 * below.entry_span().0;
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
    pub const ACCESSED_DIRTY: Flags = Flags::ACCESSED.union(Flags::DIRTY);
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

    #[test]
    fn a_level_spans_512_entries_of_the_level_below() {
        assert_eq!(Level::L1.below(), None);
        assert_eq!(Level::L5.below(), Some(Level::L4));
        assert_eq!(Level::L2.entry_span(), Bytes::mib(2));
        assert_eq!(Level::L4.table_span(), Bytes::gib(256 << 10));
    }
}
