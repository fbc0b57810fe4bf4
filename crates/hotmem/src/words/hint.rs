//! Converts handles to and from the numbers that CPUs keep as hints.

use super::directory::SectionId;
use super::{Block, SectionRef, Words};
use crate::geometry::SECTION_PAGEBLOCKS;

/// The number of a pageblock or a section, for an atomic. It is valid for ever, but the memory that
/// it names may be in another state later, or absent.
pub(crate) type Hint = u64;

/// A hint that names nothing.
pub(crate) const NOTHING: Hint = 0;

impl Block<'_> {
    /// Returns the hint that names the pageblock: never [`NOTHING`].
    #[inline]
    pub(crate) fn hint(&self) -> Hint {
        self.section.id().number() * SECTION_PAGEBLOCKS as u64 + self.bit() as u64 + 1
    }
}

impl SectionRef<'_> {
    /// Returns the hint that names the section: never [`NOTHING`].
    #[inline]
    pub(crate) fn hint(self) -> Hint {
        self.id().number() + 1
    }
}

impl Words {
    /// Returns the pageblock that a hint names.
    #[inline]
    pub(crate) fn hinted_block(&self, hint: Hint) -> Option<Block<'_>> {
        let number = hint.checked_sub(1)?;
        let section = self.section(SectionId::new(number / SECTION_PAGEBLOCKS as u64)?)?;
        #[allow(clippy::cast_possible_truncation, reason = "below 64")]
        section.block((number % SECTION_PAGEBLOCKS as u64) as usize)
    }

    /// Returns the section that a hint names.
    #[inline]
    pub(crate) fn hinted_section(&self, hint: Hint) -> Option<SectionRef<'_>> {
        self.section(SectionId::new(hint.checked_sub(1)?)?)
    }
}
