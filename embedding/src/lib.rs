//! An empty kernel that boots by PVH, reads the loader's memory map, prints to the serial port and
//! ends. It stands for the kernel that you already have. The programs in `examples/` add
//! memory hotplug to it.
//!
//! The boot code maps the first GiB of physical memory twice: in an identity map and in the direct
//! map.
#![no_std]

mod entry;
mod serial;

use core::{arch::asm, arch::x86_64::_rdtsc, fmt, ops::Range, panic::PanicInfo, time::Duration};
use hotmem_guest::loader_table::{PhysicalMemory, TableError};
use hotmem_guest::memory_map::MemoryMapEntry;
use hotmem_guest::pvh::StartInfo;

/// The size of the physical memory that the boot code maps. This memory begins at address 0.
pub const BOOT_MAPPING_SIZE: u64 = 1 << 30;
/// The virtual address of physical address 0 in the direct map.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;
/// The port of QEMU's `isa-debug-exit` device. Writing 0x10 ends QEMU with the exit status 33.
const DEBUG_EXIT: u16 = 0xf4;

/// Makes the kernel run the function `$main`.
#[macro_export]
macro_rules! kernel {
    ($main:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn kernel_main(start_info: u64) -> ! {
            $crate::run(start_info, $main)
        }
    };
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::print_line(format_args!($($arg)*)) };
}

/// The data that the loader passes to the kernel.
pub struct Boot {
    /// The ranges of RAM in the loader's map; unused entries are empty.
    pub ram: [Range<u64>; 16],
    /// The kernel's image.
    pub image: Range<u64>,
}

/// An error that was printed. It ends the kernel.
pub struct PrintedError;

impl<E: fmt::Display> From<E> for PrintedError {
    fn from(error: E) -> PrintedError {
        println!("error: {error}");
        PrintedError
    }
}

/// Returns the virtual address of a physical address in the direct map.
pub fn direct_map(phys_addr: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut((DIRECT_MAP + phys_addr) as usize)
}

/// Returns the physical address of the page tables' root.
pub fn page_table_root() -> u64 {
    let root: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nomem, nostack, preserves_flags)) };
    root & !0xfff
}

/// Flushes the TLB of the only processor.
pub fn flush_tlb() {
    // SAFETY: writing the same root flushes the TLB and changes no mapping.
    unsafe { asm!("mov cr3, {}", in(reg) page_table_root(), options(nostack, preserves_flags)) };
}

/// Returns the time since an arbitrary moment. For simplicity, each tick of the processor's
/// time-stamp counter counts as a nanosecond.
pub fn now() -> Duration {
    // SAFETY: every processor with a 64-bit mode has this counter.
    Duration::from_nanos(unsafe { _rdtsc() })
}

/// Runs the kernel. [`kernel!`] calls this function.
pub fn run(start_info: u64, main: fn(&Boot) -> Result<(), PrintedError>) -> ! {
    let result = match Boot::read(start_info) {
        Ok(boot) => main(&boot),
        Err(error) => Err(error.into()),
    };
    exit(if result.is_ok() { 0x10 } else { 0x11 })
}

/// Prints a line. [`println!`] calls this function.
pub fn print_line(line: fmt::Arguments<'_>) {
    serial::print_line(line);
}

/// The memory that the boot code has mapped.
struct BootMapping;

impl PhysicalMemory for BootMapping {
    fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]> {
        let end = phys_addr.checked_add(len as u64).filter(|&end| end <= BOOT_MAPPING_SIZE);
        // SAFETY: the range is mapped. It holds the loader's tables, which nothing changes.
        end.map(|_| unsafe { core::slice::from_raw_parts(direct_map(phys_addr), len) })
    }
}

impl Boot {
    /// Returns the ranges of RAM that the boot code has mapped; unused entries are empty.
    #[must_use]
    pub fn mapped_ram(&self) -> [Range<u64>; 16] {
        let end = BOOT_MAPPING_SIZE;
        self.ram.clone().map(|ram| ram.start.min(end)..ram.end.min(end))
    }

    /// Returns the ranges of RAM that the boot code has not mapped.
    pub fn unmapped_ram(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let unmapped = self.ram.iter().map(|ram| ram.start.max(BOOT_MAPPING_SIZE)..ram.end);
        unmapped.filter(|ram| !ram.is_empty())
    }

    fn read(start_info: u64) -> Result<Boot, TableError> {
        let mut map = [MemoryMapEntry::default(); 16];
        let map = StartInfo::read(&BootMapping, start_info)?.memory_map(&BootMapping, &mut map)?;
        let mut ram = map.iter().filter(|entry| entry.kind == MemoryMapEntry::RAM);
        let next = |_| ram.next().map_or(0..0, |ram| ram.addr..ram.addr.saturating_add(ram.size));
        Ok(Boot { ram: core::array::from_fn(next), image: entry::image() })
    }
}

fn exit(code: u32) -> ! {
    // SAFETY: the kernel has ended, so a write to this port does no harm.
    unsafe { asm!("out dx, eax", in("dx") DEBUG_EXIT, in("eax") code, options(nomem, nostack)) };
    loop {
        // SAFETY: the kernel has ended, so no code needs this processor.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    println!("{info}");
    exit(0x11)
}
