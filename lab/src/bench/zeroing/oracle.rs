//! Records which frames the host has zeroed and nobody has used since, independently of the
//! allocator.

use hotmem::{PfnRange, geometry::PAGEBLOCK_FRAMES};

/// The state of each frame of a machine, and the counts of what has happened to them.
pub(super) struct Oracle {
    first_frame: u64,
    /// Whether the host has zeroed the frame, and the frame was not allocated since.
    is_zero: Vec<bool>,
    /// The number of frames in each pageblock whose `is_zero` is true.
    zero_in_block: Vec<usize>,
    /// Whether a frame of the pageblock was allocated since the host has zeroed the pageblock.
    is_backed: Vec<bool>,
    counts: Counts,
}

/// Counts of events since the oracle was made, and the state at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    /// The number of allocated frames that the host had zeroed.
    pub(super) zero: u64,
    /// The number of these that were answered as zero.
    pub(super) answered: u64,
    /// The number of these that were not, because other frames of the same allocation were dirty.
    pub(super) with_dirty: u64,
    /// The number of allocated frames that were answered as zero, and that the host had not zeroed.
    pub(super) wrong: u64,
    /// The number of pageblocks that the host had zeroed and had to back again.
    pub(super) backed: u64,
    /// The number of frames at present that are free and zero, in pageblocks that the host has
    /// backed.
    pub(super) backed_zero: u64,
}

impl Oracle {
    /// Makes the oracle of `memory`, whole pageblocks that are dirty.
    pub(super) fn new(memory: PfnRange) -> Oracle {
        let frames = usize::try_from(memory.frames()).expect("the host has 64 bits");
        let blocks = frames / PAGEBLOCK_FRAMES;
        Oracle {
            first_frame: memory.start().number(),
            is_zero: vec![false; frames],
            zero_in_block: vec![0; blocks],
            is_backed: vec![true; blocks],
            counts: Counts::default(),
        }
    }

    /// Records that the host has zeroed `range`, which is whole pageblocks.
    pub(super) fn zeroed(&mut self, range: PfnRange) {
        let frames = self.indices(range);
        self.is_zero[frames.clone()].fill(true);
        for block in frames.start / PAGEBLOCK_FRAMES..frames.end / PAGEBLOCK_FRAMES {
            if self.is_backed[block] {
                self.counts.backed_zero -= self.zero_in_block[block] as u64;
            }
            (self.zero_in_block[block], self.is_backed[block]) = (PAGEBLOCK_FRAMES, false);
        }
    }

    /// Records that `range`, which lies within one pageblock, was allocated, and was answered as
    /// zero if `is_answered`.
    pub(super) fn allocated(&mut self, range: PfnRange, is_answered: bool) {
        let frames = self.indices(range);
        let block = frames.start / PAGEBLOCK_FRAMES;
        let zero = self.is_zero[frames.clone()].iter().filter(|&&is_zero| is_zero).count();
        self.is_zero[frames.clone()].fill(false);
        if !self.is_backed[block] {
            self.is_backed[block] = true;
            self.counts.backed += 1;
            self.counts.backed_zero += self.zero_in_block[block] as u64;
        }
        self.zero_in_block[block] -= zero;
        let has_dirty = zero < frames.len();
        let counts = &mut self.counts;
        counts.backed_zero -= zero as u64;
        counts.zero += zero as u64;
        match is_answered {
            true => {
                counts.answered += zero as u64;
                counts.wrong += (frames.len() - zero) as u64;
            }
            false if has_dirty => counts.with_dirty += zero as u64,
            false => {}
        }
    }

    /// Returns the counts.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    fn indices(&self, range: PfnRange) -> std::ops::Range<usize> {
        let index = |frame: u64| usize::try_from(frame - self.first_frame).unwrap_or(usize::MAX);
        index(range.start().number())..index(range.end().number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::Pfn;

    fn frames(start: u64, len: u64) -> PfnRange {
        PfnRange::with_len(Pfn::new(start).unwrap(), len).unwrap()
    }

    #[test]
    fn frames_are_zero_from_a_report_to_their_first_allocation() {
        let mut oracle = Oracle::new(frames(1024, 2048));
        oracle.allocated(frames(1024, 1), false);
        assert_eq!(oracle.counts(), Counts::default(), "all memory was dirty");
        oracle.zeroed(frames(1536, 1024));
        assert_eq!(oracle.counts(), Counts::default());
        oracle.allocated(frames(1536, 8), true);
        oracle.allocated(frames(1544, 2), false);
        let counts = Counts { zero: 10, answered: 8, backed: 1, ..Counts::default() };
        assert_eq!(oracle.counts(), Counts { backed_zero: 502, ..counts });
        // The first two frames were used, so they are dirty, and the others are zero.
        oracle.allocated(frames(1542, 4), false);
        oracle.allocated(frames(1545, 4), false);
        let counts = Counts { zero: 13, with_dirty: 3, backed_zero: 499, ..counts };
        assert_eq!(oracle.counts(), counts);
    }

    #[test]
    fn a_dirty_frame_that_is_answered_as_zero_is_wrong() {
        let mut oracle = Oracle::new(frames(0, 512));
        oracle.allocated(frames(3, 1), true);
        assert_eq!(oracle.counts(), Counts { wrong: 1, ..Counts::default() });
        oracle.zeroed(frames(0, 512));
        oracle.allocated(frames(0, 1), true);
        oracle.allocated(frames(0, 512), true);
        assert_eq!((oracle.counts().wrong, oracle.counts().answered), (2, 512));
        oracle.zeroed(frames(0, 512));
        assert_eq!((oracle.counts().backed, oracle.counts().backed_zero), (1, 0));
    }
}
