//! Holds the engine's data of one CPU: its hints, and its counts of moves.

use crate::sync::{AtomicU32, AtomicU64, Ordering, const_unless_loom};
use crate::words::{Cursor, Grain, Hint, NOTHING, Zone};

/// A CPU's record, on cache lines of its own: two, for processors that fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Cpu {
    /// For each grain, the hint of each zone.
    blocks: [[AtomicU64; 2]; 2],
    sections: [AtomicU64; 2],
    /// For each zone, the word that the last single frame was found in.
    cursors: [Cursor; 2],
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
                cursors: [Cursor::new(), Cursor::new()],
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

    /// Returns the zone of which this hint is the CPU's pageblock for single frames.
    #[inline]
    pub(super) fn zone_of(&self, hint: Hint) -> Option<Zone> {
        // Relaxed: a guess.
        let is_it = |zone| self.block(zone, Grain::Frame).load(Ordering::Relaxed) == hint;
        if is_it(Zone::Movable) {
            Some(Zone::Movable)
        } else {
            is_it(Zone::Kernel).then_some(Zone::Kernel)
        }
    }

    /// Returns where to look for a single frame first.
    #[inline]
    pub(super) fn cursor(&self, zone: Zone) -> &Cursor {
        &self.cursors[zone as usize]
    }

    /// Returns whether a cursor names something.
    #[cfg(loom)]
    pub(super) fn has_cursors(&self) -> bool {
        self.cursors.iter().any(Cursor::is_set)
    }

    /// Clears all cursors.
    pub(super) fn clear_cursors(&self) {
        self.cursors.iter().for_each(Cursor::clear);
    }

    /// Returns the hint of the section that allocations of whole pageblocks use.
    pub(super) fn section(&self, zone: Zone) -> &AtomicU64 {
        &self.sections[zone as usize]
    }
}
