//! Exports all functions of `hotmem.h`, and a function that allocates and frees frames by the Rust
//! interface, for comparison.
#![no_std]

pub use hotmem_c as c;

use core::hint::black_box;
use hotmem::{AllocRequest, AlwaysMapped, Frames, Hotplug, OneCpu, PfnRange};

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

/// Starts the engine with `memory`, and allocates and frees a frame `pairs` times. Returns 0 on
/// success, and a number that tells which call has failed otherwise.
///
/// # Safety
/// `memory` points to `len` bytes, aligned to 2 MiB, which nothing else uses. The function is called
/// once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rust_pairs(memory: *mut u8, len: u64, pairs: u64) -> i32 {
    let ram = [(0..len).into()];
    let Ok(mappable) = PfnRange::try_from(0..len) else { return 1 };
    // SAFETY: the caller guarantees that `memory` points to `len` bytes that nothing else uses.
    let hotplug = unsafe { Hotplug::bootstrap(&FRAMES, AlwaysMapped::new(memory, mappable), &ram) };
    if hotplug.is_err() {
        return 2;
    }
    for _ in 0..pairs {
        let Ok(frame) = FRAMES.alloc(AllocRequest::frames(1)) else { return 3 };
        // A kernel stores only the frame's number, and knows the length of the allocation itself.
        let frame = black_box(frame.into_raw().start());
        let Some(frame) = PfnRange::with_len(frame, 1) else { return 4 };
        // SAFETY: the frame was allocated above, and nothing refers to it any more.
        if unsafe { FRAMES.free_raw(frame) }.is_err() {
            return 5;
        }
    }
    0
}
