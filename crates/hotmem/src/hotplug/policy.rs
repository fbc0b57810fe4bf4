//! What decides which zone memory goes to, and how a region's memory comes and goes.

use super::zone_counts::ByZone;
use crate::geometry::{PAGEBLOCK_FRAMES, PFN_LIMIT};
use crate::words::Entry;

/// How to choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Keep zones contiguous: what lies within the span of exactly one zone of its node joins it.
    /// Anything else is for the kernel, or movable on a kernel that wants whole movable nodes.
    ContigZones {
        /// Movable unless something says otherwise.
        movable_node: bool,
    },
    /// As much movable memory as the kernel's memory can carry.
    ///
    /// Only the kernel memory of boot counts, because memory that was added for the kernel can be
    /// needed to describe or use other added memory; inside a dynamic region its own kernel memory
    /// counts as well, for that region only.
    AutoMovable {
        /// Movable memory allowed, in percent of the kernel's; Linux has 301.
        ratio_percent: u32,
        /// The ratio must hold within the node, too.
        per_node: bool,
    },
}

/// How a region's memory comes and goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Group {
    /// Each part for itself.
    #[default]
    None,
    /// As a whole: all of it movable, or, once a part is for the kernel, none of the rest.
    Static,
    /// In units of so many frames (a power of two of at least a pageblock), each in one zone.
    Dynamic {
        /// Frames of a unit.
        unit: u64,
    },
}

impl Group {
    /// Numbers that stand for it in an [`Entry`]. Any other is the binary logarithm of a dynamic
    /// one's unit, which is at least a pageblock.
    const NONE: u8 = 0;
    const STATIC: u8 = 1;

    /// Of an announced range.
    pub(super) fn of(entry: &Entry) -> Group {
        match entry.group() {
            Group::NONE => Group::None,
            Group::STATIC => Group::Static,
            log => Group::Dynamic { unit: 1 << log },
        }
    }

    /// Becomes that of a range that was just announced.
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

/// What earlier parts of the same request were given: frames by zone.
pub(super) type Planned = ByZone;
