//! Checks every interleaving of the engine's lock-free steps, on instances of a few frames.
//!
//! In these models, a frame bitmap has 2 words of 2 frames, a section has 2 pageblocks, and a chunk
//! has 4 sections. Code that owns frames writes to them, so that loom reports if two owners access
//! a frame at the same time, or if their accesses are not ordered. At the end of each execution,
//! the metadata must be consistent, no frame may be lost, and an allocation must find every free
//! frame.

mod batches;
mod bitmaps;
mod blocks;
mod boxes;
mod cursor;
mod directory;
mod hints;
mod instance;
mod isolation;
mod long_runs;
mod low_memory;
mod motion;
mod mutants;
mod nodes;
mod parked;
mod pins;
mod poison;
mod release;
mod report;
mod runs;
mod small;
mod table_reserve;
mod wide;
mod without_runs;
mod zeroed;
mod zeroed_away;
mod zones;

use crate::sync::{THREADS, begin_thread};
use instance::Instance;
use std::eprintln;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest number of preemptions in a model.
struct Preemptions {
    usual: usize,
    /// The number if `HOTMEM_DEEP` is set.
    deep: usize,
}

/// Checks `scenario` in every interleaving of up to 2 preemptions, or 3 if `HOTMEM_DEEP` is set.
fn model(scenario: impl Fn() + Sync + Send + 'static) {
    model_preemptions(2, scenario);
}

/// Checks `scenario` in every interleaving of up to 1 preemption, or 3 if `HOTMEM_DEEP` is set. For
/// scenarios that would take longer than two seconds in [`model`]. Their mutants must fail with 1
/// preemption.
fn large_model(scenario: impl Fn() + Sync + Send + 'static) {
    check_model(Preemptions { usual: 1, deep: 3 }, scenario);
}

/// Checks `scenario` in every interleaving of up to `preemptions` preemptions, and one more if
/// `HOTMEM_DEEP` is set.
fn model_preemptions(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    check_model(Preemptions { usual: preemptions, deep: preemptions + 1 }, scenario);
}

/// Returns whether the tests may take long: whether `HOTMEM_DEEP` is set.
fn is_deep() -> bool {
    std::env::var_os("HOTMEM_DEEP").is_some()
}

/// Checks `scenario` in every interleaving of up to this number of preemptions.
fn check_model(preemptions: Preemptions, scenario: impl Fn() + Sync + Send + 'static) {
    let bound = if is_deep() { preemptions.deep } else { preemptions.usual };
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(bound);
    builder.max_threads = THREADS;
    builder.max_branches = 100_000;
    let executions = Arc::new(AtomicUsize::new(0));
    let count = executions.clone();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        begin_thread(0);
        scenario();
    });
    eprintln!("{} executions", executions.load(Ordering::Relaxed));
}
