//! Overflows the stack, to show what the boot code prints about an exception.
#![no_std]
#![no_main]

use core::hint::black_box;
use hotmem_embedding::{Boot, PrintedError, kernel};

kernel!(main);

fn main(boot: &Boot) -> Result<(), PrintedError> {
    // An array like this one has no place on a stack of 16 KiB.
    let array = black_box([boot.image.start; 4096]);
    if array[4095] == 0 { Ok(()) } else { Err("the array was on the stack".into()) }
}
