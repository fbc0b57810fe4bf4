//! `hotmem bench teardown`: page tables taken down, entry by entry and in batches.
//!
//! Cases: `native-*` on this processor, with page tables that no processor walks; `xen-*` in the
//! reference kernel as dom0 of Xen under QEMU. The subject `before` exchanges each entry, which
//! under Xen traps; `read-then-clear` is document 004's variant, which is not atomic.

mod native;

use super::record::{self, Metric, Sample};
use crate::{
    progress,
    xen::{MOST, Machine, Xpti},
};
use anyhow::{Context, Result, bail};
use hotmem::geometry::FRAME_SIZE;
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
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=512))]
    batch: u16,
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
const HYPERCALLS: Metric = ("hypercalls", "count");
const FLUSHES: Metric = ("flushes", "count");
const TRAPS: Metric = ("traps", "count");
const FLUSH_INTERRUPTS: Metric = ("flush_interrupts", "count");
const LOST: Metric = ("lost_dirty", "count");
const WRITES: Metric = ("racing_writes", "count");

/// The cases under Xen, without what follows their slash.
const XEN: [&str; 6] =
    ["xen-munmap", "xen-munmap-clean", "xen-foreign", "xen-exit", "xen-protect", "xen-unhook"];

/// Those of them whose traps and flushes are counted by the host too.
const MARKED: [&str; 3] = ["xen-munmap", "xen-exit", "xen-protect"];

pub(super) fn run(args: &Args) -> Result<()> {
    let wanted = |case: &str| args.cases.iter().any(|wanted| case.starts_with(wanted.as_str()));
    let mut sample = Sample::new("teardown");
    let progress = progress::spinner();
    for case in native::Case::ALL {
        if wanted(case.name()) {
            progress.set_message(case.name());
            native::measure(case, args.runs, &mut sample)?;
        }
    }
    let boots = [Xpti::On, Xpti::Off].map(|xpti| {
        let cases: Vec<_> = XEN.iter().filter(|case| wanted(&format!("{case}/{xpti}"))).collect();
        (xpti, cases)
    });
    if boots.iter().any(|(_, cases)| !cases.is_empty()) {
        let machine = Machine::find(args.guest_image.as_deref())?;
        for (xpti, cases) in boots.iter().filter(|(_, cases)| !cases.is_empty()) {
            progress.set_message(format!("Xen, {xpti}"));
            let pages = MOST.0 / FRAME_SIZE;
            let words = format!("mode=bench pages={pages} batch={} runs={}", args.batch, args.runs);
            let outcome = machine.boot(*xpti, &words)?;
            for figure in outcome.figures.iter().filter(|f| cases.contains(&&f.case.as_str())) {
                let case = format!("{}/{xpti}", figure.case);
                let subject = figure.subject.as_str();
                sample.add(&case, subject, CYCLES, figure.cycles_per_entry());
                sample.add(&case, subject, HYPERCALLS, count(figure.hypercalls));
                sample.add(&case, subject, FLUSHES, count(figure.flushes));
            }
            if cases.iter().any(|case| MARKED.contains(case)) {
                let interrupts = machine.interrupts(*xpti)?;
                for of in interrupts.iter().filter(|of| cases.contains(&&of.case.as_str())) {
                    let case = format!("{}/{xpti}/tables-{}", of.case, of.tables);
                    sample.add(&case, &of.subject, TRAPS, count(of.traps));
                    sample.add(&case, &of.subject, FLUSH_INTERRUPTS, count(of.flushes));
                }
            }
            if args.writes > 0 && cases.contains(&&"xen-munmap") {
                let words = format!("mode=race writes={}", args.writes);
                let races = machine.boot(*xpti, &words)?.races;
                for race in &races {
                    let case = format!("xen-munmap/{xpti}/batch-{}", race.batch);
                    sample.add(&case, &race.subject, LOST, count(race.lost));
                    sample.add(&case, &race.subject, WRITES, count(race.writes));
                }
                for subject in ["hotmem", "read-then-clear"] {
                    let of = races.iter().filter(|race| race.subject == subject);
                    let lost = of.map(|race| race.lost).sum();
                    sample.add(&format!("xen-munmap/{xpti}"), subject, LOST, count(lost));
                }
            }
        }
    }
    progress.finish_and_clear();
    let records = sample.records();
    if records.is_empty() {
        bail!("--cases {}: there is no such case", args.cases.join(","));
    }
    record::print(&records);
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path)).context("--json")
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn count(count: u64) -> f64 {
    count as f64
}
