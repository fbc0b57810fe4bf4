//! LMBs that the property has together.

use super::drc_index::DrcIndex;
use super::error::PropertyError;
use super::size::LmbSize;
use hotmem::{Bytes, Pfn, PfnRange};

/// The partition has this LMB.
pub const FLAG_ASSIGNED: u32 = 0x8;
/// No connector belongs to it, so it can neither come nor go. QEMU says so of boot memory.
pub const FLAG_DRC_INVALID: u32 = 0x20;
/// Its associativity index means nothing.
pub const FLAG_AI_INVALID: u32 = 0x40;
/// Not for use.
pub const FLAG_RESERVED: u32 = 0x80;

/// LMBs that follow each other in address and DRC index and are alike in all else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LmbSet {
    /// How many; never 0.
    pub lmbs: u32,
    /// Physical address of the first.
    pub address: u64,
    /// DRC index of the first; each has the next. Without connectors, the same in all.
    pub drc_index: u32,
    /// A word of version 1 without a meaning.
    pub reserved: u32,
    /// Which of the associativity lookup arrays is theirs.
    pub aa_index: u32,
    /// `FLAG_*`.
    pub flags: u32,
}

impl LmbSet {
    /// Whether these LMBs have connectors.
    #[must_use]
    pub const fn has_connectors(&self) -> bool {
        self.flags & FLAG_DRC_INVALID == 0
    }

    /// The frames of all of them, if the set has been checked.
    pub(crate) fn frames(&self, size: LmbSize) -> Option<PfnRange> {
        let len = u64::from(self.lmbs).checked_mul(size.bytes().0)?;
        PfnRange::from_bytes(self.address, Bytes(len)).ok()
    }

    /// Whether the set alone makes sense.
    pub(super) fn check(self, size: LmbSize) -> Result<LmbSet, PropertyError> {
        let LmbSet { address, lmbs, .. } = self;
        if lmbs == 0 {
            return Err(PropertyError::EmptySet { address });
        }
        if !address.is_multiple_of(size.bytes().0) {
            return Err(PropertyError::Unaligned { address });
        }
        if self.frames(size).is_none() {
            return Err(PropertyError::BeyondPhysicalLimit { address, lmbs });
        }
        if self.has_connectors() && self.drc_index.checked_add(lmbs - 1).is_none() {
            let first = DrcIndex(self.drc_index);
            return Err(PropertyError::IndexOverflow { first, lmbs });
        }
        Ok(self)
    }

    /// Whether `next` follows this set and is like it.
    pub(crate) fn goes_on_in(&self, next: &LmbSet, size: LmbSize) -> bool {
        let step = if self.has_connectors() { self.lmbs } else { 0 };
        let frames = |set: &LmbSet| set.frames(size).map(|all| (all.start(), all.end()));
        let ends = frames(self).map(|(_, end): (Pfn, Pfn)| end);
        // Together no more than 32 bits can count, since addresses follow each other.
        self.lmbs.checked_add(next.lmbs).is_some()
            && ends == frames(next).map(|(start, _)| start)
            && self.drc_index.checked_add(step) == Some(next.drc_index)
            && (self.reserved, self.aa_index, self.flags)
                == (next.reserved, next.aa_index, next.flags)
    }
}
