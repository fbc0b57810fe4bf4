//! Runs the endless loop of the other CPUs: they allocate movable frames, fill them with patterns,
//! check and free them, and write to mapped pages.
//!
//! The patterns differ from CPU to CPU, so a frame that two CPUs own has a wrong pattern for one of
//! them.

use super::contents::{self, NewFrames};
use super::fatal::give_up;
use super::memory::{FRAME_WORDS, FRAMES};
use super::moving_pages::Writer;
use super::quiesce;
use super::this_cpu::ThisCpu;
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};
use hotmem::{AllocRequest, PfnRange, Platform};
use hotmem_guest::frame_words::each_frame;
use hotmem_guest::limits::MAX_CPUS;
use hotmem_guest::pattern;
use hotmem_guest::to_usize;

/// The maximal number of allocations that a CPU holds.
const MAX_ALLOCATIONS: u64 = 16;
/// The sizes of allocations in frames.
const SIZES: [u64; 8] = [1, 1, 2, 3, 8, 17, 64, 512];

/// Whether the other CPUs must not allocate frames. The CPU that boots sets the flag before it
/// calls `free_frames_of_other_cpus`; the other CPUs read the flag after they have answered that
/// request.
static STOPPED: AtomicBool = AtomicBool::new(true);
/// The number of allocations, a statistic that orders nothing.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Whether each CPU is in an allocation or a free. Only the CPU itself and its NMIs use the flag.
static IN_ENGINE: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];

/// Lets the CPUs allocate frames from now on.
pub(crate) fn start() {
    // Relaxed: no other data depend on the flag.
    STOPPED.store(false, Relaxed);
}

/// Allocates, checks and frees frames until the machine ends.
pub(crate) fn run(cpu: usize) -> ! {
    let seed = pattern::mix_bits(cpu as u64);
    let mut random = seed;
    let mut writer = Writer::new(cpu);
    let mut allocations = [PfnRange::EMPTY; to_usize(MAX_ALLOCATIONS)];
    loop {
        quiesce::answer(cpu, || {
            allocations.iter_mut().for_each(|frames| {
                check_and_free(core::mem::replace(frames, PfnRange::EMPTY), seed)
            });
        });
        writer.write_some();
        if STOPPED.load(Acquire) {
            core::hint::spin_loop();
            continue;
        }
        random = pattern::mix_bits(random);
        let frames = &mut allocations[to_usize(random % MAX_ALLOCATIONS)];
        if frames.is_empty() {
            *frames = allocate_filled(
                AllocRequest::frames(SIZES[to_usize(random >> 32 & 7)]).movable(),
                seed,
            );
            // Relaxed: the number is a statistic.
            ALLOCATIONS.fetch_add((!frames.is_empty()).into(), Relaxed);
        } else {
            check_and_free(core::mem::replace(frames, PfnRange::EMPTY), seed);
        }
    }
}

/// Makes the CPUs free all frames and allocate no more. Returns the number of allocations.
pub(crate) fn stop() -> u64 {
    // Release pairs with the Acquire in `run`.
    STOPPED.store(true, Release);
    quiesce::free_frames_of_other_cpus();
    ALLOCATIONS.load(Relaxed)
}

/// Returns whether an NMI of CPU `cpu` has interrupted an allocation or a free. Only NMIs of that
/// CPU may call this.
pub(crate) fn is_in_engine(cpu: usize) -> bool {
    IN_ENGINE[cpu].load(Relaxed)
}

/// Runs `call`, which calls the engine. Meanwhile [`is_in_engine`] is true for NMIs of this CPU.
fn in_engine<T>(call: impl FnOnce() -> T) -> T {
    let in_engine = &IN_ENGINE[ThisCpu.cpu()];
    let before = in_engine.load(Relaxed);
    in_engine.store(true, Relaxed);
    compiler_fence(SeqCst);
    let result = call();
    compiler_fence(SeqCst);
    in_engine.store(before, Relaxed);
    result
}

/// Allocates frames and fills them with patterns. Returns an empty range if there is no memory.
pub(crate) fn allocate_filled(request: AllocRequest, seed: u64) -> PfnRange {
    let allocated = in_engine(|| contents::alloc_unchecked(request));
    let Ok(frames) = allocated.map(NewFrames::check) else { return PfnRange::EMPTY };
    for frame in each_frame(frames) {
        // SAFETY: the frame was just allocated, so it is mapped and has no other user.
        unsafe { pattern::write(FRAME_WORDS, frame, seed) }
    }
    frames
}

/// Checks and frees frames that [`allocate_filled`] has returned.
pub(crate) fn check_and_free(frames: PfnRange, seed: u64) {
    for frame in each_frame(frames) {
        // SAFETY: `allocate_filled` has allocated the frame, so it is mapped and has no other user.
        let found = unsafe { pattern::check(FRAME_WORDS, frame, seed) };
        found.unwrap_or_else(|mismatch| give_up(mismatch));
    }
    if frames.is_empty() {
        return;
    }
    let freed = in_engine(|| {
        // SAFETY: `allocate_filled` has allocated the frames, and nothing refers to them any more.
        unsafe { FRAMES.fill_and_free_raw(frames) }
    });
    if let Err(error) = freed {
        give_up(format_args!("the engine refused to take frames back: {error}"));
    }
}
