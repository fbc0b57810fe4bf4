//! Defines a set of LMBs, and the flags of an LMB.

use super::drc_index::DrcIndex;
use super::error::PropertyError;
use super::size::LmbSize;
use hotmem::{Bytes, PfnRange};

/// The partition has this LMB.
pub const FLAG_ASSIGNED: u32 = 0x8;
/// The LMB has no connector, so it can be neither added nor removed. QEMU marks boot memory so.
pub const FLAG_DRC_INVALID: u32 = 0x20;
/// The LMB's associativity index is not valid.
pub const FLAG_AI_INVALID: u32 = 0x40;
/// The LMB must not be used.
pub const FLAG_RESERVED: u32 = 0x80;

/// A set of LMBs with consecutive addresses and DRC indices and otherwise equal fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LmbSet {
    /// The number of LMBs; never 0.
    pub lmbs: u32,
    /// The physical address of the first LMB.
    pub address: u64,
    /// The DRC index of the first LMB. Each further LMB has the next index. If the LMBs have no
    /// connectors, all have the same index.
    pub drc_index: u32,
    /// A reserved word of version 1.
    pub reserved: u32,
    /// The index of the LMBs' row in the associativity lookup arrays.
    pub aa_index: u32,
    /// A combination of `FLAG_*`.
    pub flags: u32,
}

impl LmbSet {
    /// Returns whether these LMBs have connectors.
    #[must_use]
    pub const fn has_connectors(&self) -> bool {
        self.flags & FLAG_DRC_INVALID == 0
    }

    /// Returns the frames of all LMBs of the set, or `None` if their addresses are too large.
    pub(crate) fn frames(&self, size: LmbSize) -> Option<PfnRange> {
        let len = u64::from(self.lmbs).checked_mul(size.bytes().0)?;
        PfnRange::from_bytes(self.address, Bytes(len)).ok()
    }

    /// Checks the set's fields, without regard to other sets.
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

    /// Returns whether `next` continues this set with equal fields.
    pub(crate) fn is_continued_by(&self, next: &LmbSet, size: LmbSize) -> bool {
        let step = if self.has_connectors() { self.lmbs } else { 0 };
        // The combined set must not have more LMBs than 32 bits can count.
        self.lmbs.checked_add(next.lmbs).is_some()
            && self.frames(size).map(PfnRange::end) == next.frames(size).map(PfnRange::start)
            && self.drc_index.checked_add(step) == Some(next.drc_index)
            && (self.reserved, self.aa_index, self.flags)
                == (next.reserved, next.aa_index, next.flags)
    }
}
