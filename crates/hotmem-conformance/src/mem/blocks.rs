//! Models which blocks are plugged.

use core::ops::Range;

const MAX_RUNS: usize = 8;

/// The numbers of the plugged blocks, in a few runs in any order.
#[derive(Default)]
pub(super) struct Blocks {
    runs: [Range<u64>; MAX_RUNS],
}

impl Blocks {
    pub(super) fn contains(&self, block: u64) -> bool {
        self.runs.iter().any(|run| run.contains(&block))
    }

    pub(super) fn count(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }

    /// Returns the number of blocks from `block` on, at most `limit`, that are in the same state as
    /// `block`.
    pub(super) fn same_state(&self, block: u64, limit: u64) -> u64 {
        let borders = self.runs.iter().flat_map(|run| [run.start, run.end]);
        let next = borders.filter(|&border| border > block).min().unwrap_or(u64::MAX);
        limit.min(next - block)
    }

    /// Adds blocks that are not plugged.
    ///
    /// # Panics
    /// Panics if a point plugs more runs than the model holds.
    pub(super) fn insert(&mut self, blocks: Range<u64>) {
        let place = self.runs.iter_mut().find(|run| run.is_empty());
        *place.expect("a point plugs too many runs of blocks") = blocks;
    }

    /// Removes blocks that are all plugged, by one or several runs.
    pub(super) fn remove(&mut self, blocks: &Range<u64>) {
        for index in 0..MAX_RUNS {
            let run = self.runs[index].clone();
            if run.is_empty() || run.end <= blocks.start || blocks.end <= run.start {
                continue;
            }
            self.runs[index] = run.start..blocks.start.max(run.start);
            if blocks.end < run.end {
                self.insert(blocks.end..run.end);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Blocks::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_agrees_with_a_flag_for_each_block() {
        let mut blocks = Blocks::default();
        let mut flags = [false; 16];
        let steps = [(2..5, true), (7..9, true), (5..6, true), (3..4, false), (4..6, false)];
        for (range, plugged) in steps {
            if plugged {
                blocks.insert(range.clone());
            } else {
                blocks.remove(&range);
            }
            for block in range {
                flags[usize::try_from(block).unwrap()] = plugged;
            }
            for block in 0..16 {
                let rest = &flags[block..];
                assert_eq!(blocks.contains(block as u64), rest[0]);
                let same = rest.iter().take_while(|&&flag| flag == rest[0]).count() as u64;
                let found = blocks.same_state(block as u64, rest.len() as u64);
                assert!((1..=same).contains(&found), "{block}: {found}");
            }
            assert_eq!(blocks.count(), flags.iter().filter(|&&flag| flag).count() as u64);
        }
        blocks.clear();
        assert_eq!(blocks.count(), 0);
    }
}
