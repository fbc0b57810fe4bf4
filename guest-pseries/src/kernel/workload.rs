//! Implements the workload, which fills memory with patterns, checks the patterns, and lets its
//! frames be migrated, as an application would.

use super::exit::give_up;
use super::memory::{self, FRAME_WORDS};
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{Bytes, Migration, Pfn, PfnRange};
use hotmem_guest::frame_words::{self, each_frame};
use hotmem_guest::owned::OwnedFrames;
use hotmem_guest::{pattern, to_usize};

/// The sizes of allocations in frames, in the order in which they are tried.
const SIZES: [u64; 3] = [PAGEBLOCK_FRAMES as u64, 64, 1];
const SEED: u64 = 0x7073_6572_6965_7300;

/// The state of the workload.
pub(super) struct Workload {
    owned: OwnedFrames,
}

impl Workload {
    /// Returns a workload that owns no memory.
    pub(super) fn new() -> Workload {
        // SAFETY: the set's nodes are frames that `add_owned` allocates. They are accessible and
        // never freed, and nothing else uses them.
        Workload { owned: unsafe { OwnedFrames::new(FRAME_WORDS) } }
    }

    /// Returns the amount of memory that the workload owns.
    pub(super) fn owned_bytes(&self) -> Bytes {
        Bytes(self.owned.len() << 12)
    }

    /// Fills `bytes` of memory with patterns: first free memory of `preferred`, then any free
    /// memory.
    pub(super) fn touch(&mut self, bytes: Bytes, preferred: PfnRange) {
        let mut missing = bytes.frames();
        for block in preferred.chunks(PAGEBLOCK_FRAMES as u64) {
            if missing == 0 {
                break;
            }
            if let Some(frames) = memory::alloc_at(block.start(), block.frames().min(missing)) {
                missing -= self.fill(frames);
            }
        }
        for size in SIZES {
            while missing > 0
                && let Some(frames) = memory::alloc(size.min(missing))
            {
                missing -= self.fill(frames);
            }
        }
    }

    /// Checks all patterns, and frees all frames of the workload. Returns the amount of freed
    /// memory.
    pub(super) fn verify_and_free(&mut self) -> Bytes {
        let before = self.owned.len();
        let mut remaining = PfnRange::new(Pfn::ZERO, Pfn::LIMIT).unwrap_or(PfnRange::EMPTY);
        while let Some(run) = self.owned.first_run(remaining) {
            verify(run);
            self.owned.remove(run);
            // No allocation crosses a boundary of pageblocks, so free each pageblock's frames by
            // themselves.
            run.chunks(PAGEBLOCK_FRAMES as u64).for_each(memory::free);
            remaining = remaining.split_at(run.end()).1;
        }
        Bytes((before - self.owned.len()) << 12)
    }

    /// Migrates the first run of frames of `used` that the workload owns. `used` is a run within
    /// one pageblock. Returns `None` if the workload owns no frame of `used`.
    pub(super) fn migrate(&mut self, used: PfnRange) -> Option<Migration> {
        let owned_run = self.owned.first_run(used)?;
        let moved = each_frame(owned_run).take_while(|&frame| self.move_frame(frame)).count();
        Some(if moved == 0 { Migration::Retry } else { Migration::Moved })
    }

    /// Migrates the frame `from`. Returns whether there was a frame to which it could be migrated.
    fn move_frame(&mut self, from: Pfn) -> bool {
        let Some(new) = memory::alloc(1) else { return false };
        let to = new.start();
        let old = PfnRange::with_len(from, 1).unwrap_or(PfnRange::EMPTY);
        verify(old);
        // SAFETY: the workload owns both frames, and they differ.
        unsafe {
            let (source, copy) = (FRAME_WORDS.pointer(from), FRAME_WORDS.pointer(to));
            source.copy_to_nonoverlapping(copy, to_usize(frame_words::FRAME_WORDS));
            let copied = pattern::check_copy(FRAME_WORDS, to, from, SEED);
            copied.unwrap_or_else(|mismatch| give_up(mismatch));
            // The pattern depends on the frame's number, so write that of the new frame.
            pattern::write(FRAME_WORDS, to, SEED);
        }
        self.add_owned(new);
        self.owned.remove(old);
        memory::free(old);
        true
    }

    fn fill(&mut self, frames: PfnRange) -> u64 {
        for frame in each_frame(frames) {
            // SAFETY: the frame was just allocated, so it has no other user.
            unsafe { pattern::write(FRAME_WORDS, frame, SEED) }
        }
        self.add_owned(frames);
        frames.frames()
    }

    fn add_owned(&mut self, frames: PfnRange) {
        if self.owned.insert(frames, memory::alloc_table_frame).is_err() {
            give_up("no memory for the set of owned frames");
        }
    }
}

fn verify(frames: PfnRange) {
    for frame in each_frame(frames) {
        // SAFETY: the workload owns the frame, so it has no other user.
        let found = unsafe { pattern::check(FRAME_WORDS, frame, SEED) };
        found.unwrap_or_else(|mismatch| give_up(mismatch));
    }
}
