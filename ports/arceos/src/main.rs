//! An ArceOS application that grows and shrinks as its host asks. It uses all memory that it is
//! given, checks every word of it, and says on the serial port what happens.
#![no_std]
#![no_main]

extern crate alloc;

#[cfg_attr(feature = "smp", path = "load/churn.rs")]
#[cfg_attr(not(feature = "smp"), path = "load/fill.rs")]
mod load;
#[cfg(feature = "paging")]
mod mapper;
mod pci;
mod reporting;
mod session;
mod virtio_mem;

use axalloc::FRAMES;

/// Called by ArceOS once it has started.
#[unsafe(no_mangle)]
fn main() {
    FRAMES.platform().set_cpu(axhal::percpu::this_cpu_id);
    #[cfg(feature = "paging")]
    mapper::install();
    session::run();
}
