//! Stores the pinned ranges, in a table of fixed size.

use crate::addr::{Pfn, PfnRange};
use crate::sync::{AtomicU64, Ordering, array_of, const_unless_loom};

/// The largest number of ranges that can be pinned at one time.
pub const MAX_PINS: usize = if cfg!(loom) { 1 } else { 32 };

/// The pinned ranges. Only calls that have the `Hotplug` of the instance write them, so that no two
/// calls write at the same time.
pub(in crate::frames) struct Pins {
    entries: [Pin; MAX_PINS],
}

/// A pinned range. If `frames` is 0, the entry is unused.
struct Pin {
    start: AtomicU64,
    frames: AtomicU64,
}

impl Pins {
    const_unless_loom! {
        pub(crate) fn new() -> Pins {
            Pins {
                entries: array_of![
                    Pin { start: AtomicU64::new(0), frames: AtomicU64::new(0) };
                    MAX_PINS
                ],
            }
        }
    }

    /// Returns all pinned ranges. If an entry is being written at the same time, the range that is
    /// read from this entry may be wrong.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = PfnRange> {
        self.entries.iter().filter_map(|pin| {
            // Acquire pairs with `insert`.
            let frames = pin.frames.load(Ordering::Acquire);
            let start = Pfn::new(pin.start.load(Ordering::Relaxed)).filter(|_| frames != 0)?;
            PfnRange::with_len(start, frames)
        })
    }

    /// Inserts a range; returns false if the table is full.
    pub(crate) fn insert(&self, range: PfnRange) -> bool {
        let unused = self.entries.iter().find(|pin| pin.frames.load(Ordering::Relaxed) == 0);
        let Some(pin) = unused else { return false };
        pin.start.store(range.start().number(), Ordering::Relaxed);
        pin.frames.store(range.frames(), Ordering::Release);
        true
    }

    pub(crate) fn remove(&self, range: PfnRange) -> bool {
        let is_match = |pin: &&Pin| {
            pin.start.load(Ordering::Relaxed) == range.start().number()
                && pin.frames.load(Ordering::Relaxed) == range.frames()
        };
        let entry = self.entries.iter().find(is_match).filter(|_| !range.is_empty());
        entry.map(|pin| pin.frames.store(0, Ordering::Release)).is_some()
    }
}
