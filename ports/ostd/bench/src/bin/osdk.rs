//! Measures OSTD's own allocator.
#![no_std]
#![no_main]

use osdk_frame_allocator::{FrameAllocator, load_total_free_size};
// Hotmem's allocator is not used; its shim boots the kernel.
use hotmem_ostd_allocator as _;

#[ostd::global_frame_allocator]
static FRAME_ALLOCATOR: FrameAllocator = FrameAllocator;

#[ostd::main]
fn main() {
    hotmem_ostd_bench::run(load_total_free_size() as u64);
}
