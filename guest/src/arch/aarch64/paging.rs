//! The boot code's page tables, and what the CPU's page tables can express.

use super::image;
use core::arch::asm;
use core::ptr::with_exposed_provenance_mut;
use hotmem::Pfn;
use hotmem_directmap::Attributes;
use hotmem_guest::to_usize;

const PAGE: u64 = 2 << 20;
/// The last page of the GiB of the image's addresses, to which the console's registers are mapped.
const CONSOLE_PAGE: u64 = 511;
/// A page of 2 MiB with registers: valid, attribute 1 of `MAIR_EL1`, accessed, not global, writable,
/// never executed.
const REGISTERS: u64 = 1 | 1 << 2 | 1 << 10 | 1 << 11 | 1 << 51 | 1 << 53 | 1 << 54;
/// The bit of `TCR_EL1` that turns the lower half off.
const NO_LOWER_HALF: u64 = 1 << 7;

unsafe extern "C" {
    /// The root of the upper half's page tables.
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

/// Returns whether the CPU has pages of 1 GiB, as every CPU of this architecture does. The direct map uses
/// none here, whatever this returns, because it could not split one that is in use.
pub(crate) fn has_huge_pages() -> bool {
    true
}

/// Returns the attributes, all of which the CPU supports.
pub(crate) fn supported(attributes: Attributes) -> Attributes {
    attributes
}

/// Returns whether the CPU marks pages as written by itself. The kernel does not turn this on.
pub(crate) fn sets_dirty_bits() -> bool {
    false
}

/// Turns off the lower half, where the boot code ran, so that null pointers fault.
pub(crate) fn drop_identity_map() {
    turn_off_lower_half();
}

/// Turns off the lower half of the calling CPU.
pub(super) fn turn_off_lower_half() {
    // SAFETY: nothing uses the lower half any more. Other CPUs have registers of their own.
    unsafe {
        asm!(
            "mrs {tcr}, tcr_el1",
            "orr {tcr}, {tcr}, {bit}",
            "msr tcr_el1, {tcr}",
            "isb",
            "tlbi vmalle1",
            "dsb nsh",
            "isb",
            tcr = out(reg) _,
            bit = in(reg) NO_LOWER_HALF,
            options(nostack, preserves_flags)
        );
    }
}

/// Maps the console's registers before there is an address space. Returns their virtual address. They
/// lie in the 2 MiB from a multiple of 2 MiB on.
pub(super) fn map_console(phys_addr: u64) -> usize {
    let table = with_exposed_provenance_mut::<u64>((&raw const KERNEL_L2).expose_provenance());
    let entry = phys_addr & !(PAGE - 1) | REGISTERS;
    // SAFETY: the boot code's table is mapped. The entry was empty, because the image is much smaller
    // than a GiB, so no TLB has to be flushed.
    unsafe {
        table.add(to_usize(CONSOLE_PAGE)).write_volatile(entry);
        asm!("dsb ishst", "isb", options(nostack, preserves_flags));
    }
    to_usize(image::KERNEL_BASE + CONSOLE_PAGE * PAGE + phys_addr % PAGE)
}
