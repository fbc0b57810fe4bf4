//! An ArceOS application whose memory grows and shrinks as its host requests. The application uses
//! all plugged memory, checks each word of it, and reports events on the serial port.
#![no_std]
#![no_main]

extern crate alloc;

mod fill;
mod mapper;
mod pci;
mod session;
mod wrong_calls;

use ax_hal::time::monotonic_time;
use core::time::Duration;

/// Runs the application. ArceOS calls this function when it has started.
#[unsafe(no_mangle)]
fn main() {
    mapper::install();
    let wrong_frees = wrong_calls::make();
    let passed = session::run() && wrong_frees == wrong_calls::WRONG_FREES;
    let passed = passed
        && hotmem::violated_invariants().count == 0
        && ax_alloc::refused_frees() == wrong_calls::WRONG_FREES;
    ax_std::println!("hotmem: {}", if passed { "PASS" } else { "FAIL" });
    // The last lines are lost if the machine ends at once.
    let end = monotonic_time() + Duration::from_millis(200);
    while monotonic_time() < end {
        core::hint::spin_loop();
    }
    let code = if passed { 0x10_u32 } else { 0x11 };
    // SAFETY: QEMU's isa-debug-exit device ends the machine. Without that device the write has no
    // effect.
    unsafe { core::arch::asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") code) };
}
