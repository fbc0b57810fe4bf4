//! `ibm,dynamic-memory` in both versions, as sets of like LMBs (PAPR 13.5.2 and C.6.6).
//!
//! Version 1 has a cell group for each LMB, version 2 one for each set of LMBs that follow each
//! other in address and DRC index and are alike in all else. Both are read as sets, so that what
//! comes after does not know which it was.

use core::fmt;
use hotmem::{Bytes, Pfn, PfnRange};

/// The partition has this LMB.
pub const FLAG_ASSIGNED: u32 = 0x8;
/// No connector belongs to it, so it can neither come nor go. QEMU says so of boot memory.
pub const FLAG_DRC_INVALID: u32 = 0x20;
/// Its associativity index means nothing.
pub const FLAG_AI_INVALID: u32 = 0x40;
/// Not for use.
pub const FLAG_RESERVED: u32 = 0x80;

/// A pageblock, the smallest that the engine adds: 2 MiB.
const SMALLEST: u64 = (hotmem::geometry::PAGEBLOCK_FRAMES as u64) << hotmem::geometry::FRAME_SHIFT;
/// Bytes of an entry, in both versions.
const ENTRY: usize = 24;

/// The number by which the platform knows a connector.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DrcIndex(pub u32);

/// What an LMB holds: a power of two, at least a pageblock (2 MiB).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LmbSize(Bytes);

/// The layout of the property.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// `ibm,dynamic-memory`: an entry for each LMB.
    V1,
    /// `ibm,dynamic-memory-v2`: an entry for each set.
    V2,
}

/// The properties that are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Property {
    /// `ibm,lmb-size`.
    LmbSize,
    /// `ibm,dynamic-memory`.
    DynamicMemory,
    /// `ibm,dynamic-memory-v2`.
    DynamicMemoryV2,
    /// `ibm,associativity-lookup-arrays`.
    LookupArrays,
    /// `ibm,associativity-reference-points`.
    ReferencePoints,
}

/// What is wrong with a property.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PropertyError {
    /// It declares more than it has.
    Truncated {
        /// Which one.
        property: Property,
        /// Bytes that it should have.
        declared: u64,
        /// Bytes that it has.
        len: u64,
    },
    /// It has more than it declares.
    Oversized {
        /// Which one.
        property: Property,
        /// Bytes that it should have.
        declared: u64,
        /// Bytes that it has.
        len: u64,
    },
    /// No power of two, or less than 2 MiB.
    LmbSize(u64),
    /// A set of no LMBs.
    EmptySet {
        /// The address that it names.
        address: u64,
    },
    /// An address that is no multiple of the LMB size.
    Unaligned {
        /// The address.
        address: u64,
    },
    /// LMBs that wrap or lie beyond the 52 bits of a physical address.
    BeyondPhysicalLimit {
        /// Where they begin.
        address: u64,
        /// How many they are.
        lmbs: u32,
    },
    /// DRC indices that run past 32 bits.
    IndexOverflow {
        /// The first.
        first: DrcIndex,
        /// How many LMBs have one.
        lmbs: u32,
    },
    /// More LMBs than 32 bits can count.
    TooManyLmbs,
    /// Two LMBs at the same address.
    Overlap {
        /// The address.
        address: u64,
    },
    /// Two LMBs with the same connector.
    DuplicateIndex(DrcIndex),
}

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

/// The property, checked entry by entry. What concerns entries together (overlaps, duplicates) is
/// checked when a [`Table`](crate::Table) is made of it.
#[derive(Clone, Copy, Debug)]
pub struct DynamicMemory<'a> {
    version: Version,
    lmb_size: LmbSize,
    value: &'a [u8],
    entries: &'a [[u8; ENTRY]],
    lmbs: u32,
    sets: u32,
}

impl LmbSize {
    /// A size that LMBs can have.
    ///
    /// # Errors
    /// [`PropertyError::LmbSize`].
    pub const fn new(size: Bytes) -> Result<LmbSize, PropertyError> {
        // Half the address space, so that twice the size is a number still.
        let fits = SMALLEST <= size.0 && size.0 < 1 << hotmem::geometry::PHYS_ADDR_BITS;
        if fits && size.0.is_power_of_two() {
            Ok(LmbSize(size))
        } else {
            Err(PropertyError::LmbSize(size.0))
        }
    }

    /// `ibm,lmb-size`: one or two cells.
    ///
    /// # Errors
    /// [`PropertyError`].
    pub fn parse(property: &[u8]) -> Result<LmbSize, PropertyError> {
        let size = match property.len() {
            4 => u64::from(Cells(property).next()),
            len => {
                check_len(Property::LmbSize, 8, len)?;
                Cells(property).next_pair()
            }
        };
        LmbSize::new(Bytes(size))
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        self.0
    }

    /// In frames.
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.0.frames()
    }
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
        check_len(property, 4 + count * ENTRY as u64, value.len())?;
        let (entries, _) = entries.as_chunks::<ENTRY>();
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

    /// Which version it is.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// What each LMB holds.
    #[must_use]
    pub fn lmb_size(&self) -> LmbSize {
        self.lmb_size
    }

    /// The property's value as it was read.
    #[must_use]
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// How many LMBs there are.
    #[must_use]
    pub fn lmbs(&self) -> u32 {
        self.lmbs
    }

    /// How many sets of like neighbours they are.
    #[must_use]
    pub fn set_count(&self) -> u32 {
        self.sets
    }

    /// The sets, in the property's order; neighbouring entries that are alike are one set.
    pub fn sets(&self) -> impl Iterator<Item = LmbSet> + Clone + use<'a> {
        let memory = *self;
        let mut entries = self.entries.iter().map(move |entry| memory.read(entry));
        let mut next = entries.next();
        let size = self.lmb_size;
        core::iter::from_fn(move || {
            let mut set = next?;
            next = entries.next();
            while let Some(more) = next
                && set.goes_on_in(&more, size)
            {
                set.lmbs += more.lmbs;
                next = entries.next();
            }
            Some(set)
        })
    }

    fn read(&self, entry: &[u8; ENTRY]) -> LmbSet {
        let mut cells = Cells(entry);
        let lmbs = if self.version == Version::V2 { cells.next() } else { 1 };
        let (address, drc_index) = (cells.next_pair(), cells.next());
        let reserved = if self.version == Version::V1 { cells.next() } else { 0 };
        let (aa_index, flags) = (cells.next(), cells.next());
        LmbSet { lmbs, address, drc_index, reserved, aa_index, flags }
    }
}

impl Version {
    /// The property of this version.
    #[must_use]
    pub const fn property(self) -> Property {
        match self {
            Version::V1 => Property::DynamicMemory,
            Version::V2 => Property::DynamicMemoryV2,
        }
    }
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
    fn check(self, size: LmbSize) -> Result<LmbSet, PropertyError> {
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

/// Whether a property has exactly what it declares.
pub(crate) fn check_len(
    property: Property,
    declared: u64,
    len: usize,
) -> Result<(), PropertyError> {
    let len = len as u64;
    match len.cmp(&declared) {
        core::cmp::Ordering::Less => Err(PropertyError::Truncated { property, declared, len }),
        core::cmp::Ordering::Equal => Ok(()),
        core::cmp::Ordering::Greater => Err(PropertyError::Oversized { property, declared, len }),
    }
}

/// Big-endian cells of 32 bits, taken one after the other; 0 when there is none left, which
/// lengths that were checked rule out.
pub(crate) struct Cells<'a>(pub(crate) &'a [u8]);

impl Cells<'_> {
    pub(crate) fn next(&mut self) -> u32 {
        let Some((cell, rest)) = self.0.split_first_chunk::<4>() else { return 0 };
        self.0 = rest;
        u32::from_be_bytes(*cell)
    }

    fn next_pair(&mut self) -> u64 {
        u64::from(self.next()) << 32 | u64::from(self.next())
    }
}

impl fmt::Display for DrcIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Property {
    /// Its name in the device tree.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Property::LmbSize => "ibm,lmb-size",
            Property::DynamicMemory => "ibm,dynamic-memory",
            Property::DynamicMemoryV2 => "ibm,dynamic-memory-v2",
            Property::LookupArrays => "ibm,associativity-lookup-arrays",
            Property::ReferencePoints => "ibm,associativity-reference-points",
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for PropertyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PropertyError::Truncated { property, declared, len } => {
                write!(f, "{property}: {len} bytes where {declared} are declared")
            }
            PropertyError::Oversized { property, declared, len } => {
                write!(f, "{property}: {len} bytes where only {declared} are declared")
            }
            PropertyError::LmbSize(size) => {
                write!(f, "ibm,lmb-size: {size} bytes is no power of two of at least 2 MiB")
            }
            PropertyError::EmptySet { address } => write!(f, "no LMBs in the set at {address:#x}"),
            PropertyError::Unaligned { address } => {
                write!(f, "LMB at {address:#x}: no multiple of the LMB size")
            }
            PropertyError::BeyondPhysicalLimit { address, lmbs } => {
                write!(f, "{lmbs} LMBs at {address:#x} end beyond what can be addressed")
            }
            PropertyError::IndexOverflow { first, lmbs } => {
                write!(f, "{lmbs} DRC indices from {first} on run past 32 bits")
            }
            PropertyError::TooManyLmbs => f.write_str("more LMBs than 32 bits can count"),
            PropertyError::Overlap { address } => write!(f, "two LMBs at {address:#x}"),
            PropertyError::DuplicateIndex(index) => write!(f, "two LMBs with DRC index {index}"),
        }
    }
}

impl core::error::Error for PropertyError {}
