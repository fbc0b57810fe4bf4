//! Measures the case `pseries-64G`. It adds and removes 64 GiB, as 32 DIMMs of 8 LMBs, on QEMU's
//! pseries machine while a guest runs. Linux is the peer, if its packages are installed.
//!
//! The figures are those of the first and of the last DIMM, divided by the number of its LMBs. The
//! guest's clock measures the time. For Hotmem's guest, the time is from the event to the end of
//! the request. For Linux, it is from the first log line about the request to the last.
//!
//! For instructions the machine runs a second time, with one nanosecond of the guest's time for
//! each instruction. Hotmem's guest never waits for an interrupt, so its time is the number of its
//! instructions. Linux also waits within a request, and the guest's clock continues while Linux
//! waits. So QEMU counts the instructions of Linux, from the monitor's command until the log names
//! the last LMB. The count includes writing the log, which costs tens of thousands of instructions
//! per line. The bench also measures the instructions that an idle Linux executes in the same time
//! (`linux-idle`), and does not subtract them.

use super::super::record::{Metric, RanOn, Sample};
use crate::pseries::{Config, Dimm, Event, HostEvent, LinuxGuest, SLOTS, Vm};
use crate::qemu::{Error, image};
use anyhow::{Context, Result, bail};
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::{
    thread,
    time::{Duration, Instant},
};

pub(super) const CASE: &str = "pseries-64G";
const DIMM_MEMORY: Bytes = Bytes::gib(64);
const LMBS_OF_DIMM: u32 = 8;

pub(super) const TIME_PER_LMB: Metric = ("time_per_lmb", "s");
pub(super) const INSTRUCTIONS: Metric = ("instructions_per_lmb", "count");

/// The DIMMs that are recorded: their names in the case, and their indices.
const RECORDED_DIMMS: [(&str, usize); 2] = [("first", 0), ("last", SLOTS as usize - 1)];

/// The cost of each DIMM, in seconds or in instructions.
struct Run {
    add_costs: Vec<f64>,
    remove_costs: Vec<f64>,
}

/// Linux counts as idle when it executes fewer than [`MAX_IDLE_INSTRUCTIONS`] in this time.
const IDLE_CHECK: Duration = Duration::from_millis(200);
const MAX_IDLE_INSTRUCTIONS: u64 = 200_000;

/// Measures both guests, and adds their figures to `sample`.
pub(super) fn measure(
    sample: &mut Sample,
    runs: u32,
    linux_runs: u32,
    limit: Duration,
    progress: &ProgressBar,
) -> Result<()> {
    // An x86 host can run a pseries machine only under TCG.
    sample.set_executor(RanOn::Tcg);
    let linux = if linux_runs == 0 { None } else { LinuxGuest::find()? };
    for nth in 0..runs.max(linux_runs) {
        for (metric, icount) in [(TIME_PER_LMB, false), (INSTRUCTIONS, true)] {
            if nth < runs {
                progress.set_message(format!("{CASE}, hotmem, {}", metric.0));
                add(sample, "hotmem", metric, &hotmem(icount).context("hotmem")?);
            }
            if let Some(linux) = linux.as_ref().filter(|_| nth < linux_runs) {
                progress.set_message(format!("{CASE}, linux, {}", metric.0));
                let run = if icount {
                    linux_instructions(linux, limit, sample)
                } else {
                    linux_seconds(linux, limit)
                };
                match run {
                    Ok(run) => add(sample, "linux", metric, &run),
                    Err(error) => crate::out::remark(format_args!("{CASE}: Linux: {error:#}")),
                }
            }
        }
        progress.inc(1);
    }
    Ok(())
}

/// Adds the figures of a run to `sample`.
fn add(sample: &mut Sample, subject: &str, metric: Metric, run: &Run) {
    for (change, costs) in [("add", &run.add_costs), ("remove", &run.remove_costs)] {
        for (position, index) in RECORDED_DIMMS {
            if let Some(cost) = costs.get(index) {
                let value = cost / f64::from(LMBS_OF_DIMM);
                sample.add(&format!("{CASE}/{change}/{position}"), subject, metric, value);
            }
        }
    }
}

/// Returns the DIMMs to add and remove.
fn dimms() -> impl Iterator<Item = Dimm> {
    let size = Bytes(DIMM_MEMORY.0 / u64::from(SLOTS));
    (0..SLOTS).map(move |nth| Dimm::new(format!("dimm{nth}"), size))
}

/// Measures the reference guest.
fn hotmem(icount: bool) -> Result<Run> {
    let kernel = image::find_pseries(None)?;
    let config =
        Config::new(kernel, DIMM_MEMORY + Bytes::gib(2)).with_guest_option("exit", 2 * SLOTS);
    // One poll handles all LMBs of a DIMM, as one event names them.
    let config = config.with_guest_option("at_once", LMBS_OF_DIMM);
    let mut vm = Vm::start(&Config { icount, ..config })?;
    vm.wait("kernel", |event| matches!(event, Event::Ready { .. }).then_some(()))?;
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let cost = |ns: u64| if icount { ns as f64 } else { ns as f64 / 1e9 };
    let mut run = Run { add_costs: Vec::new(), remove_costs: Vec::new() };
    for dimm in dimms() {
        let end = vm.plug(&dimm)?;
        if end.lmbs != LMBS_OF_DIMM {
            bail!("{} was not added: {:?}", dimm.id, end.reason);
        }
        run.add_costs.push(cost(end.ns));
    }
    for dimm in dimms() {
        let removal = vm.unplug(&dimm.id)?;
        if removal.host != HostEvent::Deleted(dimm.id.clone()) {
            bail!("{} was not removed: {:?}", dimm.id, removal.end.reason);
        }
        run.remove_costs.push(cost(removal.end.ns));
    }
    vm.finish()?;
    Ok(run)
}

/// Measures the time of Linux.
fn linux_seconds(linux: &LinuxGuest, limit: Duration) -> Result<Run> {
    let mut vm = boot(linux, false, limit)?;
    let mut shown = "";
    change_all(&mut vm, |vm, begin, change| {
        begin(vm)?;
        let change_log = linux.wait_for(vm, change, LMBS_OF_DIMM, limit)?;
        // Show the log of Linux for the first DIMM of each change.
        if shown != change {
            change_log
                .lines
                .iter()
                .for_each(|line| crate::out::remark(format_args!("Linux: {line}")));
            shown = change;
        }
        Ok(change_log.seconds)
    })
}

/// Measures the instructions of Linux, and of an idle Linux in the same time.
fn linux_instructions(linux: &LinuxGuest, limit: Duration, sample: &mut Sample) -> Result<Run> {
    let mut vm = boot(linux, true, limit)?;
    change_all(&mut vm, |vm, begin, change| {
        wait_until_idle(vm, limit)?;
        let start = Instant::now();
        let before = vm.instructions()?;
        begin(vm)?;
        linux.wait_for(vm, change, LMBS_OF_DIMM, limit)?;
        let executed = vm.instructions()? - before;
        let took = start.elapsed();
        wait_until_idle(vm, limit)?;
        let before = vm.instructions()?;
        thread::sleep(took);
        let idle = vm.instructions()? - before;
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let [executed, idle] = [executed as f64, idle as f64];
        let case = format!("{CASE}/while/{change}");
        sample.add(&case, "linux-idle", INSTRUCTIONS, idle / f64::from(LMBS_OF_DIMM));
        Ok(executed)
    })
}

/// Waits until Linux is idle, so that no figure includes earlier work.
fn wait_until_idle(vm: &mut Vm, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        let before = vm.instructions()?;
        thread::sleep(IDLE_CHECK);
        if vm.instructions()? - before < MAX_IDLE_INSTRUCTIONS {
            return Ok(());
        }
    }
    bail!("Linux did not become idle within the time limit")
}

/// Boots Linux. If `counts_instructions` is set, QEMU counts its instructions.
fn boot(linux: &LinuxGuest, counts_instructions: bool, limit: Duration) -> Result<Vm> {
    let config = linux.config(DIMM_MEMORY + Bytes::gib(4));
    linux.boot(&Config { counts_instructions, patience: limit, ..config })
}

/// Adds and removes all DIMMs. `measure` gets a function that begins a change, and the word with
/// which Linux logs the change of an LMB. It waits for the log, and returns the cost.
fn change_all(
    vm: &mut Vm,
    mut measure: impl FnMut(&mut Vm, &dyn Fn(&mut Vm) -> Result<(), Error>, &'static str) -> Result<f64>,
) -> Result<Run> {
    let mut run = Run { add_costs: Vec::new(), remove_costs: Vec::new() };
    for dimm in dimms() {
        run.add_costs.push(measure(vm, &|vm| vm.add(&dimm), "hot-added")?);
    }
    for dimm in dimms() {
        run.remove_costs.push(measure(vm, &|vm| vm.request_removal(&dimm.id), "hot-removed")?);
    }
    Ok(run)
}
