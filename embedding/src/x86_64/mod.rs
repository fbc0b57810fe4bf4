//! x86-64: boots by PVH on a PC, whose firmware has set up the devices.

mod entry;
mod exceptions;
mod pci;
mod serial;

pub(crate) use exceptions::handle as handle_exceptions;
pub use pci::ConfigurationSpace;
pub(crate) use serial::print_line;

use crate::{Boot, PrintedError, direct_map};
use core::{arch::asm, arch::x86_64::_rdtsc, ops::Range, time::Duration};
use hotmem_guest::loader_table::PhysicalMemory;
use hotmem_guest::memory_map::MemoryMapEntry;
use hotmem_guest::pvh::StartInfo;
use hotmem_pgtable::{Flush, Flusher, VirtRange, X86_64};

/// The physical addresses that the boot code maps.
pub const BOOT_MAPPING: Range<u64> = 0..1 << 30;
/// Memory that firmware uses, whatever the loader's map says.
pub(crate) const FIRMWARE_MEMORY: Range<u64> = 0..1 << 20;
/// The place where `cargo xtask embed` inserts a DIMM. A kernel reads it from ACPI's tables.
const DIMM: Range<u64> = 16 << 30..17 << 30;
/// The port of QEMU's `isa-debug-exit` device. Writing 0x10 ends QEMU with the exit status 33.
const DEBUG_EXIT: u16 = 0xf4;

/// Flushes the TLB of the only processor.
#[derive(Clone, Copy, Debug)]
pub struct FlushTlb;

impl Flusher for FlushTlb {
    type Format = X86_64;

    fn flush(&mut self, _: Flush) {
        // SAFETY: writing the same root flushes the TLB and changes no mapping.
        unsafe {
            asm!("mov cr3, {}", in(reg) page_table_root(), options(nostack, preserves_flags))
        };
    }

    fn publish(&mut self, _: VirtRange) {}
}

/// Returns the physical address of the page tables' root.
pub fn page_table_root() -> u64 {
    let root: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nomem, nostack, preserves_flags)) };
    root & !0xfff
}

/// Returns the time since an arbitrary moment. For simplicity, each tick of the processor's
/// time-stamp counter counts as a nanosecond.
pub fn now() -> Duration {
    // SAFETY: every processor with a 64-bit mode has this counter.
    Duration::from_nanos(unsafe { _rdtsc() })
}

/// The memory that the boot code has mapped.
struct BootMemory;

impl PhysicalMemory for BootMemory {
    fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]> {
        let end = phys_addr.checked_add(len as u64).filter(|&end| end <= BOOT_MAPPING.end);
        // SAFETY: the range is mapped. It holds the loader's tables, which nothing changes.
        end.map(|_| unsafe { core::slice::from_raw_parts(direct_map(phys_addr), len) })
    }
}

/// Reads PVH's `start_info`.
pub(crate) fn read_loader_table(start_info: u64) -> Result<Boot, PrintedError> {
    let mut map = [MemoryMapEntry::default(); 16];
    let map = StartInfo::read(&BootMemory, start_info)?.memory_map(&BootMemory, &mut map)?;
    let mut ram = map.iter().filter(|entry| entry.kind == MemoryMapEntry::RAM);
    let next = |_| ram.next().map_or(0..0, |ram| ram.addr..ram.addr.saturating_add(ram.size));
    Ok(Boot { ram: core::array::from_fn(next), image: crate::image(), dimm: DIMM })
}

/// Does nothing, because firmware has set up the devices.
pub(crate) fn start_devices() -> Result<(), PrintedError> {
    Ok(())
}

/// Ends the machine.
pub(crate) fn exit(is_success: bool) -> ! {
    let code: u32 = if is_success { 0x10 } else { 0x11 };
    // SAFETY: the kernel has ended, so a write to this port does no harm.
    unsafe { asm!("out dx, eax", in("dx") DEBUG_EXIT, in("eax") code, options(nomem, nostack)) };
    loop {
        // SAFETY: the kernel has ended, so no code needs this processor.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
