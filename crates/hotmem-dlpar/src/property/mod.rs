//! Reads `ibm,dynamic-memory` in both versions, as sets of equal LMBs (PAPR 13.5.2 and C.6.6).
//!
//! Version 1 has an entry for each LMB. Version 2 has an entry for each set of LMBs whose addresses
//! and DRC indices are consecutive and whose other fields are equal. Both versions are read as
//! sets, so the rest of the crate does not depend on the version.

mod cells;
mod drc_index;
mod error;
mod set;
mod size;

pub(crate) use cells::Cells;
pub use drc_index::DrcIndex;
pub(crate) use error::check_len;
pub use error::{Property, PropertyError};
pub use set::{FLAG_AI_INVALID, FLAG_ASSIGNED, FLAG_DRC_INVALID, FLAG_RESERVED, LmbSet};
pub use size::LmbSize;

/// The size of an entry in bytes, in both versions.
const ENTRY_BYTES: usize = 24;

/// The property. Each of its entries has been checked. Overlaps and duplicates are found only when
/// a [`Table`](crate::Table) is made from the property.
#[derive(Clone, Copy, Debug)]
pub struct DynamicMemory<'a> {
    version: Version,
    lmb_size: LmbSize,
    value: &'a [u8],
    entries: &'a [[u8; ENTRY_BYTES]],
    lmbs: u32,
    sets: u32,
}

/// The layout of the property.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// `ibm,dynamic-memory`: one entry for each LMB.
    V1,
    /// `ibm,dynamic-memory-v2`: one entry for each set.
    V2,
}

impl<'a> DynamicMemory<'a> {
    /// Reads the value of `ibm,dynamic-memory` or `ibm,dynamic-memory-v2`.
    ///
    /// Cost: O(entries).
    ///
    /// # Errors
    /// [`PropertyError`].
    pub fn parse(
        version: Version,
        value: &'a [u8],
        lmb_size: LmbSize,
    ) -> Result<DynamicMemory<'a>, PropertyError> {
        let property = version.property();
        let Some((count, entries)) = value.split_first_chunk::<4>() else {
            return Err(PropertyError::Truncated {
                property,
                declared: 4,
                len: value.len() as u64,
            });
        };
        let count = u64::from(u32::from_be_bytes(*count));
        check_len(property, 4 + count * ENTRY_BYTES as u64, value.len())?;
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        let mut memory = DynamicMemory { version, lmb_size, value, entries, lmbs: 0, sets: 0 };
        for entry in entries {
            let lmbs = memory.read(entry).check(lmb_size)?.lmbs;
            memory.lmbs = memory.lmbs.checked_add(lmbs).ok_or(PropertyError::TooManyLmbs)?;
        }
        for _ in memory.sets() {
            memory.sets += 1;
        }
        Ok(memory)
    }

    /// Returns the property's version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the size of an LMB.
    #[must_use]
    pub fn lmb_size(&self) -> LmbSize {
        self.lmb_size
    }

    /// Returns the property's value as it was read.
    #[must_use]
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// Returns the number of LMBs.
    #[must_use]
    pub fn lmbs(&self) -> u32 {
        self.lmbs
    }

    /// Returns the number of sets.
    #[must_use]
    pub fn set_count(&self) -> u32 {
        self.sets
    }

    /// Returns the sets, in the property's order. An entry that continues the entry before it
    /// belongs to the same set.
    pub fn sets(&self) -> impl Iterator<Item = LmbSet> + Clone + use<'a> {
        let memory = *self;
        let mut entries = self.entries.iter().map(move |entry| memory.read(entry));
        let mut next = entries.next();
        let size = self.lmb_size;
        core::iter::from_fn(move || {
            let mut set = next?;
            next = entries.next();
            while let Some(more) = next
                && set.is_continued_by(&more, size)
            {
                set.lmbs += more.lmbs;
                next = entries.next();
            }
            Some(set)
        })
    }

    fn read(&self, entry: &[u8; ENTRY_BYTES]) -> LmbSet {
        let mut cells = Cells(entry);
        let lmbs = if self.version == Version::V2 { cells.next() } else { 1 };
        let (address, drc_index) = (cells.next_pair(), cells.next());
        let reserved = if self.version == Version::V1 { cells.next() } else { 0 };
        let (aa_index, flags) = (cells.next(), cells.next());
        LmbSet { lmbs, address, drc_index, reserved, aa_index, flags }
    }
}

impl Version {
    /// Returns the property that has this version.
    #[must_use]
    pub const fn property(self) -> Property {
        match self {
            Version::V1 => Property::DynamicMemory,
            Version::V2 => Property::DynamicMemoryV2,
        }
    }
}
