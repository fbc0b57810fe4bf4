//! What an application would do with memory: fill it with patterns, check them, move.

use super::exit::give_up;
use super::memory::{self, FRAME_WORDS};
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{Bytes, Migration, Pfn, PfnRange};
use hotmem_guest::owned::OwnedFrames;
use hotmem_guest::{frame_words, pattern, to_usize};

/// Frames that are taken at a time, as long as there are this many in one piece.
const SIZES: [u64; 3] = [PAGEBLOCK_FRAMES as u64, 64, 1];
const SEED: u64 = 0x7073_6572_6965_7300;

/// The application.
pub(super) struct Workload {
    owned: OwnedFrames,
}

impl Workload {
    /// Returns one that owns nothing yet.
    pub(super) fn new() -> Workload {
        // SAFETY: its tables are frames that `own` allocates: reachable, and never freed.
        Workload { owned: unsafe { OwnedFrames::new(FRAME_WORDS) } }
    }

    /// Returns what it owns.
    pub(super) fn owns(&self) -> Bytes {
        Bytes(self.owned.len() << 12)
    }

    /// Fills `bytes` of `preferred`, as far as it is free, with patterns; then of any memory.
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

    /// Checks all patterns, and frees what holds them: how much that was.
    pub(super) fn verify_and_free(&mut self) -> Bytes {
        let before = self.owned.len();
        let mut rest = PfnRange::new(Pfn::ZERO, Pfn::LIMIT).unwrap_or(PfnRange::EMPTY);
        while let Some(run) = self.owned.first_run(rest) {
            verify(run);
            self.owned.remove(run);
            // As allocations have it: none crosses a pageblock.
            run.chunks(PAGEBLOCK_FRAMES as u64).for_each(memory::free);
            rest = rest.split_at(run.end()).1;
        }
        Bytes((before - self.owned.len()) << 12)
    }

    /// Returns the engine wants these frames, a run within one pageblock, to be free; `None` if
    /// they are somebody else's.
    pub(super) fn migrate(&mut self, used: PfnRange) -> Option<Migration> {
        let mine = self.owned.first_run(used)?;
        let moved = each(mine).take_while(|&frame| self.move_frame(frame)).count();
        Some(if moved == 0 { Migration::Retry } else { Migration::Moved })
    }

    /// Returns whether there was a place for what the frame holds.
    fn move_frame(&mut self, from: Pfn) -> bool {
        let Some(new) = memory::alloc(1) else { return false };
        let to = new.start();
        let old = PfnRange::with_len(from, 1).unwrap_or(PfnRange::EMPTY);
        verify(old);
        // SAFETY: both frames are the workload's, and two different ones.
        unsafe {
            let (source, copy) = (FRAME_WORDS.pointer(from), FRAME_WORDS.pointer(to));
            source.copy_to_nonoverlapping(copy, to_usize(frame_words::FRAME_WORDS));
            let copied = pattern::check_copy(FRAME_WORDS, to, from, SEED);
            copied.unwrap_or_else(|mismatch| give_up(mismatch));
            // It is this frame's from now on.
            pattern::write(FRAME_WORDS, to, SEED);
        }
        self.own(new);
        self.owned.remove(old);
        memory::free(old);
        true
    }

    fn fill(&mut self, frames: PfnRange) -> u64 {
        for frame in each(frames) {
            // SAFETY: the frame was allocated just now.
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
        // SAFETY: the frame is the workload's.
        let found = unsafe { pattern::check(FRAME_WORDS, frame, SEED) };
        found.unwrap_or_else(|mismatch| give_up(mismatch));
    }
}

fn each(frames: PfnRange) -> impl Iterator<Item = Pfn> {
    (frames.start().number()..frames.end().number()).filter_map(Pfn::new)
}
