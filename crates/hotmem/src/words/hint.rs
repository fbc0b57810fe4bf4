//! Converts pageblocks and sections to and from hints: numbers by which a CPU remembers where it last
//! found memory.

use super::directory::SectionId;
use super::{Block, Section, SectionRef, SectionWords};
use crate::addr::Pfn;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};

/// The number of a pageblock or a section, plus one, so that 0 means none and an atomic can hold it.
/// A hint always names the same memory, but the memory may be in another state later, or absent.
pub(crate) type Hint = u64;

/// A hint that names nothing.
pub(crate) const NO_HINT: Hint = 0;

impl Block<'_> {
    /// Returns the hint that names the pageblock: never [`NO_HINT`].
    pub(crate) fn to_hint(self) -> Hint {
        self.number() + 1
    }
}

impl SectionRef<'_> {
    /// Returns the hint that names the section: never [`NO_HINT`].
    pub(crate) fn to_hint(self) -> Hint {
        self.id().number() + 1
    }
}

impl SectionWords {
    /// Returns the pageblock that a hint names, if words of its section exist.
    #[inline(never)]
    pub(crate) fn hinted_block(&self, hint: Hint) -> Option<Block<'_>> {
        let (section, bit) = split_hint(hint)?;
        self.section(section)?.block(bit)
    }

    /// For the hint of a pageblock: returns the words of its section, if they exist, and the
    /// pageblock's number in the section. Cost: two loads.
    #[inline]
    pub(crate) fn hinted_words(&self, hint: Hint) -> Option<(&Section, usize)> {
        let (section, bit) = split_hint(hint)?;
        Some((self.directory.section(section)?, bit))
    }

    /// Returns the section that a hint names, if its words exist.
    #[inline(never)]
    pub(crate) fn hinted_section(&self, hint: Hint) -> Option<SectionRef<'_>> {
        self.hinted_section_inlined(hint)
    }

    /// Does the same as [`hinted_section`](Self::hinted_section) without a function call, for the
    /// fast path.
    #[inline(always)]
    pub(crate) fn hinted_section_inlined(&self, hint: Hint) -> Option<SectionRef<'_>> {
        let id = SectionId::from_number(hint.checked_sub(1)?);
        Some(SectionRef::new(self.directory.section(id)?, id))
    }
}

/// Returns the section of the pageblock that a hint names, and the pageblock's number in the
/// section.
#[allow(clippy::cast_possible_truncation, reason = "below 64")]
fn split_hint(hint: Hint) -> Option<(SectionId, usize)> {
    let number = hint.checked_sub(1)?;
    let section = SectionId::from_number(number / SECTION_PAGEBLOCKS as u64);
    let bit = (number % SECTION_PAGEBLOCKS as u64) as usize;
    Some((section, bit))
}

/// Returns the hint that names the pageblock of a frame.
pub(crate) const fn hint_at(pfn: Pfn) -> Hint {
    pfn.number() / PAGEBLOCK_FRAMES as u64 + 1
}
