//! Defines the format of x86-64: see Intel SDM volume 3, 4.5, and AMD APM volume 2, 5.3.

use crate::format::{Attributes, Caching, Format, PRESENT, flag_if, sign_extended};
use crate::level::{Kind, Level};
use hotmem_addr::Pfn;

/// The format of x86-64. The root's level is 4 or 5.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct X86_64;

bitflags::bitflags! {
    /// The bits of an entry other than the address.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct X86Flags: u64 {
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

impl X86Flags {
    /// The flags that the processor sets: Accessed and Dirty.
    pub const ACCESSED_DIRTY: X86Flags = X86Flags::ACCESSED.union(X86Flags::DIRTY);
}

/// The PAT bit of large pages; in small pages it is bit 7.
const LARGE_PAT: u64 = 1 << 12;
const LARGE: u64 = X86Flags::LARGE.bits();
const ACCESSED_DIRTY: u64 = X86Flags::ACCESSED_DIRTY.bits();

impl Format for X86_64 {
    type Flags = X86Flags;
    type Half = ();

    const LOWER_HALF: Self::Half = ();
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    const LARGE_FLAGS: u64 = LARGE_PAT;
    const LEFTOVER: u64 = ACCESSED_DIRTY;
    const UNCHANGEABLE: X86Flags =
        X86Flags::PRESENT.union(X86Flags::LARGE).union(X86Flags::ACCESSED_DIRTY);
    const LOWEST_ARE_PAGES: bool = true;
    const SPANS_BOTH_HALVES: bool = true;
    /// A TLB may cache translations of both page sizes for one address, as long as they agree (SDM
    /// volume 3, 4.10.2.3 and 4.10.4.2).
    const SPLITS_IN_PLACE: bool = true;

    #[inline]
    fn kind_of_present(bits: u64, level: Level) -> Kind {
        let large = bits & LARGE != 0;
        match level {
            Level::L1 => Kind::Page,
            Level::L2 | Level::L3 if large => Kind::Page,
            _ if large => Kind::Malformed,
            _ => Pfn::containing(bits & Self::ADDRESS).map_or(Kind::Malformed, Kind::Table),
        }
    }

    #[inline]
    fn has_final_flags(bits: u64) -> bool {
        bits & PRESENT == 0 || bits & ACCESSED_DIRTY == ACCESSED_DIRTY
    }

    #[inline]
    fn is_accessed(bits: u64) -> bool {
        bits & X86Flags::ACCESSED.bits() != 0
    }

    #[inline]
    fn is_dirty(bits: u64) -> bool {
        bits & X86Flags::DIRTY.bits() != 0
    }

    fn is_writable(bits: u64) -> bool {
        bits & X86Flags::WRITABLE.bits() != 0
    }

    #[inline]
    fn with_use(bits: u64, accessed: bool, dirty: bool) -> u64 {
        bits | flag_if(accessed, X86Flags::ACCESSED.bits()) | flag_if(dirty, X86Flags::DIRTY.bits())
    }

    #[inline]
    fn without_use(bits: u64) -> u64 {
        bits & !ACCESSED_DIRTY
    }

    #[inline]
    fn changed(bits: u64, set: X86Flags, clear: X86Flags) -> u64 {
        bits & !clear.bits() | set.bits()
    }

    fn link_flags() -> X86Flags {
        X86Flags::PRESENT | X86Flags::WRITABLE | X86Flags::USER | X86Flags::ACCESSED
    }

    fn part_flags(bits: u64, below: Level) -> u64 {
        let has_pat = bits & LARGE_PAT != 0;
        bits & !Self::ADDRESS & !LARGE
            | match below {
                Level::L1 => flag_if(has_pat, LARGE),
                _ => LARGE | flag_if(has_pat, LARGE_PAT),
            }
    }

    fn page_flags(attributes: Attributes, level: Level) -> X86Flags {
        let Attributes { writable, executable, user, global, used, caching } = attributes;
        let mut flags = X86Flags::PRESENT | Self::size_flags(level);
        flags.set(X86Flags::WRITABLE, writable);
        flags.set(X86Flags::NO_EXECUTE, !executable);
        flags.set(X86Flags::USER, user);
        flags.set(X86Flags::GLOBAL, global);
        flags.set(X86Flags::ACCESSED_DIRTY, used);
        flags.set(X86Flags::WRITE_THROUGH | X86Flags::CACHE_DISABLE, caching == Caching::Uncached);
        flags
    }

    fn size_flags(level: Level) -> X86Flags {
        if level == Level::L1 { X86Flags::empty() } else { X86Flags::LARGE }
    }

    fn kernel_flag() -> X86Flags {
        X86Flags::from_bits_retain(1 << 9)
    }

    fn half_of(_: u64) {}

    #[inline]
    fn address_at(offset: u64, space_size: u64, (): ()) -> u64 {
        sign_extended(offset, space_size)
    }
}
