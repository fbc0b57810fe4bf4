//! Names what is wrong with a chain or with a used ring.

use core::fmt;

/// An invalid chain, or a violation of the protocol by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueError {
    /// Fewer descriptors are free than the chain has buffers.
    Full,
    /// The chain or one of its buffers is empty, or its length does not fit in 32 bits.
    Length,
    /// A buffer that the device reads follows a buffer that the device writes.
    Order,
    /// The used index exceeds the number of outstanding chains.
    UsedIndex(u16),
    /// The used element names a descriptor that is not the first of an outstanding chain.
    UsedId(u32),
    /// The used element of this chain reports more bytes than the device was given.
    UsedLength {
        /// The token of the chain.
        token: u16,
        /// The number of bytes that the device reports.
        reported: u32,
        /// The number of bytes that the device may write, or may read if it may write none.
        given: u32,
    },
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            QueueError::Full => {
                write!(f, "the queue has fewer free descriptors than the chain has buffers")
            }
            QueueError::Length => {
                write!(f, "a chain must have 1 to 2^32 - 1 bytes, and no empty buffer")
            }
            QueueError::Order => {
                write!(f, "a buffer that the device reads follows a buffer that the device writes")
            }
            QueueError::UsedIndex(index) => {
                write!(f, "the used index {index} exceeds the number of outstanding chains")
            }
            QueueError::UsedId(id) => {
                write!(f, "the used id {id} is not the first descriptor of an outstanding chain")
            }
            QueueError::UsedLength { token, reported, given } => {
                write!(
                    f,
                    "the device was given {given} bytes by chain {token}, and reports {reported}"
                )
            }
        }
    }
}

impl core::error::Error for QueueError {}
