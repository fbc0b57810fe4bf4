//! Defines what can be wrong with requests that concern dynamic capacity.

use crate::command::Extent;
use core::fmt;

/// The reason why an extent or a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapacityError {
    /// The extent is empty, or no region contains all of it.
    OutsideRegions(Extent),
    /// Start or size of the extent is not a multiple of the region's block size.
    Unaligned {
        /// The extent.
        extent: Extent,
        /// The block size.
        block: u64,
    },
    /// The extent is offered, but parts of it are accepted already or offered twice.
    Overlaps(Extent),
    /// The extent is asked for, but parts of it are not accepted or are asked for twice.
    NotAccepted(Extent),
    /// There are more extents than there is room for.
    Full {
        /// The number that fits.
        capacity: usize,
    },
    /// The request before must be answered first. Take the event again after that.
    Unanswered,
    /// There is no complete request that could be answered.
    NoRequest,
    /// The buffer has no room for any extent.
    Buffer {
        /// Its size.
        len: usize,
    },
    /// A region has changed. Read the regions again, and make a new
    /// [`DynamicCapacity`](crate::DynamicCapacity).
    RegionChanged {
        /// The region.
        region: u8,
    },
}

impl core::error::Error for CapacityError {}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut of = |extent: &Extent, what: fmt::Arguments<'_>| {
            write!(f, "the extent at {:#x} with {:#x} bytes {what}", extent.start, extent.len)
        };
        match self {
            CapacityError::OutsideRegions(extent) => of(extent, format_args!("lies in no region")),
            CapacityError::Unaligned { extent, block } => {
                of(extent, format_args!("is not whole blocks of {block:#x}"))
            }
            CapacityError::Overlaps(extent) => of(extent, format_args!("was offered before")),
            CapacityError::NotAccepted(extent) => of(extent, format_args!("is not accepted")),
            CapacityError::Full { capacity } => {
                write!(f, "there is no room for more than {capacity} extents")
            }
            CapacityError::Unanswered => f.write_str("the request before is not answered"),
            CapacityError::NoRequest => f.write_str("there is no request"),
            CapacityError::Buffer { len } => write!(f, "{len} bytes have no room for an extent"),
            CapacityError::RegionChanged { region } => write!(f, "region {region} has changed"),
        }
    }
}
