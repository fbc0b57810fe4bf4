//! Defines the DRC index.

use core::fmt;

/// The platform's number of a connector.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DrcIndex(pub u32);

impl fmt::Display for DrcIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
