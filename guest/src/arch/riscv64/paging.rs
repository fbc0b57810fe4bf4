//! The boot code's page tables, and what page tables can express.

use super::image;
use core::arch::asm;
use core::ptr::with_exposed_provenance_mut;
use hotmem::Pfn;
use hotmem_directmap::Attributes;
use hotmem_guest::to_usize;

const PAGE: u64 = 2 << 20;
/// The last page of the GiB of the image's addresses, to which the console's registers are mapped.
const CONSOLE_PAGE: u64 = 511;

unsafe extern "C" {
    /// The root of the page tables.
    #[link_name = "boot_root"]
    static BOOT_ROOT: u8;
    /// The table of the pages at the image's link address.
    #[link_name = "kernel_l2"]
    static KERNEL_L2: u8;
}

/// Returns the frame of the root of the boot code's page tables.
pub(crate) fn boot_root() -> Pfn {
    Pfn::containing(image::phys(&raw const BOOT_ROOT).unwrap_or(0)).unwrap_or(Pfn::ZERO)
}

/// Returns whether the CPU has pages of 1 GiB, as every CPU with Sv39 or Sv48 does.
pub(crate) fn has_huge_pages() -> bool {
    true
}

/// Returns the attributes, all of which the CPU supports. The memory type is that of the physical
/// address, because a CPU without Svpbmt has no other.
pub(crate) fn supported(attributes: Attributes) -> Attributes {
    attributes
}

/// Returns whether the CPU marks pages as written by itself. Without Svadu it faults instead
/// (privileged specification, 12.3.1), so the kernel sets Accessed and Dirty in advance.
pub(crate) fn sets_dirty_bits() -> bool {
    false
}

/// Does nothing, because the boot code maps nothing in the lower half.
pub(crate) fn drop_identity_map() {}

/// Maps the console's registers before there is an address space. Returns their virtual address. They
/// lie in the 2 MiB from a multiple of 2 MiB on.
pub(super) fn map_console(phys_addr: u64) -> usize {
    let table = with_exposed_provenance_mut::<u64>((&raw const KERNEL_L2).expose_provenance());
    let entry = (phys_addr & !(PAGE - 1)) >> 2 | super::entry::DATA_PAGE;
    // SAFETY: the boot code's table is mapped. The entry was empty, because the image is much smaller
    // than a GiB. The fence makes the entry visible to this CPU, the only one that runs.
    unsafe {
        table.add(to_usize(CONSOLE_PAGE)).write_volatile(entry);
        asm!("sfence.vma", options(nostack, preserves_flags));
    }
    to_usize(image::KERNEL_BASE + CONSOLE_PAGE * PAGE + phys_addr % PAGE)
}
