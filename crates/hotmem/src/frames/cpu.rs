//! Holds the engine's data of one CPU: its hints, and its counts of moves.

use crate::sync::{AtomicU32, AtomicU64, const_unless_loom};
use crate::words::{NOTHING, Zone};

/// The number of CPU records. CPU numbers are taken modulo this: two CPUs that share a record are
/// slower, not wrong.
pub(super) const MAX_CPUS: usize = if cfg!(loom) { 2 } else { 64 };

/// A CPU's record, on cache lines of its own: two, for processors that fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Cpu {
    blocks: [AtomicU64; 2],
    sections: [AtomicU64; 2],
    pub(super) moves_started: AtomicU32,
    pub(super) moves_ended: AtomicU32,
}

impl Cpu {
    const_unless_loom! {
        pub(super) fn new() -> Cpu {
            Cpu {
                blocks: [AtomicU64::new(NOTHING), AtomicU64::new(NOTHING)],
                sections: [AtomicU64::new(NOTHING), AtomicU64::new(NOTHING)],
                moves_started: AtomicU32::new(0),
                moves_ended: AtomicU32::new(0),
            }
        }
    }

    /// Returns the hint of the pageblock that small allocations use.
    pub(super) fn block(&self, zone: Zone) -> &AtomicU64 {
        &self.blocks[zone as usize]
    }

    /// Returns the hint of the section that allocations of whole pageblocks use.
    pub(super) fn section(&self, zone: Zone) -> &AtomicU64 {
        &self.sections[zone as usize]
    }
}
