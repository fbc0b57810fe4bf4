//! Boots the kernel and carries out the host's requests. The MMU is off, so addresses are physical,
//! and all memory is accessible, including memory that is added later.

mod balloon;
mod boot;
mod console;
mod exception;
mod exit;
mod firmware;
mod hooks;
mod memory;
mod memory_functions;
mod pci;
mod pins;
mod report;
mod session;
mod stack;
mod time;
mod workload;

use console::Console;
use core::fmt::Write;
use exit::give_up;

core::arch::global_asm!(include_str!("entry.s"));

/// Runs the kernel. `entry.s` calls this function on a stack of 16 KiB, after it has cleared `.bss`. The
/// firmware's calls are hypercalls, which use no stack of the kernel.
#[unsafe(no_mangle)]
extern "C" fn kernel_main() -> ! {
    exception::install();
    stack::guard();
    let machine = boot::negotiate();
    if machine.options.overflow {
        stack::take(17 << 10);
    }
    session::run(machine)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let _ = writeln!(Console);
    give_up(format_args!("{info}"))
}
