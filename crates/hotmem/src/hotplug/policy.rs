//! Defines the policies that choose a zone for memory that comes online, and the groups of a
//! region's memory.

use super::zone_counts::ByZone;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, PFN_LIMIT};
use crate::words::{Entry, Zone};

/// The rule by which the engine chooses the zone of memory that comes online as
/// [`Online`](super::OnlineType::Online).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Keeps zones contiguous: memory within the span of exactly one zone of its node joins that
    /// zone. Other memory joins the kernel zone, unless `movable_node` is true.
    ContigZones {
        /// Whether other memory joins the movable zone, so that whole nodes can be movable.
        movable_node: bool,
    },
    /// Makes memory movable as long as movable memory and kernel memory have at most a given ratio.
    ///
    /// Only the kernel memory of boot counts, because kernel memory that is added may be needed to
    /// describe or use other memory that is added. A dynamic region's own kernel memory counts as
    /// well, for that region only.
    AutoMovable {
        /// The most movable memory, in percent of the kernel memory. Linux's default is 301.
        ratio_percent: u32,
        /// Whether the ratio must hold within each node as well.
        per_node: bool,
    },
}

/// The rule by which the zones of a region's parts depend on each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Group {
    /// The engine chooses the zone of each part on its own.
    #[default]
    None,
    /// All parts are movable until one part is for the kernel. All parts that come online after
    /// that are for the kernel.
    Static,
    /// The region grows and shrinks in units of `unit` frames, each in one zone. The number is a
    /// power of two, and at least a pageblock.
    Dynamic {
        /// The number of frames of a unit.
        unit: u64,
    },
}

impl Group {
    /// The numbers that encode a group in an [`Entry`]. Any other number is the binary logarithm of
    /// a dynamic group's unit; it is larger than these numbers, because a unit is at least a
    /// pageblock.
    const NONE: u8 = 0;
    const STATIC: u8 = 1;

    /// Returns the group of an announced range.
    pub(super) fn of(entry: &Entry) -> Group {
        match entry.group() {
            Group::NONE => Group::None,
            Group::STATIC => Group::Static,
            log => Group::Dynamic { unit: 1 << log },
        }
    }

    /// Stores the group of a range that was just announced.
    #[allow(clippy::cast_possible_truncation, reason = "a logarithm")]
    pub(super) fn store(self, entry: &Entry) {
        entry.set_group(match self {
            Group::None => Group::NONE,
            Group::Static => Group::STATIC,
            Group::Dynamic { unit } => {
                unit.clamp(PAGEBLOCK_FRAMES as u64, PFN_LIMIT).next_power_of_two().ilog2() as u8
            }
        });
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::ContigZones { movable_node: false }
    }
}

impl Policy {
    /// Linux's default ratio.
    pub const AUTO_MOVABLE: Policy = Policy::AutoMovable { ratio_percent: 301, per_node: true };
}

/// The number of frames, by zone, that earlier parts of the same request are to put online in that
/// zone.
pub(super) type PlannedFrames = ByZone;

/// What a request has already chosen for its earlier parts, which are not online yet, or have just
/// come online.
#[derive(Clone, Copy)]
pub(super) struct Planned {
    pub(super) frames: PlannedFrames,
    /// The last part that is to be kernel memory.
    pub(super) kernel_part: PfnRange,
}

impl Planned {
    pub(super) fn nothing() -> Planned {
        Planned { frames: PlannedFrames::default(), kernel_part: PfnRange::EMPTY }
    }

    /// Records that `part`, the part after all earlier ones, is to be in `zone`.
    pub(super) fn add(&mut self, part: PfnRange, zone: Zone) {
        *self.frames.get_mut(zone) += part.frames();
        if zone == Zone::Kernel {
            self.kernel_part = part;
        }
    }
}
