//! Holds the engine's data of one CPU: its hints, and its counts of moves.

use crate::sync::{AtomicU32, AtomicU64, Ordering, const_unless_loom, settled};
use crate::words::{Grain, NOTHING, Zone};

/// A CPU's record, on cache lines of its own: two, for processors that fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Cpu {
    /// For each grain, the hint of each zone.
    blocks: [[AtomicU64; 2]; 2],
    sections: [AtomicU64; 2],
    /// For each zone, the word of the bitmap that the last single frame was found in.
    cursors: [settled::AtomicUsize; 2],
    pub(super) moves_started: AtomicU32,
    pub(super) moves_ended: AtomicU32,
}

impl Cpu {
    const_unless_loom! {
        pub(super) fn new() -> Cpu {
            Cpu {
                blocks: [
                    [AtomicU64::new(NOTHING), AtomicU64::new(NOTHING)],
                    [AtomicU64::new(NOTHING), AtomicU64::new(NOTHING)],
                ],
                sections: [AtomicU64::new(NOTHING), AtomicU64::new(NOTHING)],
                cursors: [settled::AtomicUsize::new(0), settled::AtomicUsize::new(0)],
                moves_started: AtomicU32::new(0),
                moves_ended: AtomicU32::new(0),
            }
        }
    }

    /// Returns the hint of the pageblock that allocations of single frames, or of runs of up to 64
    /// frames, use.
    #[inline]
    pub(super) fn block(&self, zone: Zone, grain: Grain) -> &AtomicU64 {
        &self.blocks[grain as usize][zone as usize]
    }

    /// Returns all hints of pageblocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &AtomicU64> {
        self.blocks.iter().flatten()
    }

    /// Returns where to look for a single frame first in the bitmap of that pageblock.
    #[inline]
    pub(super) fn cursor(&self, zone: Zone) -> usize {
        // Relaxed: a guess.
        self.cursors[zone as usize].load(Ordering::Relaxed)
    }

    /// Sets [`cursor`](Self::cursor).
    pub(super) fn set_cursor(&self, zone: Zone, word: usize) {
        // Relaxed: a guess.
        self.cursors[zone as usize].store(word, Ordering::Relaxed);
    }

    /// Returns the hint of the section that allocations of whole pageblocks use.
    pub(super) fn section(&self, zone: Zone) -> &AtomicU64 {
        &self.sections[zone as usize]
    }
}
