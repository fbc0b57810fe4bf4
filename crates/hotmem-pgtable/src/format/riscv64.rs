//! Defines the format of riscv64: see the RISC-V privileged specification, "Sv39", "Sv48" and
//! "Sv57" in the chapter of the supervisor level. The three have the same entries, and differ in the
//! level of the root.

use crate::format::{Attributes, Format, PRESENT, flag_if, sign_extended};
use crate::level::{Kind, Level};
use hotmem_addr::Pfn;

/// The format of riscv64. The root's level is 3 (Sv39), 4 (Sv48) or 5 (Sv57). Every level has pages.
/// Not supported are naturally aligned groups of pages (Svnapot), and pages that can be executed but
/// not read: such entries are malformed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Riscv64;

bitflags::bitflags! {
    /// The bits of an entry other than the address.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Riscv64Flags: u64 {
        /// The processor uses the entry. Without this bit all other bits belong to the kernel.
        const VALID = 1 << 0;
        /// The entry maps a page, which may be read, and does not point to a table.
        const READABLE = 1 << 1;
        /// Writes to the page are allowed.
        const WRITABLE = 1 << 2;
        /// The page may be executed.
        const EXECUTABLE = 1 << 3;
        /// The page belongs to user mode.
        const USER = 1 << 4;
        /// The page is global: a flush of one address space keeps its translation in the TLB.
        const GLOBAL = 1 << 5;
        /// The page was accessed since this bit was last cleared. The processor sets this bit
        /// (Svadu), or faults (Svade).
        const ACCESSED = 1 << 6;
        /// The page was written since this bit was last cleared. The processor sets this bit
        /// (Svadu), or faults (Svade).
        const DIRTY = 1 << 7;
        /// The bits that the processor ignores, so that the kernel may use them.
        const AVAILABLE = 0b11 << 8;
        /// NC: the page is uncached memory, whatever its physical address is (Svpbmt). A processor
        /// without Svpbmt faults.
        const NON_CACHEABLE = 1 << 61;
        /// IO: the page is registers of a device, whatever its physical address is (Svpbmt). A
        /// processor without Svpbmt faults, and each processor if `NON_CACHEABLE` is set too.
        const IO = 1 << 62;
    }
}

impl Riscv64Flags {
    /// The flags that the processor sets: Accessed and Dirty.
    pub const ACCESSED_DIRTY: Riscv64Flags = Riscv64Flags::ACCESSED.union(Riscv64Flags::DIRTY);
    /// The flags of the memory type of a page. If neither is set, the physical address decides.
    pub const MEMORY_TYPE: Riscv64Flags = Riscv64Flags::NON_CACHEABLE.union(Riscv64Flags::IO);
}

const READABLE: u64 = Riscv64Flags::READABLE.bits();
const ACCESSES: u64 = READABLE | Riscv64Flags::WRITABLE.bits() | Riscv64Flags::EXECUTABLE.bits();
const ACCESSED_DIRTY: u64 = Riscv64Flags::ACCESSED_DIRTY.bits();
const MEMORY_TYPE: u64 = Riscv64Flags::MEMORY_TYPE.bits();
/// The bits that are reserved in all entries, and the bit of Svnapot.
const RESERVED: u64 = 0x7f << 54 | 1 << 63;
/// The bits that are reserved in entries that point to tables.
const RESERVED_IN_LINKS: u64 = RESERVED | MEMORY_TYPE | ACCESSED_DIRTY | Riscv64Flags::USER.bits();

impl Format for Riscv64 {
    type Flags = Riscv64Flags;
    type Half = ();

    const LOWER_HALF: Self::Half = ();
    const ADDRESS: u64 = 0x003f_ffff_ffff_fc00;
    const ADDRESS_SHIFT: u32 = 2;
    /// Without `READABLE`, an entry would point to a table. With both flags of `MEMORY_TYPE`, an entry
    /// is malformed, and a change of the type would leave data in caches.
    const UNCHANGEABLE: Riscv64Flags = Riscv64Flags::VALID
        .union(Riscv64Flags::READABLE)
        .union(Riscv64Flags::ACCESSED_DIRTY)
        .union(Riscv64Flags::MEMORY_TYPE);
    const SPANS_BOTH_HALVES: bool = true;
    /// A processor that caches both uses either one, and they agree until the flush.
    const SPLITS_IN_PLACE: bool = true;

    #[inline]
    fn kind_of_present(bits: u64, level: Level) -> Kind {
        let address = (bits & Self::ADDRESS) << Self::ADDRESS_SHIFT;
        if bits & ACCESSES != 0 {
            let is_malformed = bits & READABLE == 0
                || bits & RESERVED != 0
                || bits & MEMORY_TYPE == MEMORY_TYPE
                || address & (level.entry_span().0 - 1) != 0;
            return if is_malformed { Kind::Malformed } else { Kind::Page };
        }
        if level == Level::L1 || bits & RESERVED_IN_LINKS != 0 {
            return Kind::Malformed;
        }
        Pfn::containing(address).map_or(Kind::Malformed, Kind::Table)
    }

    #[inline]
    fn has_final_flags(bits: u64) -> bool {
        bits & PRESENT == 0 || bits & ACCESSED_DIRTY == ACCESSED_DIRTY
    }

    #[inline]
    fn is_accessed(bits: u64) -> bool {
        bits & Riscv64Flags::ACCESSED.bits() != 0
    }

    #[inline]
    fn is_dirty(bits: u64) -> bool {
        bits & Riscv64Flags::DIRTY.bits() != 0
    }

    fn is_writable(bits: u64) -> bool {
        bits & Riscv64Flags::WRITABLE.bits() != 0
    }

    fn with_use(bits: u64, accessed: bool, dirty: bool) -> u64 {
        bits | flag_if(accessed, Riscv64Flags::ACCESSED.bits())
            | flag_if(dirty, Riscv64Flags::DIRTY.bits())
    }

    fn without_use(bits: u64) -> u64 {
        bits & !ACCESSED_DIRTY
    }

    fn changed(bits: u64, set: Riscv64Flags, clear: Riscv64Flags) -> u64 {
        bits & !clear.bits() | set.bits()
    }

    fn link_flags() -> Riscv64Flags {
        Riscv64Flags::VALID
    }

    fn part_flags(bits: u64, _: Level) -> u64 {
        bits & !Self::ADDRESS
    }

    /// The memory type is always the one of the physical address, because the bits for another one
    /// fault on processors without Svpbmt.
    fn page_flags(attributes: Attributes, _: Level) -> Riscv64Flags {
        let Attributes { writable, executable, user, global, used, caching: _ } = attributes;
        let mut flags = Riscv64Flags::VALID | Riscv64Flags::READABLE;
        flags.set(Riscv64Flags::WRITABLE, writable);
        flags.set(Riscv64Flags::EXECUTABLE, executable);
        flags.set(Riscv64Flags::USER, user);
        flags.set(Riscv64Flags::GLOBAL, global);
        flags.set(Riscv64Flags::ACCESSED_DIRTY, used);
        flags
    }

    fn size_flags(_: Level) -> Riscv64Flags {
        Riscv64Flags::empty()
    }

    fn kernel_flag() -> Riscv64Flags {
        Riscv64Flags::from_bits_retain(1 << 8)
    }

    fn half_of(_: u64) {}

    #[inline]
    fn address_at(offset: u64, space_size: u64, (): ()) -> u64 {
        sign_extended(offset, space_size)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::entry::Entry;
    use crate::mmu::Change;

    const LEVELS: [Level; 5] = [Level::L1, Level::L2, Level::L3, Level::L4, Level::L5];

    #[test]
    fn an_entry_without_read_write_and_execute_points_to_a_table_above_level_1() {
        // PPN 0x12345 in bits 53 to 10.
        let bits = 0x12345 << 10 | 1;
        let table = Kind::Table(Pfn::new(0x12345).unwrap());
        let expected = [Kind::Malformed, table, table, table, table];
        assert_eq!(LEVELS.map(|level| Riscv64::kind_of_present(bits, level)), expected);
        for reserved in [1 << 4, 1 << 6, 1 << 7, 1 << 54, 1 << 60, 1 << 61, 1 << 62, 1 << 63] {
            let kind = Riscv64::kind_of_present(bits | reserved, Level::L2);
            assert_eq!(kind, Kind::Malformed, "{reserved:#x}");
        }
        for ignored in [1 << 5, 1 << 8, 1 << 9] {
            assert_eq!(Riscv64::kind_of_present(bits | ignored, Level::L2), table);
        }
    }

    #[test]
    fn every_level_has_pages_which_are_aligned_to_their_size() {
        for (order, level) in (0..).step_by(9).zip(LEVELS) {
            let aligned = 1 << (10 + order) | 0b11;
            assert_eq!(Riscv64::kind_of_present(aligned, level), Kind::Page, "{level:?}");
            if level != Level::L1 {
                let unaligned = 1 << (9 + order) | 0b11;
                assert_eq!(Riscv64::kind_of_present(unaligned, level), Kind::Malformed);
            }
        }
    }

    #[test]
    fn pages_with_reserved_bits_or_without_read_are_malformed() {
        for bits in [0b0101, 0b1101, 0b1001, 0b11 | 1 << 54, 0b11 | 1 << 63, 0b11 | 3 << 61] {
            assert_eq!(Riscv64::kind_of_present(bits, Level::L1), Kind::Malformed, "{bits:#b}");
        }
        for bits in [0b0011, 0b0111, 0b1011, 0b1111, 0b11 | 1 << 61, 0b11 | 2 << 61] {
            assert_eq!(Riscv64::kind_of_present(bits, Level::L1), Kind::Page, "{bits:#b}");
        }
    }

    #[test]
    fn no_change_of_flags_makes_a_page_malformed() {
        let page = Entry::<Riscv64>::page(Pfn::ZERO, Attributes::KERNEL_DATA, Level::L1).unwrap();
        let none = Riscv64Flags::empty();
        for flag in Riscv64Flags::all().iter() {
            for change in [Change::new(flag, none), Change::new(none, flag)].into_iter().flatten() {
                assert_eq!(change.apply(page).kind(Level::L1), Kind::Page, "{change:?}");
            }
        }
    }

    #[test]
    fn attributes_become_the_bits_of_the_specification() {
        let flags = |attributes| Riscv64::page_flags(attributes, Level::L2).bits();
        let data = Attributes::KERNEL_DATA;
        assert_eq!(flags(data), 0b1100_0111);
        assert_eq!(flags(Attributes { used: false, ..data }), 0b0000_0111);
        assert_eq!(flags(Attributes::KERNEL_READ_ONLY), 0b1100_0011);
        assert_eq!(flags(Attributes { executable: true, ..data }), 0b1100_1111);
        assert_eq!(flags(Attributes { user: true, global: true, ..data }), 0b1111_0111);
    }
}
