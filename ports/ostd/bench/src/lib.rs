//! Measures a frame allocator by OSTD's interface. Prints each figure as a line of JSON, which
//! Hotmem's lab parses.
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

/// The sizes of the segments, in frames.
const FRAMES: [usize; 9] = [1, 2, 4, 8, 16, 64, 128, 512, 600];
/// How often a segment of each size is allocated and freed.
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

/// Measures the allocator, and ends the machine. `free` is the number of bytes that are free after
/// boot.
pub fn run(free: u64) -> ! {
    println!();
    println!(r#"{{"event":"boot","ms":0,"boot_memory":{},"cpus":1}}"#, free);
    for frames in FRAMES {
        println!(r#"{{"event":"measured","what":"{} frames","value":{}}}"#, frames, pair(frames));
    }
    println!("hotmem: PASS");
    poweroff(ExitCode::Success);
}

/// Returns the ticks for allocating a segment of `frames` frames and freeing it, which OSTD does
/// frame by frame. A tick is an instruction if QEMU counts instructions.
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
