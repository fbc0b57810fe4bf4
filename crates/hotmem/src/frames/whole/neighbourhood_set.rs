//! Defines the set of neighbourhoods in which CPUs work. A CPU that looks for a neighbourhood
//! without other CPUs reads the hints of all CPUs once for many neighbourhoods, not once for each.

use crate::addr::{Pfn, PfnRange};

const WORDS: usize = 16;

/// The set of those of 1024 consecutive neighbourhoods in which a CPU works.
pub(in crate::frames) struct NeighbourhoodSet {
    /// The first neighbourhood. The others have the same size.
    first: PfnRange,
    marks: [u64; WORDS],
}

impl NeighbourhoodSet {
    /// Makes the set of the neighbourhoods in which these frames lie.
    pub(crate) fn new(first: PfnRange, frames: impl Iterator<Item = Pfn>) -> NeighbourhoodSet {
        let mut occupied = NeighbourhoodSet { first, marks: [0; WORDS] };
        for frame in frames {
            if let Some((word, bit)) = occupied.word_and_bit(frame) {
                occupied.marks[word] |= bit;
            }
        }
        occupied
    }

    /// Returns whether a CPU works in the neighbourhood that begins at `start`, or `None` if it is
    /// none of the 1024 neighbourhoods.
    pub(super) fn has_cpu_at(&self, start: Pfn) -> Option<bool> {
        self.word_and_bit(start).map(|(word, bit)| self.marks[word] & bit != 0)
    }

    fn word_and_bit(&self, frame: Pfn) -> Option<(usize, u64)> {
        let offset = frame.number().checked_sub(self.first.start().number())?;
        let nth = usize::try_from(offset.checked_div(self.first.frames())?).ok()?;
        (nth < WORDS * 64).then(|| (nth / 64, 1 << (nth % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_neighbourhoods_of_the_frames_are_marked_and_no_others() {
        let first = PfnRange::with_len(Pfn::new(8192).unwrap(), 64).unwrap();
        let frame = |number| Pfn::new(number).unwrap();
        let occupied = NeighbourhoodSet::new(
            first,
            [8191, 8255, 8256 + 63, 8192 + 1024 * 64].map(frame).into_iter(),
        );
        assert_eq!(
            [8192, 8256, 8320].map(|at| occupied.has_cpu_at(frame(at))),
            [Some(true), Some(true), Some(false)]
        );
        assert_eq!(occupied.has_cpu_at(frame(8192 + 1023 * 64)), Some(false));
        assert_eq!([0, 8191, 8192 + 1024 * 64].map(|at| occupied.has_cpu_at(frame(at))), [None; 3]);
    }
}
