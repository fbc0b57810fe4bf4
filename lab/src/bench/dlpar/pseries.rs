//! The case `pseries-64G`: 64 GiB as 32 DIMMs of 8 LMBs, added and removed on QEMU's pseries machine
//! while a guest runs; beside it Linux, if its packages are there.
//!
//! A figure is that of one DIMM, divided by its LMBs: of the first DIMM and of the last. Times are
//! the guest's own: from the event on, in Linux from its first word of the request to its last. For
//! instructions the machine runs a second time, with a nanosecond of that time for each instruction.
//! Linux waits within a request, and QEMU's clock goes on meanwhile: its instructions are at most
//! these.

use super::super::record::{Metric, Sample};
use crate::pseries::{Config, Dimm, Event, HostEvent, LinuxGuest, SLOTS, Vm};
use crate::qemu::image;
use anyhow::{Context, Result, bail};
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::time::Duration;

pub(super) const CASE: &str = "pseries-64G";
const ALL: Bytes = Bytes::gib(64);
const LMBS_OF_DIMM: u32 = 8;

const TIME_PER_LMB: Metric = ("time_per_lmb", "s");
const INSTRUCTIONS: Metric = ("instructions_per_lmb", "count");

/// DIMMs of which there is a figure.
const SHOWN: [(&str, usize); 2] = [("first", 0), ("last", SLOTS as usize - 1)];

/// What each DIMM took, in seconds; instructions are nanoseconds.
struct Run {
    added: Vec<f64>,
    removed: Vec<f64>,
}

/// Measures both guests.
pub(super) fn measure(
    sample: &mut Sample,
    runs: u32,
    linux_runs: u32,
    limit: Duration,
    progress: &ProgressBar,
) -> Result<()> {
    let linux = if linux_runs == 0 { None } else { LinuxGuest::find()? };
    for nth in 0..runs.max(linux_runs) {
        for (metric, icount) in [(TIME_PER_LMB, false), (INSTRUCTIONS, true)] {
            if nth < runs {
                progress.set_message(format!("{CASE}, hotmem, {}", metric.0));
                add(sample, "hotmem", metric, &hotmem(icount).context("hotmem")?);
            }
            if let Some(linux) = linux.as_ref().filter(|_| nth < linux_runs) {
                progress.set_message(format!("{CASE}, linux, {}", metric.0));
                match of_linux(linux, icount, limit) {
                    Ok(run) => add(sample, "linux", metric, &run),
                    Err(error) => crate::out::remark(format_args!("{CASE}: Linux: {error:#}")),
                }
            }
        }
        progress.inc(1);
    }
    Ok(())
}

fn add(sample: &mut Sample, subject: &str, metric: Metric, run: &Run) {
    for (change, all) in [("add", &run.added), ("remove", &run.removed)] {
        for (which, at) in SHOWN {
            if let Some(seconds) = all.get(at) {
                let scale = if metric == INSTRUCTIONS { 1e9 } else { 1.0 };
                let value = seconds / f64::from(LMBS_OF_DIMM) * scale;
                sample.add(&format!("{CASE}/{change}/{which}"), subject, metric, value);
            }
        }
    }
}

fn dimms() -> impl Iterator<Item = Dimm> {
    let size = Bytes(ALL.0 / u64::from(SLOTS));
    (0..SLOTS).map(move |nth| Dimm::new(format!("dimm{nth}"), size))
}

fn hotmem(icount: bool) -> Result<Run> {
    let kernel = image::find_pseries(None)?;
    let config = Config::new(kernel, ALL + Bytes::gib(2)).with("exit", 2 * SLOTS);
    // All LMBs of a DIMM in one poll, as its events name them.
    let config = config.with("at_once", LMBS_OF_DIMM);
    let mut vm = Vm::start(&Config { icount, ..config })?;
    vm.wait("kernel", |event| matches!(event, Event::Ready { .. }).then_some(()))?;
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut run = Run { added: Vec::new(), removed: Vec::new() };
    for dimm in dimms() {
        let done = vm.plug(&dimm)?;
        if done.lmbs != LMBS_OF_DIMM {
            bail!("{} was not added: {:?}", dimm.id, done.why);
        }
        run.added.push(seconds(done.ns));
    }
    for dimm in dimms() {
        let removal = vm.unplug(&dimm.id)?;
        if removal.host != HostEvent::Deleted(dimm.id.clone()) {
            bail!("{} was not removed: {:?}", dimm.id, removal.done.why);
        }
        run.removed.push(seconds(removal.done.ns));
    }
    vm.finish()?;
    Ok(run)
}

fn of_linux(linux: &LinuxGuest, icount: bool, limit: Duration) -> Result<Run> {
    let config = linux.config(ALL + Bytes::gib(4));
    let config = Config { icount, patience: limit, ..config };
    let mut vm = linux.boot(&config)?;
    let mut run = Run { added: Vec::new(), removed: Vec::new() };
    for dimm in dimms() {
        vm.add(&dimm)?;
        run.added.push(linux.wait_for(&mut vm, "hot-added", LMBS_OF_DIMM, limit)?);
    }
    for dimm in dimms() {
        vm.ask_back(&dimm.id)?;
        run.removed.push(linux.wait_for(&mut vm, "hot-removed", LMBS_OF_DIMM, limit)?);
    }
    Ok(run)
}
