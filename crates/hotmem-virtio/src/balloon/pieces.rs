//! Contains a set of frames that consists of few pieces, without a heap.

use hotmem::{Known, PfnRange};

/// A set of disjoint ranges. Adjacent ranges are joined to one piece. One place of the array is
/// kept free, so that a part can be taken out of the middle of a piece.
#[derive(Debug)]
pub(super) struct Pieces<const MAX_PIECES: usize> {
    pieces: [PfnRange; MAX_PIECES],
    len: usize,
    frames: u64,
}

/// The set cannot hold another piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The reason why a part cannot be removed from the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// Removing the part would leave one piece too many.
    Full,
    /// No piece contains the part.
    Absent,
}

impl<const MAX_PIECES: usize> Pieces<MAX_PIECES> {
    pub(super) const fn new() -> Pieces<MAX_PIECES> {
        Pieces { pieces: [PfnRange::EMPTY; MAX_PIECES], len: 0, frames: 0 }
    }

    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PfnRange> + '_ {
        self.pieces.iter().take(self.len).copied()
    }

    /// Adds `range`, no frame of which is in the set. Cost: O(pieces).
    pub(super) fn insert(&mut self, range: PfnRange) -> Result<(), Full> {
        let below = self.iter().position(|piece| piece.end() == range.start());
        let above = self.iter().position(|piece| piece.start() == range.end());
        match (below, above) {
            (None, None) if self.len + 1 >= MAX_PIECES => return Err(Full),
            (None, None) => self.push(range),
            (Some(at), None) => self.set(at, self.pieces[at].start(), range),
            (None, Some(at)) => self.set(at, range.start(), self.pieces[at]),
            (Some(at), Some(above)) => {
                self.set(at, self.pieces[at].start(), self.pieces[above]);
                self.remove(above);
            }
        }
        self.frames += range.frames();
        Ok(())
    }

    /// Returns the highest part of the set that lies in `within`, of at most `most` frames.
    pub(super) fn last_in(&self, within: PfnRange, most: u64) -> Option<PfnRange> {
        let parts = self.iter().map(|piece| piece.intersection(within));
        let part = parts.filter(|part| !part.is_empty()).max_by_key(|part| part.start())?;
        let skipped = part.frames().saturating_sub(most);
        Some(part.split_at(part.start().checked_add(skipped)?).1)
    }

    /// Returns the part that [`last_in`](Self::last_in) returns, if it can be [removed](Self::take)
    /// now. If removing it would leave one piece too many, returns the end of its piece instead.
    pub(super) fn last_to_take(&self, within: PfnRange, most: u64) -> Option<PfnRange> {
        let part = self.last_in(within, most)?;
        let piece = self.iter().find(|piece| piece.covers(part))?;
        let in_the_middle = piece.start() < part.start() && part.end() < piece.end();
        if in_the_middle && self.len >= MAX_PIECES { self.last_in(piece, most) } else { Some(part) }
    }

    /// Removes a part of one piece.
    pub(super) fn take(&mut self, part: PfnRange) -> Result<(), NotTaken> {
        let at = self.iter().position(|piece| piece.covers(part)).ok_or(NotTaken::Absent)?;
        let (below, rest) = self.pieces[at].split_at(part.start());
        let above = rest.split_at(part.end()).1;
        match (below.is_empty(), above.is_empty()) {
            (true, true) => self.remove(at),
            (false, true) => self.pieces[at] = below,
            (true, false) => self.pieces[at] = above,
            (false, false) if self.len >= MAX_PIECES => return Err(NotTaken::Full),
            (false, false) => {
                self.pieces[at] = below;
                self.push(above);
            }
        }
        self.frames -= part.frames();
        Ok(())
    }

    /// Removes any whole piece, and returns it.
    pub(super) fn pop(&mut self) -> Option<PfnRange> {
        let last = self.len.checked_sub(1)?;
        let piece = self.pieces[last];
        self.len = last;
        self.frames -= piece.frames();
        Some(piece)
    }

    fn set(&mut self, at: usize, start: hotmem::Pfn, end: PfnRange) {
        // This cannot fail, because `start` lies at or below the start of `end`.
        if let Some(piece) = PfnRange::new(start, end.end()).known() {
            self.pieces[at] = piece;
        }
    }

    fn push(&mut self, range: PfnRange) {
        self.pieces[self.len] = range;
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        self.len -= 1;
        self.pieces[at] = self.pieces[self.len];
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
    fn neighbours_are_one_piece() {
        let mut pieces = Pieces::<3>::new();
        pieces.insert(range(10, 20)).unwrap();
        pieces.insert(range(30, 40)).unwrap();
        assert_eq!(pieces.insert(range(50, 60)), Err(Full));
        assert_eq!(pieces.insert(range(20, 25)), Ok(()));
        assert_eq!(pieces.insert(range(25, 30)), Ok(()));
        assert!(pieces.iter().eq([range(10, 40)]));
        assert_eq!(pieces.frames(), 30);
    }

    #[test]
    fn parts_are_taken_from_anywhere_while_there_is_room() {
        let mut pieces = Pieces::<3>::new();
        pieces.insert(range(10, 40)).unwrap();
        assert_eq!(pieces.last_in(range(0, 100), 7), Some(range(33, 40)));
        assert_eq!(pieces.last_in(range(0, 12), 7), Some(range(10, 12)));
        assert_eq!(pieces.last_in(range(40, 100), 7), None);
        pieces.take(range(15, 16)).unwrap();
        pieces.take(range(20, 25)).unwrap();
        assert_eq!(
            pieces.take(range(30, 31)),
            Err(NotTaken::Full),
            "a set of three pieces is full"
        );
        assert_eq!(pieces.last_in(range(30, 31), 7), Some(range(30, 31)));
        assert_eq!(pieces.last_to_take(range(30, 31), 7), Some(range(33, 40)));
        assert_eq!(pieces.last_to_take(range(25, 26), 7), Some(range(25, 26)));
        assert_eq!(pieces.take(range(24, 26)), Err(NotTaken::Absent));
        pieces.take(range(39, 40)).unwrap();
        pieces.take(range(16, 20)).unwrap();
        assert_eq!(pieces.frames(), 19);
        assert_eq!(pieces.iter().map(|piece| piece.frames()).sum::<u64>(), 19);
    }
}
