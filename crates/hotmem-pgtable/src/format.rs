//! Defines what the formats of entries have in common, and what each format decides.
//!
//! In all formats, a table has 512 entries of 64 bits, the lowest level maps pages of 4 KiB, and
//! bit 0 says whether the processor uses the entry.

mod aarch64;
mod riscv64;
mod x86_64;

pub use aarch64::{Aarch64, Aarch64Flags, MAIR, Ttbr};
pub use riscv64::{Riscv64, Riscv64Flags};
pub use x86_64::{X86_64, X86Flags};

use crate::level::{Kind, Level};
use core::fmt::Debug;
use core::hash::Hash;

/// The format of the entries of page tables. It is chosen by a type, and not by the target, so that
/// each format can be tested on every host.
///
/// The functions take and return the bits of entries. Kernels use [`Entry`](crate::Entry) instead.
/// They cannot implement it, so it has no stable set of items.
#[diagnostic::on_unimplemented(
    message = "`hotmem-pgtable` has no format of page table entries for this architecture",
    label = "no format of entries",
    note = "it has formats for x86-64, aarch64 with the 4 KiB granule, and riscv64"
)]
pub trait Format:
    sealed::Sealed + Copy + Eq + Hash + Debug + Default + Send + Sync + 'static
{
    /// The bits of an entry other than the address.
    type Flags: bitflags::Flags<Bits = u64> + Copy + Eq + Debug + Send + Sync;

    /// Which addresses a root translates, where the format has more than one choice.
    type Half: Copy + Eq + Debug + Send + Sync;

    /// The half from address 0 on.
    const LOWER_HALF: Self::Half;

    /// The bits of the address of a page or table.
    const ADDRESS: u64;

    /// The bits within [`ADDRESS`](Self::ADDRESS) that are flags in the entry of a large page.
    const LARGE_FLAGS: u64 = 0;

    /// How much lower the bits of the address are in an entry than in the address.
    const ADDRESS_SHIFT: u32 = 0;

    /// The bits that an empty entry may have.
    const LEFTOVER: u64 = 0;

    /// The flags that a [`Change`](crate::Change) cannot have: those that determine the kind of an
    /// entry, those that the processor changes, and those whose change in a live entry needs a
    /// break before the make.
    const UNCHANGEABLE: Self::Flags;

    /// Whether one root translates both halves of the address space, so that offsets are extended
    /// by their highest bit.
    const SPANS_BOTH_HALVES: bool;

    /// Whether a page that is in use may be replaced by a table that maps the same frames, without
    /// a moment in which it is not present. If not, the entry must be cleared and flushed first
    /// (break-before-make).
    const SPLITS_IN_PLACE: bool;

    /// Whether every present entry of a table of the lowest level maps a page.
    const LOWEST_ARE_PAGES: bool = false;

    /// Returns the kind of a present entry in a table of this level.
    fn kind_of_present(bits: u64, level: Level) -> Kind;

    /// Returns whether no processor will change the entry any more, because the entry is not
    /// present or has all bits already that processors set.
    fn has_final_flags(bits: u64) -> bool;

    /// Returns whether the page of a present entry may have been accessed.
    fn is_accessed(bits: u64) -> bool;

    /// Returns whether the page of a present entry may have been written.
    fn is_dirty(bits: u64) -> bool;

    /// Returns whether writes to the page of a present entry are allowed.
    fn is_writable(bits: u64) -> bool;

    /// Returns the entry marked as accessed, as written, or both, as the processor marks it. Other
    /// bits stay as they are.
    fn with_use(bits: u64, accessed: bool, dirty: bool) -> u64;

    /// Returns the entry as if its page was neither accessed nor written yet.
    fn without_use(bits: u64) -> u64;

    /// Returns the entry after a change of flags. The page may have been written after the change
    /// if it may have been written before.
    fn changed(bits: u64, set: Self::Flags, clear: Self::Flags) -> u64;

    /// Returns the flags of an entry that points to a table and leaves the decision about accesses
    /// to the entries below.
    fn link_flags() -> Self::Flags;

    /// Returns the flags of a part of a large page, from the bits of the page's entry. `below` is
    /// the level of the parts.
    fn part_flags(bits: u64, below: Level) -> u64;

    /// Returns the flags of a page on this level.
    fn page_flags(attributes: Attributes, level: Level) -> Self::Flags;

    /// Returns the flags that say how large the page of an entry on this level is.
    fn size_flags(level: Level) -> Self::Flags;

    /// Returns a flag that the processor ignores in entries, present or not, so that a kernel may
    /// use it.
    fn kernel_flag() -> Self::Flags;

    /// Returns the half of the address space whose root translates an address.
    fn half_of(address: u64) -> Self::Half;

    /// Returns the virtual address of an offset into the span of a root. `space_size` is the span.
    fn address_at(offset: u64, space_size: u64, half: Self::Half) -> u64;
}

mod sealed {
    /// A format of this crate.
    pub trait Sealed {}

    impl Sealed for super::X86_64 {}
    impl Sealed for super::Aarch64 {}
    impl Sealed for super::Riscv64 {}
}

/// Returns the flag if the condition holds, or no bit.
#[inline]
const fn flag_if(condition: bool, flag: u64) -> u64 {
    if condition { flag } else { 0 }
}

/// Bit 0 in every format: the processor uses the entry.
pub(crate) const PRESENT: u64 = 1;

/// What a page allows, and how it is cached, in a form that each format can express.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Writes are allowed. Reads always are.
    pub writable: bool,
    /// The page may be executed in the mode that may access it.
    pub executable: bool,
    /// The page belongs to user mode.
    pub user: bool,
    /// All address spaces have the page at this address.
    pub global: bool,
    /// Whether the page is marked as accessed, and as written if it is writable, from the start, so
    /// that the processor never has to do so.
    pub used: bool,
    /// How the page is cached.
    pub caching: Caching,
}

/// How the CPU may cache accesses to mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Caching {
    /// Write-back, for memory.
    #[default]
    WriteBack,
    /// Uncached and in order, for device registers. On aarch64, this is Device-nGnRE, so unaligned
    /// accesses fault. On riscv64, the physical address decides, so memory stays cached.
    Uncached,
}

impl Attributes {
    /// A page of the kernel with data: it can be read and written, but not executed, and is marked
    /// as used from the start.
    pub const KERNEL_DATA: Attributes = Attributes {
        writable: true,
        executable: false,
        user: false,
        global: false,
        used: true,
        caching: Caching::WriteBack,
    };

    /// The same, but not used yet: the processor marks it as accessed and written, or faults.
    pub const UNUSED_KERNEL_DATA: Attributes =
        Attributes { used: false, ..Attributes::KERNEL_DATA };

    /// The same as [`KERNEL_DATA`](Self::KERNEL_DATA), but read-only.
    pub const KERNEL_READ_ONLY: Attributes =
        Attributes { writable: false, ..Attributes::KERNEL_DATA };
}

/// Extends an offset by its highest bit, as formats do in which one root translates both halves.
pub(crate) const fn sign_extended(offset: u64, space_size: u64) -> u64 {
    if offset & (space_size / 2) != 0 { offset | !(space_size - 1) } else { offset }
}
