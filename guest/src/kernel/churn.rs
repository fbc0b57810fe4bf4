//! The work of the other CPUs: they allocate movable frames, fill them, check them and free them,
//! and write to mapped pages, in an endless loop.
//!
//! The patterns differ from CPU to CPU, so that a frame with two owners is noticed.

use super::fatal::give_up;
use super::limits::MAX_CPUS;
use super::memory::{FRAME_WORDS, FRAMES, alloc_frames};
use super::poison;
use super::quiesce;
use super::this_cpu::ThisCpu;
use super::writers::Writer;
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};
use hotmem::{AllocRequest, Pfn, PfnRange, Platform};
use hotmem_guest::pattern;
use hotmem_guest::to_usize;

/// The maximal number of pieces that a CPU holds, and their sizes in frames.
const MAX_PIECES: u64 = 16;
const SIZES: [u64; 8] = [1, 1, 2, 3, 8, 17, 64, 512];

/// Whether no frames may be allocated. The CPU that boots sets it before it sends the request of
/// `release_all`; the others read it after they have answered.
static STOPPED: AtomicBool = AtomicBool::new(true);
/// The number of allocations, a statistic that orders nothing.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Whether a CPU is in an allocation or a free, for its own NMIs.
static IN_ENGINE: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];

/// Lets the CPUs allocate frames from now on.
pub(crate) fn start() {
    // Relaxed: this orders nothing.
    STOPPED.store(false, Relaxed);
}

/// Allocates, checks and frees frames until the machine ends.
pub(crate) fn run(cpu: usize) -> ! {
    let seed = pattern::mix(cpu as u64);
    let mut random = seed;
    let mut writer = Writer::new(cpu);
    let mut held = [PfnRange::EMPTY; to_usize(MAX_PIECES)];
    loop {
        quiesce::answer(cpu, || {
            held.iter_mut()
                .for_each(|frames| release(core::mem::replace(frames, PfnRange::EMPTY), seed));
        });
        writer.write_some();
        if STOPPED.load(Acquire) {
            core::hint::spin_loop();
            continue;
        }
        random = pattern::mix(random);
        let frames = &mut held[to_usize(random % MAX_PIECES)];
        if frames.is_empty() {
            *frames = take(AllocRequest::frames(SIZES[to_usize(random >> 32 & 7)]).movable(), seed);
            // Relaxed: a statistic that orders nothing.
            TAKEN.fetch_add((!frames.is_empty()).into(), Relaxed);
        } else {
            release(core::mem::replace(frames, PfnRange::EMPTY), seed);
        }
    }
}

/// Makes the CPUs free all frames and allocate no more. Returns the number of allocations.
pub(crate) fn stop() -> u64 {
    // Release pairs with the Acquire in `run`.
    STOPPED.store(true, Release);
    quiesce::release_all();
    TAKEN.load(Relaxed)
}

/// Returns whether this CPU, which is the caller's, was interrupted in an allocation or a free.
pub(crate) fn is_in_engine(cpu: usize) -> bool {
    IN_ENGINE[cpu].load(Relaxed)
}

/// Calls the engine. Meanwhile [`is_in_engine`] is true for NMIs of this CPU.
fn in_engine<T>(call: impl FnOnce() -> T) -> T {
    let here = &IN_ENGINE[ThisCpu.cpu()];
    let before = here.load(Relaxed);
    here.store(true, Relaxed);
    compiler_fence(SeqCst);
    let answer = call();
    compiler_fence(SeqCst);
    here.store(before, Relaxed);
    answer
}

/// Allocates frames and fills them with patterns. Returns an empty range if there is no memory.
pub(crate) fn take(request: AllocRequest, seed: u64) -> PfnRange {
    let Ok(taken) = in_engine(|| alloc_frames(request)) else { return PfnRange::EMPTY };
    poison::check(taken);
    for frame in each(taken) {
        // SAFETY: the frame was just allocated, so it is mapped and has no other user.
        unsafe { pattern::write(FRAME_WORDS, frame, seed) }
    }
    taken
}

/// Checks and frees frames that [`take`] has allocated.
pub(crate) fn release(frames: PfnRange, seed: u64) {
    for frame in each(frames) {
        // SAFETY: the frame was allocated by `take`, so it is mapped.
        let found = unsafe { pattern::check(FRAME_WORDS, frame, seed) };
        found.unwrap_or_else(|mismatch| give_up(mismatch));
    }
    if frames.is_empty() {
        return;
    }
    let freed = in_engine(|| {
        // SAFETY: the frames were allocated by `take`, and nothing refers to them any more.
        unsafe { FRAMES.free_raw_filled(frames) }
    });
    if let Err(error) = freed {
        give_up(format_args!("the engine refused to take frames back: {error}"));
    }
}

fn each(frames: PfnRange) -> impl Iterator<Item = Pfn> {
    (frames.start().number()..frames.end().number()).filter_map(Pfn::new)
}
