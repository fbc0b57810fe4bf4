//! An ArceOS application that grows and shrinks at its host's requests. It uses all plugged memory,
//! checks each word, and reports events on the serial port.
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

/// ArceOS calls this when it has started.
#[unsafe(no_mangle)]
fn main() {
    FRAMES.platform().set_cpu(axhal::percpu::this_cpu_id);
    // The first allocation starts the engine with boot memory. The mapper is for memory that is
    // plugged later.
    drop(core::hint::black_box(alloc::boxed::Box::new(0)));
    #[cfg(feature = "paging")]
    mapper::install();
    faults::plan();
    session::run();
}
