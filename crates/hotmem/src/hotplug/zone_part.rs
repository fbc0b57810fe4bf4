//! Divides a node's memory into the parts that zone statistics count separately.

use crate::addr::{Pfn, PfnRange};
use crate::words::Zone;

/// A part of a node's memory: movable memory, and kernel memory on either side of the boundary
/// that the platform gives ([`BootMap::low_end`](super::BootMap::low_end)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZonePart {
    /// Kernel memory below the boundary.
    Low,
    /// Kernel memory at or above the boundary.
    Normal,
    /// Movable memory, on both sides of the boundary.
    Movable,
}

impl From<Zone> for ZonePart {
    fn from(zone: Zone) -> ZonePart {
        match zone {
            Zone::Kernel => ZonePart::Normal,
            Zone::Movable => ZonePart::Movable,
        }
    }
}

impl ZonePart {
    /// All parts, in the order of their discriminants.
    pub const ALL: [ZonePart; 3] = [ZonePart::Low, ZonePart::Normal, ZonePart::Movable];

    /// Returns the part that a frame of `zone` belongs to.
    pub(super) fn at(zone: Zone, frame: Pfn, low_end: Pfn) -> ZonePart {
        match zone {
            Zone::Kernel if frame < low_end => ZonePart::Low,
            Zone::Kernel => ZonePart::Normal,
            Zone::Movable => ZonePart::Movable,
        }
    }

    /// Returns the parts of `zone`, the lowest first.
    pub(super) const fn of(zone: Zone) -> &'static [ZonePart] {
        match zone {
            Zone::Kernel => &[ZonePart::Low, ZonePart::Normal],
            Zone::Movable => &[ZonePart::Movable],
        }
    }

    /// Returns the zone that the part belongs to.
    pub(super) const fn zone(self) -> Zone {
        match self {
            ZonePart::Low | ZonePart::Normal => Zone::Kernel,
            ZonePart::Movable => Zone::Movable,
        }
    }

    /// Returns the range of frames that can belong to the part.
    pub(super) fn bounds(self, low_end: Pfn) -> PfnRange {
        let (low, high) = PfnRange::ALL.split_at(low_end);
        match self {
            ZonePart::Low => low,
            ZonePart::Normal => high,
            ZonePart::Movable => PfnRange::ALL,
        }
    }
}
