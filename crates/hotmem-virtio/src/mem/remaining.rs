//! Says what remains of the memory of a device that is gone.

use super::reason::Reason;
use core::fmt;
use hotmem::Bytes;

/// What remains of the memory of a device that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// The size of the memory that could not be removed. It stays in the state that it had.
    pub size: Bytes,
    /// Why the first part of it could not be removed.
    pub reason: Reason,
}

impl fmt::Display for Remaining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the device's memory cannot be removed: {}", self.size, self.reason)
    }
}

impl core::error::Error for Remaining {}
