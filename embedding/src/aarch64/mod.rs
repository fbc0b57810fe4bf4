//! aarch64: boots in EL1 on QEMU's machine `virt`, which has no firmware. The addresses of its devices
//! are constants here. Other kernels read them from the device tree, too.

mod entry;
mod exceptions;
mod pci;
mod serial;

pub(crate) use exceptions::handle as handle_exceptions;
pub use pci::ConfigurationSpace;
pub(crate) use pci::assign_addresses as start_devices;
pub(crate) use serial::print_line;

use crate::{Boot, PrintedError, direct_map};
use core::{arch::asm, ops::Range, time::Duration};
use hotmem_guest::device_tree::{DeviceTree, MAGIC, SIZE_OFFSET};
use hotmem_pgtable::{Aarch64, Flush, Flusher, VirtRange};
use spin::Mutex;

/// The physical addresses that the boot code maps: the first GiB of RAM.
pub const BOOT_MAPPING: Range<u64> = 1 << 30..2 << 30;
/// The RAM below the image, where QEMU puts the device tree. [`TREE`] refers to it.
pub(crate) const FIRMWARE_MEMORY: Range<u64> = 1 << 30..(1 << 30) + (2 << 20);
/// The size of the end of RAM that stands for a DIMM: the machine has none for a kernel without ACPI.
const DIMM_SIZE: u64 = 1 << 30;

/// The device tree, which is too large for the stack.
static TREE: Mutex<DeviceTree<'static>> = Mutex::new(DeviceTree::EMPTY);

/// Flushes the TLB of the only processor.
#[derive(Clone, Copy, Debug)]
pub struct FlushTlb;

impl Flusher for FlushTlb {
    type Format = Aarch64;

    fn flush(&mut self, _: Flush) {
        // SAFETY: a flush changes no memory.
        unsafe {
            asm!(
                "dsb ishst",
                "tlbi vmalle1is",
                "dsb ish",
                "isb",
                options(nostack, preserves_flags)
            );
        }
    }

    fn publish(&mut self, _: VirtRange) {
        // SAFETY: barriers.
        unsafe { asm!("dsb ishst", "isb", options(nostack, preserves_flags)) };
    }
}

/// Returns the physical address of the root of the upper half's page tables.
pub fn page_table_root() -> u64 {
    let root: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mrs {}, ttbr1_el1", out(reg) root, options(nomem, nostack, preserves_flags)) };
    root & 0xffff_ffff_f000
}

/// Returns the time since an arbitrary moment.
pub fn now() -> Duration {
    let (ticks, hz): (u64, u64);
    // SAFETY: reading the registers changes nothing.
    unsafe {
        asm!("mrs {}, cntvct_el0", "mrs {}, cntfrq_el0", out(reg) ticks, out(reg) hz, options(nomem, nostack));
    }
    let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(hz.max(1));
    Duration::from_nanos(nanoseconds as u64)
}

/// Reads the device tree at an address.
pub(crate) fn read_loader_table(tree_address: u64) -> Result<Boot, PrintedError> {
    let header: *const u32 = direct_map(tree_address).cast();
    // SAFETY: the boot code has mapped the tree, which nothing changes.
    let word = |index| u32::from_be(unsafe { header.add(index).read() });
    if word(0) != MAGIC {
        return Err("there is no device tree at the start of RAM".into());
    }
    let words = word(SIZE_OFFSET as usize / 4) as usize / 8;
    // SAFETY: as above.
    let blob = unsafe { core::slice::from_raw_parts(header.cast::<u64>(), words) };
    let mut tree = TREE.lock();
    tree.fill(blob, tree_address)?;
    let mut ranges = tree.ram.iter();
    let next = |_| ranges.next().map_or(0..0, |ram| ram.start..ram.start.saturating_add(ram.len));
    let mut boot = Boot { ram: core::array::from_fn(next), image: crate::image(), dimm: 0..0 };
    let last = boot.ram.iter_mut().max_by_key(|ram| ram.end);
    if let Some(last) = last.filter(|last| last.end >= BOOT_MAPPING.end + DIMM_SIZE) {
        let start = last.end - DIMM_SIZE;
        boot.dimm = start..core::mem::replace(&mut last.end, start);
    }
    Ok(boot)
}

/// Ends the machine by semihosting, the call SYS_EXIT_EXTENDED. QEMU ends with this status.
pub(crate) fn exit(is_success: bool) -> ! {
    const APPLICATION_EXIT: u64 = 0x20026;
    let status = if is_success { 33 } else { 35 };
    let parameters = [APPLICATION_EXIT, status];
    loop {
        // SAFETY: the kernel has ended, and the call reads the parameters.
        unsafe { asm!("hlt #0xf000", inout("x0") 0x20_u64 => _, in("x1") &parameters) };
    }
}
