//! Builds `libhotmem.a`, which defines the functions that `hotmem.h` declares.
#![no_std]

use hotmem_c as _;
