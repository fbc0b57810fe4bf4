//! Memory hotplug as a library.
#![no_std]

pub mod addr;
pub mod geometry;

pub use addr::{AddrError, Bytes, Pfn, PfnRange};
