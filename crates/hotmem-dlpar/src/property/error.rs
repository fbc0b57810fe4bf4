//! Defines the errors of device tree properties.

use super::drc_index::DrcIndex;
use core::fmt;

/// A property that this crate reads.
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

/// The reason why a property is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PropertyError {
    /// The property declares more bytes than it has.
    Truncated {
        /// The property.
        property: Property,
        /// The number of bytes that it declares.
        declared: u64,
        /// The number of bytes that it has.
        len: u64,
    },
    /// The property has more bytes than it declares.
    Oversized {
        /// The property.
        property: Property,
        /// The number of bytes that it declares.
        declared: u64,
        /// The number of bytes that it has.
        len: u64,
    },
    /// The LMB size is not a power of two, or less than 2 MiB.
    LmbSize(u64),
    /// A set has no LMBs.
    EmptySet {
        /// The set's address.
        address: u64,
    },
    /// An address is not a multiple of the LMB size.
    Unaligned {
        /// The address.
        address: u64,
    },
    /// LMBs of a set have addresses above the 52 bits of a physical address.
    BeyondPhysicalLimit {
        /// The address of the first LMB.
        address: u64,
        /// The number of LMBs.
        lmbs: u32,
    },
    /// The DRC indices of a set exceed 32 bits.
    IndexOverflow {
        /// The first index.
        first: DrcIndex,
        /// The number of LMBs.
        lmbs: u32,
    },
    /// The number of LMBs exceeds 32 bits.
    TooManyLmbs,
    /// Two LMBs have the same address.
    Overlap {
        /// The address.
        address: u64,
    },
    /// Two LMBs have the same connector.
    DuplicateIndex(DrcIndex),
}

/// Checks that a property has exactly the length that it declares.
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
    /// Returns the property's name in the device tree.
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
                write!(f, "ibm,lmb-size: {size} bytes is not a power of two of at least 2 MiB")
            }
            PropertyError::EmptySet { address } => write!(f, "no LMBs in the set at {address:#x}"),
            PropertyError::Unaligned { address } => {
                write!(f, "LMB at {address:#x}: the address is not a multiple of the LMB size")
            }
            PropertyError::BeyondPhysicalLimit { address, lmbs } => {
                write!(f, "{lmbs} LMBs at {address:#x} end beyond the last physical address")
            }
            PropertyError::IndexOverflow { first, lmbs } => {
                write!(f, "{lmbs} DRC indices from {first} on exceed 32 bits")
            }
            PropertyError::TooManyLmbs => f.write_str("more LMBs than 32 bits can count"),
            PropertyError::Overlap { address } => write!(f, "two LMBs at {address:#x}"),
            PropertyError::DuplicateIndex(index) => write!(f, "two LMBs with DRC index {index}"),
        }
    }
}

impl core::error::Error for PropertyError {}
