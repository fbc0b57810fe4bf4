//! `hotmem bench teardown`: measures unmapping and tearing down page tables, entry by entry and in
//! batches.
//!
//! Cases:
//! - `native-*` run on this processor. No processor walks their page tables, so flushes are counted
//!   and not executed.
//! - `xen-*` run in the reference kernel as dom0 of Xen under QEMU.
//! - `xen-foreign` maps and unmaps another domain's memory batch by batch, as the program
//!   `xfm_scale` of an RFC by Edwin Torok (xen-devel, February 2026) does.
//! - `xen-migrate` maps, reads and unmaps one batch after the other.
//!
//! Subjects of `xen-*`:
//! - `before` exchanges each entry, as Linux does when it unmaps. Each exchange traps.
//! - `read-then-clear` is the variant of that RFC. It is not atomic.
//! - `linux-order` is a new implementation of the order and the batches in which Linux tears down
//!   an address space.

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
    let native_cases = native::Case::ALL.into_iter().filter(|case| args.wants(case.name()));
    for case in native_cases.clone() {
        progress.set_message(case.name());
        native::measure(case, args.runs, &mut sample)?;
    }
    xen::measure(args, &progress, &mut sample)?;
    progress.finish_and_clear();
    let records = sample.records();
    if records.is_empty() {
        bail!("--cases {}: no case has a name that begins with one of these", args.cases.join(","));
    }
    record::print(&records)?;
    if native_cases.count() > 0 {
        say!("native-*: no processor walks these tables, so flushes are counted and not executed")?;
    }
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path)).context("--json")
}
