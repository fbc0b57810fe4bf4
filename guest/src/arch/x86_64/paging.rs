//! The boot code's page tables, and what the CPU's page tables can express.

use super::image;
use core::arch::x86_64::__cpuid;
use hotmem::Pfn;
use hotmem_directmap::Attributes;
use x86_64::instructions::tlb;

/// Returns the frame of the root of the boot code's page tables.
pub(crate) fn boot_root() -> Pfn {
    let root = (&raw const image::boot_root).cast();
    Pfn::containing(image::phys(root).unwrap_or(0)).unwrap_or(Pfn::ZERO)
}

/// Returns whether the CPU has pages of 1 GiB (Intel SDM volume 2, CPUID, leaf 80000001H).
pub(crate) fn has_huge_pages() -> bool {
    const LEAF: u32 = 0x8000_0001;
    __cpuid(0x8000_0000).eax >= LEAF && __cpuid(LEAF).edx & 1 << 26 != 0
}

/// Returns the attributes, with executable pages if the CPU has no others (Intel SDM volume 2, CPUID,
/// leaf 80000001H). The boot code has enabled no-execute pages if the CPU has them.
pub(crate) fn supported(attributes: Attributes) -> Attributes {
    const LEAF: u32 = 0x8000_0001;
    let has_no_execute = __cpuid(0x8000_0000).eax >= LEAF && __cpuid(LEAF).edx & 1 << 20 != 0;
    Attributes { executable: attributes.executable || !has_no_execute, ..attributes }
}

/// Returns whether the CPU marks pages as written by itself.
pub(crate) fn sets_dirty_bits() -> bool {
    true
}

/// Unmaps the first pages of the lower half, where the boot code ran, so that null pointers
/// fault.
pub(crate) fn drop_identity_map() {
    // SAFETY: nothing uses the lower half any more, and a page walk reads entries atomically.
    unsafe { (&raw mut image::boot_root).cast::<u64>().write_volatile(0) };
    tlb::flush_all();
}

/// Maps the first pages of the lower half again, for code that runs at its physical address.
pub(super) fn restore_identity_map() {
    // SAFETY: the root's first entry is empty. The boot code made the table that
    // `identity_entry` points to, and nothing has changed that table since.
    unsafe {
        (&raw mut image::boot_root).cast::<u64>().write_volatile(image::identity_entry());
    }
}
