//! Numbers of connectors.

use core::fmt;

/// The number by which the platform knows a connector.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DrcIndex(pub u32);

impl fmt::Display for DrcIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
