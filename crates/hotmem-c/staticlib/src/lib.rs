//! `libhotmem.a`: everything that `hotmem.h` declares, and nothing else.
#![no_std]

pub use hotmem_c::*;
