//! An ArceOS application whose memory grows and shrinks as its host requests. The application uses
//! all plugged memory, checks each word of it, and reports events on the serial port.
#![no_std]
#![no_main]

extern crate alloc;

mod allocation_check;
mod events;
mod faults;
mod fw_cfg;
#[cfg_attr(feature = "smp", path = "load/churn.rs")]
#[cfg_attr(not(feature = "smp"), path = "load/fill.rs")]
mod load;
mod machine;
#[cfg(feature = "paging")]
mod mapper;
mod pci;
mod reporting;
mod session;
mod virtio_mem;
#[cfg_attr(feature = "paging", path = "wakeup/interrupt.rs")]
#[cfg_attr(not(feature = "paging"), path = "wakeup/polling.rs")]
mod wakeup;

use axalloc::FRAMES;

/// Runs the application. ArceOS calls this function when it has started.
#[unsafe(no_mangle)]
fn main() {
    FRAMES.platform().set_cpu(axhal::percpu::this_cpu_id);
    // Allocate, so that the engine starts with boot memory before the mapper is installed. The
    // mapper maps memory that is plugged later.
    drop(core::hint::black_box(alloc::boxed::Box::new(0)));
    #[cfg(feature = "paging")]
    {
        mapper::install();
        wakeup::prepare();
    }
    faults::read_plan();
    session::run();
}
