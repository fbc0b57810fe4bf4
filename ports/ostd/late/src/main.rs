//! Replays the order in which OSTD adds memory on TDX. There, the guest must accept memory before it
//! uses it. OSTD adds the memory outside of the table of unaccepted memory first, allocates from it
//! while it boots the other CPUs, and then adds the memory of the table, all of which is accepted now.
//! Here no memory has to be accepted, so the order is all that is replayed.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::alloc::Layout;
use core::iter::from_fn;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use hotmem_ostd_allocator::{FRAMES, FrameAllocator};
use osdk_heap_allocator::{HeapAllocator, type_from_layout};
use ostd::boot::EarlyCmdline;
use ostd::mm::frame::GlobalFrameAllocator;
use ostd::mm::heap::SlotInfo;
use ostd::mm::{FrameAllocOptions, Paddr};
use ostd::power::{ExitCode, poweroff};
use ostd::prelude::println;

/// The memory that is accepted late. It begins and ends within pageblocks of 2 MiB, and lies on both
/// sides of the hole below 4 GiB.
const LATE: Range<Paddr> = 0x1010_3000..0x1_1000_5000;
/// The number of frames of the segments that the kernel allocates.
const SEGMENT_FRAMES: usize = 512;

/// Hotmem, and the free parts of [`LATE`], which OSTD adds later on TDX.
struct LateMemory {
    allocator: FrameAllocator,
    /// The start and the end of each part; unused parts are empty.
    parts: [[AtomicUsize; 2]; 4],
}

#[ostd::global_frame_allocator]
static FRAME_ALLOCATOR: LateMemory = LateMemory {
    allocator: FrameAllocator,
    parts: [const { [const { AtomicUsize::new(0) }; 2] }; 4],
};

impl LateMemory {
    /// Keeps a part of [`LATE`] for [`add_late`](Self::add_late).
    fn keep(&self, part: Range<Paddr>) {
        // Relaxed: OSTD adds memory on one CPU, which also adds the parts later.
        let unused = self.parts.iter().find(|part| part[1].load(Ordering::Relaxed) == 0);
        let [start, end] = unused.expect("QEMU's machine has at most four ranges of free memory");
        start.store(part.start, Ordering::Relaxed);
        end.store(part.end, Ordering::Relaxed);
    }

    /// Adds the parts that were kept. Returns their bytes.
    fn add_late(&self) -> usize {
        let parts = self
            .parts
            .iter()
            .map(|part| part.each_ref().map(|address| address.load(Ordering::Relaxed)));
        parts.filter(|[start, end]| start < end).fold(0, |bytes, [start, end]| {
            self.allocator.add_free_memory(start, end - start);
            bytes + end - start
        })
    }
}

impl GlobalFrameAllocator for LateMemory {
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        self.allocator.alloc(layout)
    }

    fn dealloc(&self, addr: Paddr, size: usize) {
        self.allocator.dealloc(addr, size);
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        let range = addr..addr + size;
        let late = range.start.max(LATE.start)..range.end.min(LATE.end);
        if late.is_empty() {
            return self.allocator.add_free_memory(addr, size);
        }
        for part in [range.start..late.start, late.end..range.end] {
            if !part.is_empty() {
                self.allocator.add_free_memory(part.start, part.len());
            }
        }
        self.keep(late);
    }
}

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
    // OSTD has allocated while it booted, so the engine was started.
    let boot_segments = segments();
    let before = FRAMES.counts().free;
    let late = FRAME_ALLOCATOR.add_late();
    let added = (FRAMES.counts().free - before) as usize * 4096;
    let late_segments = segments() - boot_segments;
    println!();
    println!("# {} of {} bytes added late, {} more segments", added, late, late_segments);
    // At each end of a part, a pageblock stays divided.
    let whole = late / (SEGMENT_FRAMES * 4096);
    let passed = added == late
        && late > 1 << 30
        && (whole - 8..=whole).contains(&late_segments)
        && hotmem::violated_invariants().count == 0;
    println!("hotmem: {}", if passed { "PASS" } else { "FAIL" });
    poweroff(if passed { ExitCode::Success } else { ExitCode::Failure });
}

/// Allocates all segments of 2 MiB that there are, frees them, and returns their number.
fn segments() -> usize {
    let mut options = FrameAllocOptions::new();
    options.zeroed(false);
    let all: Vec<_> = from_fn(|| options.alloc_segment(SEGMENT_FRAMES).ok()).collect();
    all.len()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    unsafe extern "Rust" {
        fn __ostd_panic_handler(info: &core::panic::PanicInfo) -> !;
    }
    // SAFETY: OSTD defines this function with this signature.
    unsafe { __ostd_panic_handler(info) }
}
