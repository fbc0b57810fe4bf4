//! Takes a run of several frames that lie in one word of a bitmap, and marks words without a run.

use super::FrameWord;
use crate::geometry::BITMAP_WORDS;
use crate::sync::Ordering;
use crate::words::Zone;
use crate::words::last_change::LastChange;
use crate::words::run_shape::RunShape;
use crate::words::word_bits::{ALL_FREE, HELD, NO_RUN, offers};

impl FrameWord {
    /// Marks the word as one without runs, if no two neighbouring frames of it are free and it is not
    /// held. Returns whether the word has the mark. The next free of a frame of the word clears it.
    ///
    /// Acquire pairs with the Release of the frees. Release pairs with the free that clears the
    /// mark, which so sees what the caller did before.
    pub(in crate::words) fn mark_without_runs(&self) -> bool {
        let mut now = self.0.load(Ordering::Acquire);
        while now & HELD == 0 && now & (now >> 1) & ALL_FREE >> 1 == 0 {
            if now & NO_RUN != 0 {
                return true;
            }
            match self.0.compare_exchange_weak(
                now,
                now | NO_RUN,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(actual) => now = actual,
            }
        }
        false
    }

    /// Returns whether the word has the mark of [`mark_without_runs`](Self::mark_without_runs).
    pub(in crate::words) fn is_marked_without_runs(&self) -> bool {
        self.0.load(Ordering::Acquire) & NO_RUN != 0
    }

    /// Takes the run of `shape` that starts at the first suitable free frame, and returns the number
    /// of its first frame. Returns `None` if not all of these frames are free, although the word may
    /// have another run of this shape; and if the guess of `last_change`, which is the caller's, is
    /// wrong. Otherwise as [`take_frame_of`](Self::take_frame_of).
    #[inline(always)]
    pub(in crate::words) fn take_likely_run_of(
        &self,
        zone: Zone,
        shape: RunShape,
        last_change: &LastChange,
    ) -> Option<u64> {
        let now = self.probable_value(last_change);
        if offers(now, zone)
            && let Some(run) = shape.at_first_start(now)
        {
            return self.take_bits_of(now, run, last_change);
        }
        last_change.clear();
        None
    }

    /// Takes the first run of `shape`, and returns the number of its first frame. Returns `None` if
    /// the word has none, is of another zone than `zone`, or has flags. `last_change` is the caller's.
    pub(in crate::words) fn take_run_of(
        &self,
        zone: Zone,
        shape: RunShape,
        last_change: &LastChange,
    ) -> Option<u64> {
        loop {
            let now = self.0.load(Ordering::Relaxed);
            let run = if offers(now, zone) { shape.first_in(now)? } else { return None };
            last_change.set_word(self.address());
            if let Some(frame) = self.take_bits_of(now, run, last_change) {
                return Some(frame);
            }
        }
    }

    /// Takes the frames of `run`, if the word has the value `now`, and returns the number of the first
    /// one. `last_change` must already name this word. AcqRel: see [`take`](Self::take).
    #[inline(always)]
    fn take_bits_of(&self, now: u64, run: u64, last_change: &LastChange) -> Option<u64> {
        self.change(now, now & !run, Ordering::AcqRel, last_change)
            .then(|| self.first_frame(now) + u64::from(run.trailing_zeros()))
    }

    /// Returns the number of this word in its bitmap.
    pub(in crate::words) fn index(&self) -> usize {
        self.address() / size_of::<FrameWord>() % BITMAP_WORDS
    }
}
