//! A load that uses all memory, or, if the host chooses that, a [mixed] load.

mod checked_memory;
mod mixed;

use crate::fw_cfg;
use alloc::vec::Vec;
use axalloc::{FRAMES, global_allocator};
use axstd::println;
use checked_memory::CheckedMemory;
use core::{iter, mem};

/// The words of 64 MiB.
const LEN: usize = 8 << 20;

/// The memory in use.
pub struct Load {
    allocations: Vec<CheckedMemory>,
    is_mixed: bool,
}

impl Load {
    /// Returns a load that uses no memory yet. It is mixed if a file of fw_cfg says so.
    pub fn start() -> Load {
        let is_mixed = fw_cfg::read("opt/hotmem-load").is_some_and(|load| load == "mixed");
        Load { allocations: Vec::new(), is_mixed }
    }

    /// Allocates all free memory, and writes and checks each word. Frees the memory unless `keep`
    /// is set. A mixed load frees all but what stays in use.
    pub fn use_memory(&mut self, keep: bool) {
        let words: usize = if self.is_mixed {
            mixed::run(&mut self.allocations, free_frames())
        } else {
            self.allocations.extend(iter::from_fn(|| CheckedMemory::new(LEN)));
            self.allocations.iter().map(CheckedMemory::len).sum()
        };
        self.check();
        if !keep && !self.is_mixed {
            self.allocations.clear();
        }
        println!(r#"{{"event":"verified","bytes":{}}}"#, words * size_of::<usize>());
    }

    /// Checks the memory in use again and frees it. Returns whether there was any.
    pub fn free(&mut self) -> bool {
        self.check();
        !mem::take(&mut self.allocations).is_empty()
    }

    /// Ends the load.
    pub fn end(self) {}

    fn check(&self) {
        self.allocations.iter().for_each(CheckedMemory::check);
    }
}

/// Returns the number of free frames, as ArceOS's interface reports it. Checks that it differs from
/// the engine's count by what the engine uses for itself, and by what other threads do meanwhile.
fn free_frames() -> u64 {
    let available = global_allocator().available_pages() as u64;
    let counts = FRAMES.counts();
    let expected = counts.free + counts.words + counts.bitmaps;
    assert!(available.abs_diff(expected) < 64, "{available} pages are available: {counts:?}");
    available
}
