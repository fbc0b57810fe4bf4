//! An OSTD kernel whose memory grows and shrinks as its host requests. The kernel uses all plugged
//! memory, checks it, and reports events on the serial port.
#![no_std]
#![no_main]

extern crate alloc;

mod clock;
mod load;
mod pci;
mod reporting;
mod session;
mod virtio_mem;

use core::alloc::Layout;
use hotmem_ostd_allocator::FrameAllocator;
use osdk_heap_allocator::{HeapAllocator, type_from_layout};
use ostd::boot::EarlyCmdline;
use ostd::mm::heap::SlotInfo;

#[ostd::global_frame_allocator]
static FRAME_ALLOCATOR: FrameAllocator = FrameAllocator;

#[ostd::global_heap_allocator]
static HEAP_ALLOCATOR: HeapAllocator = HeapAllocator;

#[ostd::global_heap_allocator_slot_map]
const fn slot_type_from_layout(layout: Layout) -> Option<SlotInfo> {
    type_from_layout(layout)
}

#[ostd::early_cmdline_parser]
const fn early_cmdline(_: &str) -> EarlyCmdline {
    EarlyCmdline { log_level: ostd::log::LevelFilter::Warning, has_early_console: true }
}

#[ostd::main]
fn main() {
    session::run();
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    unsafe extern "Rust" {
        fn __ostd_panic_handler(info: &core::panic::PanicInfo) -> !;
    }
    // SAFETY: OSTD defines this function with this signature.
    unsafe { __ostd_panic_handler(info) }
}
