//! Checks that the machine is the one that ArceOS was built for.

use axconfig::devices::PCI_ECAM_BASE;
use axhal::mem::phys_to_virt;
use axstd::println;

/// Returns whether PCI's configuration space is mapped at the address that the build assumes.
/// Prints the reason if it is not, because then no device would be found. The first function is the
/// host bridge, and no function's vendor is 0 or 0xffff.
pub fn is_supported() -> bool {
    let host_bridge = phys_to_virt(PCI_ECAM_BASE.into()).as_ptr_of::<u16>();
    // SAFETY: ArceOS maps these addresses. Reading a vendor changes nothing.
    let vendor = unsafe { host_bridge.read_volatile() };
    let is_supported = vendor != 0 && vendor != u16::MAX;
    if !is_supported {
        println!("Bail out! PCI is not mapped at {PCI_ECAM_BASE:#x}, as on QEMU's machine q35");
    }
    is_supported
}
