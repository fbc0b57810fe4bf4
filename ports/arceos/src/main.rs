//! An ArceOS application that grows and shrinks as its host asks. It uses all memory that it is
//! given, checks every word of it, and says on the serial port what happens.
#![no_std]
#![no_main]

extern crate alloc;

mod events;
mod faults;
#[cfg_attr(feature = "smp", path = "load/churn.rs")]
#[cfg_attr(not(feature = "smp"), path = "load/fill.rs")]
mod load;
#[cfg(feature = "paging")]
mod mapper;
mod pci;
mod reporting;
mod session;
mod trial;
mod virtio_mem;
#[cfg_attr(feature = "paging", path = "wakeup/interrupt.rs")]
#[cfg_attr(not(feature = "paging"), path = "wakeup/polling.rs")]
mod wakeup;

use axalloc::FRAMES;

/// Called by ArceOS once it has started.
#[unsafe(no_mangle)]
fn main() {
    FRAMES.platform().set_cpu(axhal::percpu::this_cpu_id);
    // The first allocation hands the boot memory over, and the mapper is for what comes later.
    drop(core::hint::black_box(alloc::boxed::Box::new(0)));
    #[cfg(feature = "paging")]
    mapper::install();
    faults::plan();
    session::run();
}
