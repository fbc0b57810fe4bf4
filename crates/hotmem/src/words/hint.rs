//! Handles as the numbers that CPUs keep as hints.

use super::{Block, SectionRef, Words};
use crate::geometry::SECTION_PAGEBLOCKS;

/// A pageblock or a section as a number, for an atomic. It stays good for ever: what it names may
/// be something else later, or nothing.
pub(crate) type Hint = u64;

/// A hint that names nothing.
pub(crate) const NOTHING: Hint = 0;

/// Bits of a hint that hold the place within the region; the region's slot lies above.
const PLACE_BITS: u32 = 48;

/// A pageblock or section of a region as a hint: never [`NOTHING`].
fn encode(slot: usize, place: usize) -> Hint {
    ((slot as u64) << PLACE_BITS | place as u64) + 1
}

/// Region slot and place within it.
#[allow(clippy::cast_possible_truncation, reason = "made by `encode` from two usizes")]
fn decode(hint: Hint) -> Option<(usize, usize)> {
    let hint = hint.checked_sub(1)?;
    Some(((hint >> PLACE_BITS) as usize, (hint & ((1 << PLACE_BITS) - 1)) as usize))
}

impl Block<'_> {
    /// As a hint.
    pub(crate) fn hint(&self) -> Hint {
        encode(self.section.slot, self.section.index * SECTION_PAGEBLOCKS + self.bit())
    }
}

impl SectionRef<'_> {
    /// As a hint.
    pub(crate) fn hint(self) -> Hint {
        encode(self.slot, self.index)
    }
}

impl Words {
    /// The pageblock that a hint names.
    #[inline]
    pub(crate) fn hinted_block(&self, hint: Hint) -> Option<Block<'_>> {
        let (slot, place) = decode(hint)?;
        let (index, bit) = (place / SECTION_PAGEBLOCKS, place % SECTION_PAGEBLOCKS);
        Block::look_up(self.regions.get(slot)?, slot, index, bit)
    }

    /// The section that a hint names.
    #[inline]
    pub(crate) fn hinted_section(&self, hint: Hint) -> Option<SectionRef<'_>> {
        let (slot, index) = decode(hint)?;
        self.section_in(slot, index)
    }
}
