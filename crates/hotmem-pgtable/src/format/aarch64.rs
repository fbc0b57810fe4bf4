//! Defines the format of aarch64 with the 4 KiB granule and addresses of 48 bits: see Arm ARM,
//! D8.3 (VMSAv8-64 translation table descriptors) and D8.16.1 (break-before-make).
//!
//! Writable and dirty share two bits, as in the hardware's own scheme (FEAT_HAFDBS) and in Linux: a
//! page with [`WRITABLE`](Aarch64Flags::WRITABLE) and [`CLEAN`](Aarch64Flags::CLEAN) becomes dirty
//! when `CLEAN` is cleared, by the processor or, without FEAT_HAFDBS, by the kernel's fault handler.
//! A page that becomes read-only after it was written keeps [`DIRTY`](Aarch64Flags::DIRTY).

use crate::format::{Attributes, Caching, Format, PRESENT, flag_if};
use crate::level::{Kind, Level};
use hotmem_addr::Pfn;

/// The format of aarch64 with the 4 KiB granule, for stage 1 of EL1 and EL0. The root's level is 4
/// (addresses of 48 bits) or 3 (39 bits). Not supported are 52-bit addresses (FEAT_LPA2), and the
/// contiguous bit: an entry with this bit is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Aarch64;

/// The register with the root. Each root translates one half of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ttbr {
    /// `TTBR0_EL1`: the addresses from 0 on, usually those of user mode.
    Ttbr0,
    /// `TTBR1_EL1`: the addresses up to the last one, usually those of the kernel.
    Ttbr1,
}

/// The value of `MAIR_EL1` that [`Caching`] relies on: attribute 0 is write-back memory, and
/// attribute 1 is Device-nGnRE. The kernel may use the other attributes for itself.
pub const MAIR: u64 = 0x04_ff;

bitflags::bitflags! {
    /// The bits of an entry other than the address.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Aarch64Flags: u64 {
        /// The processor uses the entry. Without this bit all other bits belong to the kernel.
        const VALID = 1 << 0;
        /// Above L1: the entry points to a table and does not map a block. In L1: always set.
        const TABLE = 1 << 1;
        /// The index of the page's attributes in `MAIR_EL1`: see [`MAIR`].
        const ATTRIBUTES = 0b111 << 2;
        /// AP\[1\]: accesses in EL0 are allowed.
        const USER = 1 << 6;
        /// AP\[2\]: the page was not written since this bit was last set, or must not be written.
        /// The processor clears the bit if the page is [`WRITABLE`](Self::WRITABLE).
        const CLEAN = 1 << 7;
        /// The shareability of the page: 0b11 is inner shareable.
        const SHAREABILITY = 0b11 << 8;
        /// AF: the page was accessed since this bit was last cleared. The processor sets this bit,
        /// or faults.
        const ACCESSED = 1 << 10;
        /// nG: the translation belongs to one address space.
        const NOT_GLOBAL = 1 << 11;
        /// GP: the page is guarded: branches into it must go to landing pads.
        const GUARDED = 1 << 50;
        /// DBM: writes to the page are allowed, and make it dirty.
        const WRITABLE = 1 << 51;
        /// PXN: the page must not be executed in EL1.
        const NO_KERNEL_EXECUTE = 1 << 53;
        /// UXN: the page must not be executed in EL0.
        const NO_USER_EXECUTE = 1 << 54;
        /// The page was written before it became read-only. The processor ignores the bit.
        const DIRTY = 1 << 55;
        /// The bits that the processor ignores, so that the kernel may use them.
        const AVAILABLE = 0b111 << 56;
    }
}

const TABLE: u64 = Aarch64Flags::TABLE.bits();
const CLEAN: u64 = Aarch64Flags::CLEAN.bits();
const ACCESSED: u64 = Aarch64Flags::ACCESSED.bits();
const WRITABLE: u64 = Aarch64Flags::WRITABLE.bits();
const DIRTY: u64 = Aarch64Flags::DIRTY.bits();
const CONTIGUOUS: u64 = 1 << 52;
/// nT: a hint for a block that is about to become a table, or was one (FEAT_BBM level 1).
const BLOCK_NOT_CACHED: u64 = 1 << 16;

/// Attribute 1 of [`MAIR`].
const DEVICE: Aarch64Flags = Aarch64Flags::from_bits_retain(1 << 2);

impl Format for Aarch64 {
    type Flags = Aarch64Flags;
    type Half = Ttbr;

    const LOWER_HALF: Self::Half = Ttbr::Ttbr0;
    const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
    const LARGE_FLAGS: u64 = BLOCK_NOT_CACHED;
    /// The flags of memory type, of shareability and of global translations need
    /// break-before-make; permissions do not.
    const UNCHANGEABLE: Aarch64Flags = Aarch64Flags::VALID
        .union(Aarch64Flags::TABLE)
        .union(Aarch64Flags::CLEAN)
        .union(Aarch64Flags::ACCESSED)
        .union(Aarch64Flags::DIRTY)
        .union(Aarch64Flags::ATTRIBUTES)
        .union(Aarch64Flags::SHAREABILITY)
        .union(Aarch64Flags::NOT_GLOBAL);
    const SPANS_BOTH_HALVES: bool = false;
    /// A change between a block and a table needs break-before-make, except with FEAT_BBM level 2,
    /// which this format does not rely on.
    const SPLITS_IN_PLACE: bool = false;

    #[inline]
    fn kind_of_present(bits: u64, level: Level) -> Kind {
        let is_table_or_page = bits & TABLE != 0;
        match level {
            _ if bits & CONTIGUOUS != 0 && (level == Level::L1 || !is_table_or_page) => {
                Kind::Malformed
            }
            Level::L1 if is_table_or_page => Kind::Page,
            Level::L2 | Level::L3 if !is_table_or_page => Kind::Page,
            Level::L2 | Level::L3 | Level::L4 if is_table_or_page => {
                Pfn::containing(bits & Self::ADDRESS).map_or(Kind::Malformed, Kind::Table)
            }
            _ => Kind::Malformed,
        }
    }

    #[inline]
    fn has_final_flags(bits: u64) -> bool {
        let may_become_dirty = bits & (WRITABLE | CLEAN) == WRITABLE | CLEAN;
        bits & PRESENT == 0 || bits & ACCESSED != 0 && !may_become_dirty
    }

    #[inline]
    fn is_accessed(bits: u64) -> bool {
        bits & ACCESSED != 0
    }

    /// A page that is not clean may be written at any time without a trace.
    #[inline]
    fn is_dirty(bits: u64) -> bool {
        bits & CLEAN == 0 || bits & DIRTY != 0
    }

    fn is_writable(bits: u64) -> bool {
        bits & WRITABLE != 0 || bits & CLEAN == 0
    }

    fn with_use(bits: u64, accessed: bool, dirty: bool) -> u64 {
        let bits = bits | flag_if(accessed, ACCESSED);
        match dirty {
            false => bits,
            true if bits & WRITABLE != 0 => bits & !CLEAN,
            true => bits | DIRTY,
        }
    }

    fn without_use(bits: u64) -> u64 {
        bits & !(ACCESSED | DIRTY) | flag_if(bits & WRITABLE != 0, CLEAN)
    }

    fn changed(bits: u64, set: Aarch64Flags, clear: Aarch64Flags) -> u64 {
        let changed = bits & !clear.bits() | set.bits();
        if set.contains(Aarch64Flags::WRITABLE) && changed & DIRTY != 0 {
            return changed & !(CLEAN | DIRTY);
        }
        if (clear - set).contains(Aarch64Flags::WRITABLE) && changed & CLEAN == 0 {
            return changed | CLEAN | DIRTY;
        }
        changed
    }

    fn link_flags() -> Aarch64Flags {
        Aarch64Flags::VALID | Aarch64Flags::TABLE
    }

    fn part_flags(bits: u64, below: Level) -> u64 {
        bits & !Self::ADDRESS | Self::size_flags(below).bits()
    }

    fn page_flags(attributes: Attributes, level: Level) -> Aarch64Flags {
        let Attributes { writable, executable, user, global, used, caching } = attributes;
        let mut flags = Aarch64Flags::VALID | Self::size_flags(level);
        flags |= match caching {
            Caching::WriteBack => Aarch64Flags::SHAREABILITY,
            Caching::Uncached => DEVICE,
        };
        flags.set(Aarch64Flags::WRITABLE, writable);
        flags.set(Aarch64Flags::CLEAN, !(writable && used));
        flags.set(Aarch64Flags::ACCESSED, used);
        flags.set(Aarch64Flags::USER, user);
        flags.set(Aarch64Flags::NOT_GLOBAL, !global);
        flags.set(Aarch64Flags::NO_USER_EXECUTE, !(executable && user));
        flags.set(Aarch64Flags::NO_KERNEL_EXECUTE, !executable || user);
        flags
    }

    fn size_flags(level: Level) -> Aarch64Flags {
        if level == Level::L1 { Aarch64Flags::TABLE } else { Aarch64Flags::empty() }
    }

    fn kernel_flag() -> Aarch64Flags {
        Aarch64Flags::from_bits_retain(1 << 56)
    }

    /// The processor chooses the root by bit 55, because the bits above it may be a tag.
    fn half_of(address: u64) -> Ttbr {
        if address & 1 << 55 == 0 { Ttbr::Ttbr0 } else { Ttbr::Ttbr1 }
    }

    #[inline]
    fn address_at(offset: u64, space_size: u64, half: Ttbr) -> u64 {
        match half {
            Ttbr::Ttbr0 => offset,
            Ttbr::Ttbr1 => offset | !(space_size - 1),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The bits of a block or page of the kernel with data, from the manual: AF, inner shareable,
    /// attribute 0, AP 0b00, PXN and UXN, nG, DBM.
    const KERNEL_BLOCK: u64 = 1 | 0b11 << 8 | 1 << 10 | 1 << 11 | 1 << 51 | 1 << 53 | 1 << 54;

    #[test]
    fn a_table_a_block_and_a_page_differ_by_bit_1_and_the_level() {
        let frame = Pfn::containing(0x4000_0000).unwrap();
        for (bits, kinds) in [
            (0b01, [Kind::Malformed, Kind::Page, Kind::Page, Kind::Malformed]),
            (0b11, [Kind::Page, Kind::Table(frame), Kind::Table(frame), Kind::Table(frame)]),
        ] {
            for (level, kind) in [Level::L1, Level::L2, Level::L3, Level::L4].into_iter().zip(kinds)
            {
                assert_eq!(Aarch64::kind_of_present(0x4000_0000 | bits, level), kind, "{level:?}");
            }
        }
        assert_eq!(Aarch64::kind_of_present(0b01, Level::L5), Kind::Malformed);
        assert_eq!(Aarch64::kind_of_present(0b11, Level::L5), Kind::Malformed);
    }

    #[test]
    fn a_contiguous_page_or_block_is_malformed_and_bit_52_of_a_table_is_ignored() {
        assert_eq!(Aarch64::kind_of_present(0b11 | 1 << 52, Level::L1), Kind::Malformed);
        assert_eq!(Aarch64::kind_of_present(0b01 | 1 << 52, Level::L2), Kind::Malformed);
        assert_eq!(Aarch64::kind_of_present(0b11 | 1 << 52, Level::L2), Kind::Table(Pfn::ZERO));
    }

    #[test]
    fn attributes_become_the_bits_of_the_manual() {
        let flags = |attributes, level| Aarch64::page_flags(attributes, level).bits();
        let data = Attributes::KERNEL_DATA;
        assert_eq!(flags(data, Level::L2), KERNEL_BLOCK);
        assert_eq!(flags(data, Level::L1), KERNEL_BLOCK | 0b10);
        let read_only = KERNEL_BLOCK & !(1 << 51) | 1 << 7;
        assert_eq!(flags(Attributes::KERNEL_READ_ONLY, Level::L2), read_only);
        let unused = Attributes { used: false, ..data };
        assert_eq!(flags(unused, Level::L2), KERNEL_BLOCK & !(1 << 10) | 1 << 7);
        let device = Attributes { caching: Caching::Uncached, global: true, ..data };
        assert_eq!(
            flags(device, Level::L2),
            KERNEL_BLOCK & !(0b11 << 8) & !(1 << 11) | 1 << 2,
            "attribute 1, and global"
        );
        let user_code = Attributes { user: true, executable: true, ..Attributes::KERNEL_READ_ONLY };
        assert_eq!(flags(user_code, Level::L2), read_only & !(1 << 54) | 1 << 6);
        let kernel_code = Attributes { executable: true, ..Attributes::KERNEL_READ_ONLY };
        assert_eq!(flags(kernel_code, Level::L2), read_only & !(1 << 53));
    }

    #[test]
    fn a_page_that_becomes_read_only_stays_dirty_and_cannot_be_written() {
        let write = Aarch64Flags::WRITABLE;
        let none = Aarch64Flags::empty();
        let protected = Aarch64::changed(KERNEL_BLOCK, none, write);
        assert_eq!(protected, KERNEL_BLOCK & !(1 << 51) | 1 << 7 | 1 << 55);
        assert!(Aarch64::is_dirty(protected));
        assert_eq!(Aarch64::changed(protected, write, none), KERNEL_BLOCK);
        let clean = KERNEL_BLOCK | 1 << 7;
        let protected = Aarch64::changed(clean, none, write);
        assert!(!Aarch64::is_dirty(protected));
        assert_eq!(Aarch64::changed(protected, write, none), clean);
        let always_writable = KERNEL_BLOCK & !(1 << 51);
        let protected = Aarch64::changed(always_writable, none, write);
        assert_eq!(protected, always_writable | 1 << 7 | 1 << 55);
    }

    #[test]
    fn the_processor_may_still_change_an_entry_that_is_unaccessed_or_clean_and_writable() {
        let clean = KERNEL_BLOCK | 1 << 7;
        for (bits, is_final) in [
            (KERNEL_BLOCK, true),
            (KERNEL_BLOCK & !(1 << 10), false),
            (clean, false),
            (clean & !(1 << 51), true),
            (clean & !1, true),
        ] {
            assert_eq!(Aarch64::has_final_flags(bits), is_final, "{bits:#x}");
        }
        assert_eq!(Aarch64::with_use(clean & !(1 << 10), true, true), KERNEL_BLOCK);
        assert_eq!(Aarch64::without_use(KERNEL_BLOCK), clean & !(1 << 10));
    }

    #[test]
    fn each_root_translates_one_half() {
        let size = 1 << 48;
        assert_eq!(Aarch64::address_at(size - 4096, size, Ttbr::Ttbr0), 0x0000_ffff_ffff_f000);
        assert_eq!(Aarch64::address_at(0, size, Ttbr::Ttbr1), 0xffff_0000_0000_0000);
        assert_eq!(Aarch64::half_of(0xffff_0000_0000_0000), Ttbr::Ttbr1);
        assert_eq!(Aarch64::half_of(0x0000_ffff_ffff_f000), Ttbr::Ttbr0);
    }

    #[test]
    fn a_tag_in_the_top_byte_does_not_choose_the_half() {
        assert_eq!(Aarch64::half_of(0xb400_0000_0000_1000), Ttbr::Ttbr0);
        assert_eq!(Aarch64::half_of(0x00ff_8000_0000_1000), Ttbr::Ttbr1);
    }
}
