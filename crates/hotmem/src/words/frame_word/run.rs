//! Takes a run of several frames that lie in one word of a bitmap, and marks words without a run.

use super::FrameWord;
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, BITMAP_WORDS};
use crate::sync::Ordering;
use crate::words::Zone;
use crate::words::last_change::LastChange;
use crate::words::run_shape::RunShape;
use crate::words::word_bits::{
    ALL_FREE, FreedBits, GROUP_SHIFT, HELD, MARK, WORD_GROUP_FRAMES, offers, offers_bits,
};

impl FrameWord {
    /// Marks the word as one without runs, if no two neighbouring frames of it are free and it is not
    /// held. Returns whether the word has the mark. The next free of a frame of the word clears it.
    ///
    /// Acquire pairs with the Release of the frees. Release pairs with the free that clears the
    /// mark, which so sees what the caller did before.
    pub(in crate::words) fn mark_without_runs(&self) -> bool {
        let mut now = self.0.load(Ordering::Acquire);
        while now & HELD == 0 && now & (now >> 1) & ALL_FREE >> 1 == 0 {
            if now & MARK != 0 {
                return true;
            }
            match self.0.compare_exchange_weak(now, now | MARK, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(actual) => now = actual,
            }
        }
        false
    }

    /// Returns whether the word has a mark. Acquire pairs with the Release of
    /// [`mark_without_runs`](Self::mark_without_runs).
    pub(in crate::words) fn is_marked(&self) -> bool {
        self.0.load(Ordering::Acquire) & MARK != 0
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

    /// Returns the value of the word: a snapshot, which orders nothing.
    #[inline(always)]
    pub(in crate::words) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes all frames, if the word has this value, of a word whose frames are all free. AcqRel: see
    /// [`take`](Self::take).
    #[inline(always)]
    pub(in crate::words) fn take_all(&self, value: u64) -> bool {
        let after = value & !ALL_FREE;
        self.0.compare_exchange(value, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Frees all frames, if the word has this value, of an open word that has no free frame. `SeqCst`:
    /// see [`free`](Self::free).
    #[inline(always)]
    pub(in crate::words) fn free_all(&self, value: u64) -> bool {
        let after = value | ALL_FREE;
        self.0.compare_exchange(value, after, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Returns whether the frames of `bits` are free, and the word is of `zone` and has no flags.
    #[inline(always)]
    pub(in crate::words) fn offers_bits_of(&self, zone: Zone, bits: u64) -> bool {
        offers_bits(self.0.load(Ordering::Relaxed), zone, bits)
    }

    /// Takes the frames of `bits`, if they are free, the word is of `zone` and has no flags, and no
    /// other CPU changes it at the same time. AcqRel: see [`take`](Self::take).
    #[inline(always)]
    pub(in crate::words) fn take_bits_if_of(&self, zone: Zone, bits: u64) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        let after = now & !bits;
        offers_bits(now, zone, bits)
            && self.0.compare_exchange(now, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns the free of `bits` as it would be now, if none of these bits is set, and the word has
    /// neither a flag nor a mark, nor was a frame of its pageblock lent.
    #[inline(always)]
    pub(in crate::words) fn plan_open_free(&self, bits: u64) -> Option<FreedBits> {
        let now = self.0.load(Ordering::Relaxed);
        FreedBits::new(now, bits).filter(|freed| freed.is_of_open_word())
    }

    /// Returns whether the word belongs to the group of `frame`.
    #[inline(always)]
    pub(in crate::words) fn is_in_group_of(&self, frame: Pfn) -> bool {
        (self.value() >> GROUP_SHIFT) == frame.number() / WORD_GROUP_FRAMES
    }

    /// Frees the frames of `bits`, under the conditions of [`plan_open_free`](Self::plan_open_free)
    /// and if no other CPU changes the word at the same time. `SeqCst`: see [`free`](Self::free).
    #[inline(always)]
    pub(in crate::words) fn free_bits_if_open(&self, bits: u64) -> bool {
        self.plan_open_free(bits).is_some_and(|freed| {
            let (before, after) = freed.change();
            self.0.compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        })
    }

    /// Returns the number of this word in its bitmap.
    pub(in crate::words) fn index(&self) -> usize {
        if cfg!(loom) {
            // In a model, bitmaps are not aligned to their size.
            #[allow(clippy::cast_possible_truncation, reason = "the number of a word of the model")]
            let number = (self.first_frame(self.value()) / BITMAP_WORD_BITS as u64) as usize;
            return number % BITMAP_WORDS;
        }
        self.address() / size_of::<FrameWord>() % BITMAP_WORDS
    }
}
