//! Frames that cannot be moved until the host was told so: what makes a removal fail.

use super::memory;
use hotmem::PfnRange;

const MOST: usize = 32;

/// A frame in each of some ranges.
pub(super) struct Pins {
    /// The range that was added, and the frame; empty where there is none.
    pins: [(PfnRange, PfnRange); MOST],
    every: u32,
    additions: u32,
}

impl Pins {
    /// Pins a frame of every this many additions; 0: of none.
    pub(super) fn new(every: u32) -> Pins {
        Pins { pins: [(PfnRange::EMPTY, PfnRange::EMPTY); MOST], every, additions: 0 }
    }

    /// Memory was added, at its turn of which a frame in its middle is pinned.
    pub(super) fn added(&mut self, range: PfnRange) {
        self.additions += 1;
        if self.every == 0 || !self.additions.is_multiple_of(self.every) {
            return;
        }
        let unused = self.pins.iter_mut().find(|(_, frame)| frame.is_empty());
        let middle = range.start().checked_add(range.frames() / 2);
        if let (Some(unused), Some(frame)) =
            (unused, middle.and_then(|pfn| memory::alloc_at(pfn, 1)))
        {
            *unused = (range, frame);
        }
    }

    /// The removal of memory was refused: nothing of it is pinned any more.
    pub(super) fn removal_refused(&mut self, range: PfnRange) {
        for (place, frame) in &mut self.pins {
            if !frame.is_empty() && place.overlaps(range) {
                memory::free(*frame);
                (*place, *frame) = (PfnRange::EMPTY, PfnRange::EMPTY);
            }
        }
    }

    /// Returns whether any of these frames is pinned.
    pub(super) fn holds_any(&self, frames: PfnRange) -> bool {
        self.pins.iter().any(|(_, frame)| frame.overlaps(frames))
    }
}
