//! Pinned frames, which make a removal fail once.

use super::memory;
use hotmem::PfnRange;

const MOST: usize = 32;

/// The pinned frames, one in each of some added ranges.
pub(super) struct Pins {
    /// The added range and the frame; empty if not in use.
    pins: [(PfnRange, PfnRange); MOST],
    every: u32,
    additions: u32,
}

impl Pins {
    /// Pins a frame of every `every`th addition, or of none if `every` is 0.
    pub(super) fn new(every: u32) -> Pins {
        Pins { pins: [(PfnRange::EMPTY, PfnRange::EMPTY); MOST], every, additions: 0 }
    }

    /// Counts an addition, and pins a frame in the middle of its range if it is its turn.
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

    /// Unpins the frames of a range whose removal was refused.
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
