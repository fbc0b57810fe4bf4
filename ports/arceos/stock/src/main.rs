//! An ArceOS application that prints that it has started.
#![no_std]
#![no_main]

/// Runs the application. ArceOS calls this function when it has started.
#[unsafe(no_mangle)]
fn main() {
    // The last line that ArceOS prints ends with a change of colour and without a line feed.
    axstd::println!("\nhotmem: PASS");
    // SAFETY: QEMU's isa-debug-exit device ends the machine. Without that device the write has no
    // effect.
    unsafe { core::arch::asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") 0x10_u32) };
}
