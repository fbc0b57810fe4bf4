//! Measures a frame allocator through OSTD's interface. Prints a line of JSON for each figure, as
//! Hotmem's lab reads them.
#![no_std]

use core::alloc::Layout;
use core::hint::black_box;
use osdk_heap_allocator::{HeapAllocator, type_from_layout};
use ostd::arch::read_tsc;
use ostd::boot::EarlyCmdline;
use ostd::irq::disable_local;
use ostd::mm::FrameAllocOptions;
use ostd::mm::heap::SlotInfo;
use ostd::power::{ExitCode, poweroff};
use ostd::prelude::println;

/// Frames of the segments.
const FRAMES: [usize; 9] = [1, 2, 4, 8, 16, 64, 128, 512, 600];
/// How often each is allocated and freed.
const ROUNDS: u64 = 1000;

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

/// Measures, and ends the machine. `free` bytes are left after boot.
pub fn run(free: u64) -> ! {
    println!();
    println!(r#"{{"event":"boot","ms":0,"boot_memory":{},"cpus":1}}"#, free);
    for frames in FRAMES {
        println!(r#"{{"event":"measured","what":"{} frames","value":{}}}"#, frames, pair(frames));
    }
    println!("hotmem: PASS");
    poweroff(ExitCode::Success);
}

/// The ticks of allocating a segment of so many frames and freeing it, which OSTD does frame by
/// frame. A tick is an instruction where QEMU counts those.
fn pair(frames: usize) -> u64 {
    let once = || {
        let segment = FrameAllocOptions::new().zeroed(false).alloc_segment(frames);
        drop(black_box(segment.expect("enough memory")));
    };
    once();
    let _quiet = disable_local();
    let start = read_tsc();
    (0..ROUNDS).for_each(|_| once());
    (read_tsc() - start) / ROUNDS
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    unsafe extern "Rust" {
        fn __ostd_panic_handler(info: &core::panic::PanicInfo) -> !;
    }
    // SAFETY: OSTD defines it.
    unsafe { __ostd_panic_handler(info) }
}
