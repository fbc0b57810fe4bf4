//! `hotmem bench teardown`: page tables taken down, entry by entry and in batches.
//!
//! Cases:
//! - `native-*` on this processor, with page tables that no processor walks: a flush is counted and
//!   not made;
//! - `xen-*` in the reference kernel as dom0 of Xen under QEMU. Subjects: `before` exchanges each
//!   entry, which traps, as Linux does to unmap; `read-then-clear` is document 004's variant, which
//!   is not atomic; `linux-order` ends an address space in Linux's order and batches, written anew;
//! - `xen-foreign` maps and unmaps another domain's memory batch by batch, as document 004's
//!   program; `xen-migrate` maps, reads and unmaps one batch after the other.

mod native;
mod xen;

use super::record::{self, Metric, Sample};
use crate::progress;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// Arguments of `hotmem bench teardown`.
#[derive(clap::Args)]
pub struct Args {
    /// Which cases: their names, or what they begin with
    #[arg(long, value_name = "CASE,…", value_delimiter = ',', default_value = "native,xen")]
    cases: Vec<String>,
    /// Runs for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Entries in a hypercall
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,32,512",
        value_parser = clap::value_parser!(u16).range(1..=512))]
    batches: Vec<u16>,
    /// Writes of another CPU that a race for dirty bits takes, at each size of batch; 0: no race
    #[arg(long, default_value_t = 1_000_000)]
    writes: u64,
    /// The Xen guest's image; built from the workspace if not given
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const CYCLES: Metric = ("cycles_per_entry", "cycles");
/// Where there is no processor to flush.
const COUNTED_FLUSHES: Metric = ("flushes_counted", "count");

impl Args {
    fn wants(&self, case: &str) -> bool {
        self.cases.iter().any(|wanted| case.starts_with(wanted.as_str()))
    }

    /// Whether any case that begins like this may be wanted.
    fn may_want(&self, stem: &str) -> bool {
        self.cases.iter().any(|wanted| stem.starts_with(wanted) || wanted.starts_with(stem))
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut sample = Sample::new("teardown");
    let progress = progress::spinner();
    let natives = native::Case::ALL.into_iter().filter(|case| args.wants(case.name()));
    for case in natives.clone() {
        progress.set_message(case.name());
        native::measure(case, args.runs, &mut sample)?;
    }
    xen::measure(args, &progress, &mut sample)?;
    progress.finish_and_clear();
    let records = sample.records();
    if records.is_empty() {
        bail!("--cases {}: there is no such case", args.cases.join(","));
    }
    record::print(&records)?;
    if natives.count() > 0 {
        say!("native-*: no processor walks these tables, and flushes are counted, not made")?;
    }
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path)).context("--json")
}
