//! Exports all functions of `hotmem.h`, and functions that allocate and free frames by the Rust
//! interface, for comparison.
#![no_std]

pub use hotmem_c as c;

use core::hint::black_box;
use hotmem::{
    AllocError, AllocRequest, Allocation, AlwaysMapped, Contents, Frames, Hotplug, OneCpu, PfnRange,
};

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

/// What the compiler knows of a request.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A constant number of frames.
    Constant,
    /// A number of frames that the compiler does not know.
    Hidden,
    /// An order that the compiler does not know, aligned to its size.
    Aligned,
}

/// Whether the caller asks if the frames are zero.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The caller does not ask.
    None,
    /// The caller asks, and no memory is known to be zero.
    NothingIsZero,
    /// The caller asks, and all memory is known to be zero that was never allocated.
    UnusedIsZero,
}

/// Starts the engine with `memory`, and allocates and frees `frames` frames `pairs` times. If
/// `is_divided` is true, a frame and a run of two frames stay in use meanwhile, so that pageblocks are
/// divided already.
/// Returns 0 on success, and a number that tells which call has failed otherwise.
///
/// # Safety
/// `memory` points to `len` bytes, aligned to 2 MiB, which nothing else uses. The function is called
/// once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rust_pairs(
    memory: *mut u8,
    len: u64,
    pairs: u64,
    frames: u64,
    kind: Kind,
    question: Question,
    is_divided: bool,
) -> i32 {
    let ram = [(0..len).into()];
    let Ok(mappable) = PfnRange::try_from(0..len) else { return 1 };
    // SAFETY: the caller guarantees that `memory` points to `len` bytes that nothing else uses.
    let hotplug = unsafe { Hotplug::bootstrap(&FRAMES, AlwaysMapped::new(memory, mappable), &ram) };
    if hotplug.is_err() {
        return 2;
    }
    if question != Question::None {
        // SAFETY: nobody relies on the zeroes.
        unsafe { FRAMES.keep_zero_marks() };
    }
    if question == Question::UnusedIsZero {
        for pageblock in FRAMES.unzeroed_pageblocks() {
            // SAFETY: the pageblock was allocated, and nobody reads its contents.
            if unsafe { FRAMES.free_zeroed_raw(pageblock.into_raw()) }.is_err() {
                return 7;
            }
        }
    }
    let kept = [1, 2].map(|frames| match is_divided {
        true => FRAMES.alloc(AllocRequest::frames(frames)).ok(),
        false => None,
    });
    let result = match question {
        Question::None => make_pairs_of::<false>(pairs, frames, kind),
        _ => make_pairs_of::<true>(pairs, frames, kind),
    };
    drop(kept);
    result
}

type Allocated = Result<Allocation<'static, OneCpu>, AllocError>;

/// Allocates frames. If `ASKS` is true, looks whether they are zero.
#[inline(always)]
fn alloc<const ASKS: bool>(request: AllocRequest) -> Allocated {
    if !ASKS {
        return FRAMES.alloc(request);
    }
    let (allocation, contents) = FRAMES.alloc_with_contents(request)?;
    black_box(contents == Contents::Filled(0));
    Ok(allocation)
}

/// Makes pairs of one kind. Two functions, because the compiler would not inline into a larger one what
/// a kernel's compiler inlines.
#[inline(never)]
fn make_pairs_of<const ASKS: bool>(pairs: u64, frames: u64, kind: Kind) -> i32 {
    let constant = |frames| move || alloc::<ASKS>(AllocRequest::frames(frames));
    match frames {
        _ if kind == Kind::Aligned => {
            let order = black_box(frames.next_power_of_two().trailing_zeros());
            let alloc = || alloc::<ASKS>(AllocRequest::order(black_box(order)));
            make_pairs(pairs, alloc, || black_box(1 << order))
        }
        _ if kind == Kind::Hidden => {
            let alloc = || alloc::<ASKS>(AllocRequest::frames(black_box(frames)));
            make_pairs(pairs, alloc, || black_box(frames))
        }
        1 => make_pairs(pairs, constant(1), || 1),
        2 => make_pairs(pairs, constant(2), || 2),
        3 => make_pairs(pairs, constant(3), || 3),
        5 => make_pairs(pairs, constant(5), || 5),
        8 => make_pairs(pairs, constant(8), || 8),
        12 => make_pairs(pairs, constant(12), || 12),
        32 => make_pairs(pairs, constant(32), || 32),
        33 => make_pairs(pairs, constant(33), || 33),
        64 => make_pairs(pairs, constant(64), || 64),
        65 => make_pairs(pairs, constant(65), || 65),
        128 => make_pairs(pairs, constant(128), || 128),
        200 => make_pairs(pairs, constant(200), || 200),
        256 => make_pairs(pairs, constant(256), || 256),
        512 => make_pairs(pairs, constant(512), || 512),
        _ => 6,
    }
}

/// Allocates by `alloc`, and frees as many frames as `frames` returns, `pairs` times.
#[inline(always)]
fn make_pairs(pairs: u64, alloc: impl Fn() -> Allocated, frames: impl Fn() -> u64) -> i32 {
    for _ in 0..pairs {
        let Ok(run) = alloc() else { return 3 };
        // A kernel stores only the number of the first frame, and knows the length itself.
        let start = black_box(run.into_raw().start());
        let Some(run) = PfnRange::with_len(start, frames()) else { return 4 };
        // SAFETY: the run was allocated above, and nothing refers to it any more.
        if unsafe { FRAMES.free_raw(run) }.is_err() {
            return 5;
        }
    }
    0
}
