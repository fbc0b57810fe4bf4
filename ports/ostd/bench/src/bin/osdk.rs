//! Measures OSTD's own frame allocator.
#![no_std]
#![no_main]

use osdk_frame_allocator::{FrameAllocator, load_total_free_size};
// The kernel links this crate for its shim, which boots the kernel. It does not use Hotmem's
// allocator.
use hotmem_ostd_allocator as _;

#[ostd::global_frame_allocator]
static FRAME_ALLOCATOR: FrameAllocator = FrameAllocator;

#[ostd::main]
fn main() {
    hotmem_ostd_bench::run(load_total_free_size() as u64);
}
