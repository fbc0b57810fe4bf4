//! Pins frames of added memory, so that the first removal of the memory fails.

use super::memory;
use hotmem::PfnRange;

const MAX_PINS: usize = 32;

/// The pinned frames, one in each of some added ranges.
pub(super) struct Pins {
    /// The added range and its pinned frame. Both are empty if the entry is not in use.
    pins: [(PfnRange, PfnRange); MAX_PINS],
    interval: u32,
    additions: u32,
}

impl Pins {
    /// Returns the state without pins. A frame of each `interval`th addition will be pinned. If
    /// `interval` is 0, no frame will be pinned.
    pub(super) fn new(interval: u32) -> Pins {
        Pins { pins: [(PfnRange::EMPTY, PfnRange::EMPTY); MAX_PINS], interval, additions: 0 }
    }

    /// Counts an addition. If it is the `interval`th since the last one, pins a frame in the middle
    /// of `range`.
    pub(super) fn record_addition(&mut self, range: PfnRange) {
        self.additions += 1;
        if self.interval == 0 || !self.additions.is_multiple_of(self.interval) {
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

    /// Unpins the pinned frames of additions that overlap `range`.
    pub(super) fn unpin(&mut self, range: PfnRange) {
        for (added_range, frame) in &mut self.pins {
            if !frame.is_empty() && added_range.overlaps(range) {
                memory::free(*frame);
                (*added_range, *frame) = (PfnRange::EMPTY, PfnRange::EMPTY);
            }
        }
    }

    /// Returns whether any frame of `frames` is pinned.
    pub(super) fn pins_any(&self, frames: PfnRange) -> bool {
        self.pins.iter().any(|(_, frame)| frame.overlaps(frames))
    }
}
