//! An empty kernel that boots, reads the loader's memory map, prints to the serial port and ends. It
//! stands for the kernel that you already have. The programs in `examples/` add memory hotplug to it.
//!
//! On x86-64 it boots by PVH on a PC. On aarch64 it boots on QEMU's machine `virt`, and reads a device
//! tree. The boot code maps a GiB of physical memory twice: in an identity map and in the direct map.
#![no_std]

#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod arch;

pub use arch::{BOOT_MAPPING, ConfigurationSpace, FlushTlb, now, page_table_root};

use core::{fmt, ops::Range, panic::PanicInfo};

/// The virtual address of physical address 0 in the direct map.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

/// Makes the kernel run the function `$main`.
#[macro_export]
macro_rules! kernel {
    ($main:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn kernel_main(loader_table: u64) -> ! {
            $crate::run(loader_table, $main)
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
    /// Memory that the machine has beside its RAM, as a DIMM that was inserted.
    pub dimm: Range<u64>,
}

/// An error that was printed. It ends the kernel.
pub struct PrintedError;

impl<E: fmt::Display> From<E> for PrintedError {
    fn from(error: E) -> PrintedError {
        println!("error: {error}");
        PrintedError
    }
}

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
    /// The page below the stack, which is not mapped.
    static boot_stack_guard: [u8; 4096];
}

/// Returns the physical addresses of the image.
fn image() -> Range<u64> {
    (&raw const image_start).addr() as u64..(&raw const image_end).addr() as u64
}

/// Returns the virtual address of a physical address in the direct map.
pub fn direct_map(phys_addr: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut((DIRECT_MAP + phys_addr) as usize)
}

/// Runs the kernel. [`kernel!`] calls this function.
pub fn run(loader_table: u64, main: fn(&Boot) -> Result<(), PrintedError>) -> ! {
    arch::handle_exceptions();
    let boot = arch::read_loader_table(loader_table);
    let result = boot.and_then(|boot| {
        arch::start_devices()?;
        main(&boot)
    });
    arch::exit(result.is_ok())
}

/// Prints a line. [`println!`] calls this function.
pub fn print_line(line: fmt::Arguments<'_>) {
    arch::print_line(line);
}

impl Boot {
    /// Returns the memory that is in use: the kernel's image, and what firmware and its tables use.
    #[must_use]
    pub fn in_use(&self) -> [Range<u64>; 2] {
        [self.image.clone(), arch::FIRMWARE_MEMORY]
    }

    /// Returns the ranges of RAM that the boot code has mapped; unused entries are empty.
    #[must_use]
    pub fn mapped_ram(&self) -> [Range<u64>; 16] {
        self.ram_below(BOOT_MAPPING.end)
    }

    /// Returns the ranges of RAM below an address; unused entries are empty.
    #[must_use]
    pub fn ram_below(&self, end: u64) -> [Range<u64>; 16] {
        self.ram.clone().map(|ram| ram.start.min(end)..ram.end.min(end))
    }

    /// Returns the ranges of RAM that the boot code has not mapped.
    pub fn unmapped_ram(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let unmapped = self.ram.iter().map(|ram| ram.start.max(BOOT_MAPPING.end)..ram.end);
        unmapped.filter(|ram| !ram.is_empty())
    }
}

/// Prints an exception, and ends the machine. `address` is the one that could not be accessed, if the
/// exception has one.
fn end_by_exception(name: &str, instruction: u64, address: u64) -> ! {
    let guard = (&raw const boot_stack_guard).addr() as u64;
    if (guard..guard + 4096).contains(&address) {
        println!("the stack has overflowed at {instruction:#x}");
    } else {
        println!("{name} at {instruction:#x}, address {address:#x}");
    }
    arch::exit(false)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    println!("{info}");
    arch::exit(false)
}
