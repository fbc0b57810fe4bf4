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
#[cfg(feature = "report")]
pub(crate) mod section;
mod xen;

pub(super) use args::Args;

use super::record::{self, Record, Sample};
use super::results;
use crate::progress;
use anyhow::{Result, bail};

/// The name of the bench in its records.
const NAME: &str = "teardown";

pub(super) fn run(args: &Args) -> Result<()> {
    let native_cases = native::Case::ALL.into_iter().filter(|case| args.wants(case.name()));
    let measure = |sample: &mut Sample| {
        let progress = progress::spinner();
        for case in native_cases.clone() {
            progress.set_message(case.name());
            native::measure(case, args.runs, sample)?;
        }
        xen::measure(args, &progress, sample)?;
        progress.finish_and_clear();
        if sample.records().is_empty() {
            let cases = args.cases.join(",");
            bail!("--cases {cases}: no case has a name that begins with one of these");
        }
        Ok(())
    };
    let print = |records: &[Record]| {
        record::print(records)?;
        if native_cases.clone().count() > 0 {
            say!("{NATIVE_NOTE}")?;
        }
        Ok(())
    };
    results::collect(NAME, args.json.as_deref(), measure, print)
}

const NATIVE_NOTE: &str =
    "native-*: no processor walks these tables, so flushes are counted and not executed";
