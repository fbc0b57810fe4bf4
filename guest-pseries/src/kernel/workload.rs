//! The workload: it fills memory with patterns, checks them, and lets its frames be migrated, as an
//! application would.

use super::exit::give_up;
use super::memory::{self, FRAME_WORDS};
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{Bytes, Migration, Pfn, PfnRange};
use hotmem_guest::owned::OwnedFrames;
use hotmem_guest::{frame_words, pattern, to_usize};

/// The sizes of allocations in frames, in the order in which they are tried.
const SIZES: [u64; 3] = [PAGEBLOCK_FRAMES as u64, 64, 1];
const SEED: u64 = 0x7073_6572_6965_7300;

/// The state of the workload.
pub(super) struct Workload {
    owned: OwnedFrames,
}

impl Workload {
    /// Makes a workload that owns nothing.
    pub(super) fn new() -> Workload {
        // SAFETY: its nodes are frames that `own` allocates, which are accessible and never freed.
        Workload { owned: unsafe { OwnedFrames::new(FRAME_WORDS) } }
    }

    /// Returns the amount of memory that it owns.
    pub(super) fn owns(&self) -> Bytes {
        Bytes(self.owned.len() << 12)
    }

    /// Fills `bytes` of memory with patterns: free memory of `preferred` first, then any other.
    pub(super) fn touch(&mut self, bytes: Bytes, preferred: PfnRange) {
        let mut left = bytes.frames();
        for block in preferred.chunks(PAGEBLOCK_FRAMES as u64) {
            if left == 0 {
                break;
            }
            if let Some(frames) = memory::alloc_at(block.start(), block.frames().min(left)) {
                left -= self.fill(frames);
            }
        }
        for size in SIZES {
            while left > 0
                && let Some(frames) = memory::alloc(size.min(left))
            {
                left -= self.fill(frames);
            }
        }
    }

    /// Checks all patterns, and frees their frames. Returns the amount.
    pub(super) fn verify_and_free(&mut self) -> Bytes {
        let before = self.owned.len();
        let mut rest = PfnRange::new(Pfn::ZERO, Pfn::LIMIT).unwrap_or(PfnRange::EMPTY);
        while let Some(run) = self.owned.first_run(rest) {
            verify(run);
            self.owned.remove(run);
            // An allocation does not cross a pageblock.
            run.chunks(PAGEBLOCK_FRAMES as u64).for_each(memory::free);
            rest = rest.split_at(run.end()).1;
        }
        Bytes((before - self.owned.len()) << 12)
    }

    /// Migrates these frames, a run within one pageblock. Returns `None` if it does not own them.
    pub(super) fn migrate(&mut self, used: PfnRange) -> Option<Migration> {
        let mine = self.owned.first_run(used)?;
        let moved = each(mine).take_while(|&frame| self.move_frame(frame)).count();
        Some(if moved == 0 { Migration::Retry } else { Migration::Moved })
    }

    /// Migrates a frame. Returns whether there was a frame to migrate it to.
    fn move_frame(&mut self, from: Pfn) -> bool {
        let Some(new) = memory::alloc(1) else { return false };
        let to = new.start();
        let old = PfnRange::with_len(from, 1).unwrap_or(PfnRange::EMPTY);
        verify(old);
        // SAFETY: the workload owns both frames, which differ.
        unsafe {
            let (source, copy) = (FRAME_WORDS.pointer(from), FRAME_WORDS.pointer(to));
            source.copy_to_nonoverlapping(copy, to_usize(frame_words::FRAME_WORDS));
            let copied = pattern::check_copy(FRAME_WORDS, to, from, SEED);
            copied.unwrap_or_else(|mismatch| give_up(mismatch));
            // The new frame gets a pattern of its own.
            pattern::write(FRAME_WORDS, to, SEED);
        }
        self.own(new);
        self.owned.remove(old);
        memory::free(old);
        true
    }

    fn fill(&mut self, frames: PfnRange) -> u64 {
        for frame in each(frames) {
            // SAFETY: the frame was just allocated.
            unsafe { pattern::write(FRAME_WORDS, frame, SEED) }
        }
        self.own(frames);
        frames.frames()
    }

    fn own(&mut self, frames: PfnRange) {
        if self.owned.insert(frames, memory::alloc_own).is_err() {
            give_up("no room to remember what the application owns");
        }
    }
}

fn verify(frames: PfnRange) {
    for frame in each(frames) {
        // SAFETY: the workload owns the frame.
        let found = unsafe { pattern::check(FRAME_WORDS, frame, SEED) };
        found.unwrap_or_else(|mismatch| give_up(mismatch));
    }
}

fn each(frames: PfnRange) -> impl Iterator<Item = Pfn> {
    (frames.start().number()..frames.end().number()).filter_map(Pfn::new)
}
