//! Support for tests of whole instances: heap memory that stands for physical memory, instances that
//! boot in it, a platform whose threads choose their CPU, and snapshots of an instance's state.
//!
//! | file | contents |
//! |---|---|
//! | `ranges.rs` | sizes, frames and ranges by plain numbers |
//! | `memory.rs` | heap memory that stands for physical memory |
//! | `cpus.rs` | a platform whose threads choose their CPU |
//! | `instance.rs` | boots an instance in this memory, plugs memory, divides a pageblock |
//! | `progress.rs` | the blocker of a poll |
//! | `raw.rs` | the unsafe operations of an instance, made safe for tests |
//! | `snapshot.rs` | snapshots of the state of an instance, for comparison |
//! | `forwarding.rs` | a mapping that forwards to a kernel of the test |
//! | `cut.rs` | the cases of tests that cut an exchange after every step |
//! | `env.rs` | numbers in environment variables |
#![cfg(not(loom))]

mod cpus;
mod cut;
mod env;
pub mod forwarding;
mod instance;
mod memory;
mod progress;
mod ranges;
mod raw;
mod snapshot;

pub use cpus::Cpus;
pub use cut::{Cut, Ending, Exchange, Work};
pub use env::env_number;
pub use instance::{
    boot, divide_two_pageblocks, free_or_metadata, keep_zero_marks, make_words, plug, region_range,
    start,
};
pub use memory::Memory;
pub use progress::blocker_of;
pub use ranges::{
    BITMAP_WORD_FRAMES, DISTANT_PFN, LONGEST_RUN, PAGEBLOCK, PFN_LIMIT, SECTION, numbers, pfn,
    range,
};
pub use raw::{RawHotplugCalls, RawRanges, Validated};
pub use snapshot::Snapshot;

/// The example in the README of the engine, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../hotmem/README.md")]
struct Readme;
