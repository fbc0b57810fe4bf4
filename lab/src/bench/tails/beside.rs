//! The work of another CPU while allocations and frees are measured.

use crate::bench::frames::value_name;
use std::fmt;

/// The work of another CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Beside {
    /// Nothing
    Nothing,
    /// Frames are allocated and freed
    Traffic,
    /// 4 GiB are plugged and unplugged
    Resize,
    /// Free memory is reported to a host that answers at once
    Reports,
    /// Memory, free or in use, is isolated and released
    Isolation,
    /// Resize, reports and isolation in turn
    All,
}

impl Beside {
    pub(super) const ALL: [Beside; 6] = [
        Beside::Nothing,
        Beside::Traffic,
        Beside::Resize,
        Beside::Reports,
        Beside::Isolation,
        Beside::All,
    ];

    /// Returns whether `other` is a part of this.
    pub(super) fn has(self, other: Beside) -> bool {
        self == other || self == Beside::All
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}
