//! Measures Hotmem's frame allocator.
#![no_std]
#![no_main]

use hotmem_ostd_allocator::{FRAMES, FrameAllocator};

#[ostd::global_frame_allocator]
static FRAME_ALLOCATOR: FrameAllocator = FrameAllocator;

#[ostd::main]
fn main() {
    hotmem_ostd_bench::run(FRAMES.counts().free << 12);
}
