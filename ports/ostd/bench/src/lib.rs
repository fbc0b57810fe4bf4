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
const SEGMENT_FRAMES: [usize; 9] = [1, 2, 4, 8, 16, 64, 128, 512, 600];
/// The number of times that a segment of each size is allocated and freed.
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
    for frames in SEGMENT_FRAMES {
        println!(
            r#"{{"event":"measured","what":"{} frames","value":{}}}"#,
            frames,
            ticks_per_pair(frames)
        );
    }
    println!("hotmem: PASS");
    poweroff(ExitCode::Success);
}

/// Returns the number of ticks for allocating and freeing a segment of `frames` frames. OSTD frees
/// a segment frame by frame. If QEMU counts instructions, a tick is an instruction.
fn ticks_per_pair(frames: usize) -> u64 {
    let allocate_and_free = || {
        let segment = FrameAllocOptions::new().zeroed(false).alloc_segment(frames);
        drop(black_box(segment.expect("the machine has enough memory")));
    };
    allocate_and_free();
    let _interrupts_disabled = disable_local();
    let start = read_tsc();
    (0..ROUNDS).for_each(|_| allocate_and_free());
    (read_tsc() - start) / ROUNDS
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    unsafe extern "Rust" {
        fn __ostd_panic_handler(info: &core::panic::PanicInfo) -> !;
    }
    // SAFETY: OSTD defines this function with this signature.
    unsafe { __ostd_panic_handler(info) }
}
