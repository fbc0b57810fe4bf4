//! What is kept of a CPU.

use crate::sync::{AtomicU32, AtomicU64, const_unless_loom};
use crate::words::{NOTHING, Zone};

/// CPU numbers are taken modulo this: a hint shared by two CPUs is only slower.
pub(super) const MAX_CPUS: usize = if cfg!(loom) { 2 } else { 64 };

/// A CPU's hints, on cache lines of their own (two, for processors that fetch lines in pairs).
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

    /// The pageblock that small allocations come from.
    pub(super) fn block(&self, zone: Zone) -> &AtomicU64 {
        &self.blocks[zone as usize]
    }

    /// The section that whole pageblocks come from.
    pub(super) fn section(&self, zone: Zone) -> &AtomicU64 {
        &self.sections[zone as usize]
    }
}
