//! Names the work of another CPU while allocations and frees are measured.

use crate::bench::frames::value_name;
use std::fmt;

/// The work of another CPU during the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Background {
    /// Nothing: the CPU sleeps
    Nothing,
    /// Frames are allocated and freed
    Traffic,
    /// 4 GiB are plugged and unplugged
    Resize,
    /// Free memory is reported to a host that answers at once
    Reports,
    /// A random part of the memory, free or in use, is isolated and released
    Isolation,
    /// Resize, reports and isolation in turn
    All,
}

impl Background {
    pub(super) const ALL: [Background; 6] = [
        Background::Nothing,
        Background::Traffic,
        Background::Resize,
        Background::Reports,
        Background::Isolation,
        Background::All,
    ];

    /// Returns whether the other CPU also does `other`: `All` includes every other value.
    pub(super) fn includes(self, other: Background) -> bool {
        self == other || self == Background::All
    }
}

impl fmt::Display for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}
