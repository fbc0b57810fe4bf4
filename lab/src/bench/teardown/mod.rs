//! `hotmem bench teardown`: measures unmapping and tearing down page tables, entry by entry and in
//! batches.
//!
//! Cases:
//! - `native-*` run on this processor, with page tables that no processor walks: a flush is counted
//!   and not made;
//! - `xen-*` run in the reference kernel as dom0 of Xen under QEMU. Subjects: `before` exchanges
//!   each entry, which traps, as Linux does when it unmaps; `read-then-clear` is the variant of an
//!   RFC by Edwin Torok (xen-devel, February 2026), which is not atomic; `linux-order` is a new
//!   implementation of the order and the batches in which Linux ends an address space;
//! - `xen-foreign` maps and unmaps another domain's memory batch by batch, as the program
//!   `xfm_scale` of that RFC does; `xen-migrate` maps, reads and unmaps one batch after the other.

mod args;
mod native;
mod xen;

pub(super) use args::Args;

use super::record::{self, Sample};
use crate::progress;
use anyhow::{Context, Result, bail};

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
