//! Names the subjects of `page_fault`: a machine with and without reporting.

use crate::bench::record::Metric;
use std::fmt;

/// Whether free memory is reported while the threads work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Subject {
    /// The reporter is off
    #[value(name = "hotmem-no-reports")]
    NoReporting,
    /// The reporter is on
    Hotmem,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::NoReporting => "hotmem-no-reports",
            Subject::Hotmem => "hotmem",
        })
    }
}

/// The instructions for allocating and freeing one frame.
pub(super) const INSTRUCTIONS: Metric = ("instructions", "count");
