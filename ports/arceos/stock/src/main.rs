//! An ArceOS application that says that it has started.
#![no_std]
#![no_main]

/// Called by ArceOS once it has started.
#[unsafe(no_mangle)]
fn main() {
    // ArceOS's own last line ends with a change of colour.
    axstd::println!("\nhotmem: PASS");
    // SAFETY: QEMU's isa-debug-exit ends the machine; where there is none, this does nothing.
    unsafe { core::arch::asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") 0x10_u32) };
}
