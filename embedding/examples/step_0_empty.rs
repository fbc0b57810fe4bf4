//! Step 0: the kernel before it has Hotmem. The kernel prints the ranges of RAM.
#![no_std]
#![no_main]

use hotmem_embedding::{Boot, PrintedError, kernel, println};

kernel!(main);

fn main(boot: &Boot) -> Result<(), PrintedError> {
    for ram in boot.ram.iter().filter(|ram| !ram.is_empty()) {
        println!("RAM at {:#x}, {} KiB", ram.start, (ram.end - ram.start) >> 10);
    }
    println!("the kernel's image is {} KiB", (boot.image.end - boot.image.start) >> 10);
    Ok(())
}
