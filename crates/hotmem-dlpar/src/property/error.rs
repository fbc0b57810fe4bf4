//! What can be wrong with a property.

use super::drc_index::DrcIndex;
use core::fmt;

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
