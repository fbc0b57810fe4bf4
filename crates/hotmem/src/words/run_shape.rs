//! Defines the shape of a run that fits into a word of a frame bitmap, and finds such a run in a
//! word.

use crate::geometry::{BITMAP_WORD_BITS, mask};

/// The length and the alignment of a run of at least two frames that fits into a word, as masks. The
/// lower half has as many bits as the run has frames, the lowest ones. The upper half has the bits at
/// which the run may start, at least one, so that it ends within the word. If the request is a
/// constant, so are the masks; and they fit into one register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RunShape(u64);

/// The bits of all frames of a word.
const ALL: u64 = mask(BITMAP_WORD_BITS);
const _: () = assert!(BITMAP_WORD_BITS <= 32);
/// The length of the shortest run.
const SHORTEST: usize = 2;

/// For each length, the shape of a run that may start at any frame. One load from here is shorter
/// than its computation.
static UNALIGNED: [RunShape; BITMAP_WORD_BITS - SHORTEST + 1] = {
    let mut shapes = [RunShape(0); BITMAP_WORD_BITS - SHORTEST + 1];
    let mut frames = SHORTEST;
    while frames <= BITMAP_WORD_BITS {
        shapes[frames - SHORTEST] = RunShape(mask(frames) | (ALL >> (frames - 1)) << 32);
        frames += 1;
    }
    shapes
};

/// For each order up to that of a word, a mask of the starts at multiples of 2^order. A run may
/// always start at 0.
static ALIGNED: [u64; BITMAP_WORD_BITS.ilog2() as usize + 1] = {
    let mut masks = [0; BITMAP_WORD_BITS.ilog2() as usize + 1];
    let mut order = 0;
    while order < masks.len() {
        let mut start = 0;
        while start < BITMAP_WORD_BITS {
            masks[order] |= 1 << (32 + start);
            start += 1 << order;
        }
        masks[order] |= mask(32);
        order += 1;
    }
    masks
};

impl RunShape {
    /// Returns the shape of a run of `frames` frames that starts at a multiple of `align`, a power of
    /// two. Returns `None` if `frames` is 1 or if no word has such a run.
    #[inline(always)]
    pub(crate) fn new(frames: u64, align: u64) -> Option<RunShape> {
        let starts = ALIGNED.get(align.trailing_zeros() as usize)?;
        Some(RunShape(RunShape::unaligned(frames)?.0 & starts))
    }

    /// Returns as many bits as a run of `frames` frames has, the lowest ones, or `None` as
    /// [`new`](Self::new) does.
    #[inline(always)]
    pub(crate) fn bits_of(frames: u64) -> Option<u64> {
        RunShape::unaligned(frames).map(RunShape::run)
    }

    #[inline(always)]
    fn unaligned(frames: u64) -> Option<RunShape> {
        let index = usize::try_from(frames.wrapping_sub(SHORTEST as u64)).ok()?;
        UNALIGNED.get(index).copied()
    }

    /// Returns the masks as one number.
    #[inline(always)]
    pub(super) const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the bits of the run that starts at the first suitable frame of those that are free in
    /// `word`, or `None` if not all of them are free. Usually, they are.
    #[inline(always)]
    pub(super) fn at_first_start(self, word: u64) -> Option<u64> {
        let starts = word & self.0 >> 32;
        if starts == 0 {
            return None;
        }
        let run = self.run() << (starts.trailing_zeros() % 64);
        (run & !word == 0).then_some(run)
    }

    /// Returns the bits of the first run of this shape that is free in `word`.
    pub(super) fn first_in(self, word: u64) -> Option<u64> {
        let mut starts = word & self.0 >> 32;
        while starts != 0 {
            let run = self.run() << starts.trailing_zeros();
            let missing = run & !word;
            if missing == 0 {
                return Some(run);
            }
            // No run that starts below the last missing frame is free.
            starts &= !mask(64 - missing.leading_zeros() as usize);
        }
        None
    }

    #[inline(always)]
    fn run(self) -> u64 {
        self.0 & mask(32)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_run_of_a_word_agrees_with_a_naive_search() {
        const WORD: u64 = BITMAP_WORD_BITS as u64;
        for free in [0, 1, 0xf0f0, 0b1011_1011_1111, 0x7fff_fffe, 0xffff_ffff, 0x8181_ff18] {
            let free = free & mask(BITMAP_WORD_BITS);
            for (frames, order) in (2..=WORD).flat_map(|n| (0..=WORD.ilog2()).map(move |o| (n, o)))
            {
                let run_at = |start: u64| mask(usize::try_from(frames).unwrap()) << start;
                let naive = (0..WORD)
                    .step_by(1 << order)
                    .find(|&start| start + frames <= WORD && free & run_at(start) == run_at(start));
                let shape = RunShape::new(frames, 1 << order).unwrap();
                assert_eq!(shape.first_in(free), naive.map(run_at), "{free:x} {shape:?}");
                let likely = shape.at_first_start(free);
                assert!([None, shape.first_in(free)].contains(&likely), "{free:x} {shape:?}");
            }
        }
    }

    #[test]
    fn a_run_that_is_aligned_to_more_than_a_word_has_no_shape() {
        const WORD: u64 = BITMAP_WORD_BITS as u64;
        assert!(RunShape::new(WORD, WORD).is_some());
        assert_eq!(RunShape::new(WORD, 2 * WORD), None);
        assert_eq!(RunShape::new(WORD + 1, 1), None);
        assert_eq!(RunShape::new(1, 1), None);
    }
}
