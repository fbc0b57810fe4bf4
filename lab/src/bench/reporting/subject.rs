//! The subjects of the bench: reporting and no reporting.

use crate::bench::record::Metric;
use std::fmt;

/// Whether free memory is reported while it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Subject {
    /// The reporter is off
    #[value(name = "hotmem-no-reports")]
    Silent,
    /// The reporter is on
    Hotmem,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::Silent => "hotmem-no-reports",
            Subject::Hotmem => "hotmem",
        })
    }
}

/// Instructions for a frame allocated and freed.
pub(super) const INSTRUCTIONS: Metric = ("instructions", "count");
