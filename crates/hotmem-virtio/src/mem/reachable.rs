//! Says which part of a device's region the memory manager can use.

use super::reason::Reason;
use hotmem::PfnRange;

/// The part of a device's region that the memory manager can use. A [`PfnRange`] converts to a region
/// that can be used as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reachable {
    /// The part: one or more whole units.
    pub range: PfnRange,
    /// The reason why the rest of the region cannot be used, if there is a rest.
    pub obstacle: Option<Reason>,
}

impl From<PfnRange> for Reachable {
    fn from(range: PfnRange) -> Reachable {
        Reachable { range, obstacle: None }
    }
}
