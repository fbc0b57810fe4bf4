//! Contains a set of frames that consists of few ranges, without a heap.

use hotmem::{OrViolation, PfnRange};

/// A set of disjoint ranges. Adjacent ranges are joined to one range. One place of the array is
/// kept free, so that a part can be taken out of the middle of a range.
#[derive(Debug)]
pub(super) struct RangeSet<const MAX_RANGES: usize> {
    ranges: [PfnRange; MAX_RANGES],
    len: usize,
    frames: u64,
}

/// The set cannot hold another range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The reason why a part cannot be removed from the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotRemoved {
    /// Removing the part would leave one range too many.
    Full,
    /// No range contains the part.
    Absent,
}

impl<const MAX_RANGES: usize> RangeSet<MAX_RANGES> {
    pub(super) const fn new() -> RangeSet<MAX_RANGES> {
        RangeSet { ranges: [PfnRange::EMPTY; MAX_RANGES], len: 0, frames: 0 }
    }

    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PfnRange> + '_ {
        self.ranges.iter().take(self.len).copied()
    }

    /// Adds `range`, no frame of which is in the set. Cost: O(ranges).
    pub(super) fn insert(&mut self, range: PfnRange) -> Result<(), Full> {
        let below = self.iter().position(|member| member.end() == range.start());
        let above = self.iter().position(|member| member.start() == range.end());
        match (below, above) {
            (None, None) if self.len + 1 >= MAX_RANGES => return Err(Full),
            (None, None) => self.push(range),
            (Some(index), None) => self.set_range(index, self.ranges[index].start(), range),
            (None, Some(index)) => self.set_range(index, range.start(), self.ranges[index]),
            (Some(index), Some(above)) => {
                self.set_range(index, self.ranges[index].start(), self.ranges[above]);
                self.remove(above);
            }
        }
        self.frames += range.frames();
        Ok(())
    }

    /// Returns the highest part of the set that lies in `within`, of at most `max_frames` frames.
    pub(super) fn highest_in(&self, within: PfnRange, max_frames: u64) -> Option<PfnRange> {
        let overlaps = self.iter().map(|member| member.intersection(within));
        let part = overlaps.filter(|part| !part.is_empty()).max_by_key(|part| part.start())?;
        let skipped = part.frames().saturating_sub(max_frames);
        Some(part.split_at(part.start().checked_add(skipped)?).1)
    }

    /// Returns the part that [`highest_in`](Self::highest_in) returns, if it can be
    /// [removed](Self::remove_part) now. If removing it would leave one range too many, returns the
    /// end of its range instead.
    pub(super) fn highest_removable(&self, within: PfnRange, max_frames: u64) -> Option<PfnRange> {
        let part = self.highest_in(within, max_frames)?;
        let member = self.iter().find(|member| member.covers(part))?;
        let in_the_middle = member.start() < part.start() && part.end() < member.end();
        if in_the_middle && self.len >= MAX_RANGES {
            self.highest_in(member, max_frames)
        } else {
            Some(part)
        }
    }

    /// Removes a part of one range.
    pub(super) fn remove_part(&mut self, part: PfnRange) -> Result<(), NotRemoved> {
        let index = self.iter().position(|member| member.covers(part)).ok_or(NotRemoved::Absent)?;
        let (below, remaining) = self.ranges[index].split_at(part.start());
        let above = remaining.split_at(part.end()).1;
        match (below.is_empty(), above.is_empty()) {
            (true, true) => self.remove(index),
            (false, true) => self.ranges[index] = below,
            (true, false) => self.ranges[index] = above,
            (false, false) if self.len >= MAX_RANGES => return Err(NotRemoved::Full),
            (false, false) => {
                self.ranges[index] = below;
                self.push(above);
            }
        }
        self.frames -= part.frames();
        Ok(())
    }

    /// Removes any whole range, and returns it.
    pub(super) fn pop(&mut self) -> Option<PfnRange> {
        let last = self.len.checked_sub(1)?;
        let member = self.ranges[last];
        self.len = last;
        self.frames -= member.frames();
        Some(member)
    }

    fn set_range(&mut self, index: usize, start: hotmem::Pfn, last: PfnRange) {
        // This cannot fail, because `start` lies at or below the start of `last`.
        if let Some(member) = PfnRange::new(start, last.end()).or_violation() {
            self.ranges[index] = member;
        }
    }

    fn push(&mut self, range: PfnRange) {
        self.ranges[self.len] = range;
        self.len += 1;
    }

    fn remove(&mut self, index: usize) {
        self.len -= 1;
        self.ranges[index] = self.ranges[self.len];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::Pfn;

    fn range(start: u64, end: u64) -> PfnRange {
        PfnRange::new(Pfn::new(start).unwrap(), Pfn::new(end).unwrap()).unwrap()
    }

    #[test]
    fn neighbours_are_one_range() {
        let mut set = RangeSet::<3>::new();
        set.insert(range(10, 20)).unwrap();
        set.insert(range(30, 40)).unwrap();
        assert_eq!(set.insert(range(50, 60)), Err(Full));
        assert_eq!(set.insert(range(20, 25)), Ok(()));
        assert_eq!(set.insert(range(25, 30)), Ok(()));
        assert!(set.iter().eq([range(10, 40)]));
        assert_eq!(set.frames(), 30);
    }

    #[test]
    fn parts_are_taken_from_anywhere_while_there_is_room() {
        let mut set = RangeSet::<3>::new();
        set.insert(range(10, 40)).unwrap();
        assert_eq!(set.highest_in(range(0, 100), 7), Some(range(33, 40)));
        assert_eq!(set.highest_in(range(0, 12), 7), Some(range(10, 12)));
        assert_eq!(set.highest_in(range(40, 100), 7), None);
        set.remove_part(range(15, 16)).unwrap();
        set.remove_part(range(20, 25)).unwrap();
        assert_eq!(
            set.remove_part(range(30, 31)),
            Err(NotRemoved::Full),
            "a set of three ranges is full"
        );
        assert_eq!(set.highest_in(range(30, 31), 7), Some(range(30, 31)));
        assert_eq!(set.highest_removable(range(30, 31), 7), Some(range(33, 40)));
        assert_eq!(set.highest_removable(range(25, 26), 7), Some(range(25, 26)));
        assert_eq!(set.remove_part(range(24, 26)), Err(NotRemoved::Absent));
        set.remove_part(range(39, 40)).unwrap();
        set.remove_part(range(16, 20)).unwrap();
        assert_eq!(set.frames(), 19);
        assert_eq!(set.iter().map(|member| member.frames()).sum::<u64>(), 19);
    }
}
