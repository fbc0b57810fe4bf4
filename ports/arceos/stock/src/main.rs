//! An ArceOS application that prints that it has started.
#![no_std]
#![no_main]

/// ArceOS calls this when it has started.
#[unsafe(no_mangle)]
fn main() {
    // ArceOS's own last line ends with a change of colour.
    axstd::println!("\nhotmem: PASS");
    // SAFETY: QEMU's isa-debug-exit device ends the machine; without it this does nothing.
    unsafe { core::arch::asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") 0x10_u32) };
}
