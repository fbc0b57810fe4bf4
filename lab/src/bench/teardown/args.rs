//! Defines the arguments of the bench, and the metrics of all its cases.

use crate::bench::record::Metric;
use std::path::PathBuf;

/// The cycles for each entry that the range spans.
pub(super) const CYCLES: Metric = ("cycles_per_entry", "cycles");
/// The number of flushes, which are counted and not executed.
pub(super) const COUNTED_FLUSHES: Metric = ("flushes_counted", "count");

/// Arguments of `hotmem bench teardown`.
#[derive(clap::Args)]
pub struct Args {
    /// The cases to run: their names, or the beginnings of their names
    #[arg(long, value_name = "CASE,…", value_delimiter = ',', default_value = "native,xen")]
    pub(super) cases: Vec<String>,
    /// The number of runs for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,
    /// The numbers of entries in a hypercall
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,32,512",
        value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(super) batches: Vec<u16>,
    /// The number of writes by another CPU that race with unmapping for dirty bits, for each batch
    /// size; 0: no race
    #[arg(long, default_value_t = 1_000_000)]
    pub(super) writes: u64,
    /// The Xen guest's image [default: built from the workspace]
    #[arg(long, value_name = "PATH")]
    pub(super) guest_image: Option<PathBuf>,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

impl Args {
    /// Returns whether `case` is to be run.
    pub(super) fn wants(&self, case: &str) -> bool {
        self.cases.iter().any(|wanted| case.starts_with(wanted.as_str()))
    }

    /// Returns whether a case whose name begins with `prefix` may be among those to be run.
    pub(super) fn may_want(&self, prefix: &str) -> bool {
        self.cases.iter().any(|wanted| prefix.starts_with(wanted) || wanted.starts_with(prefix))
    }
}
