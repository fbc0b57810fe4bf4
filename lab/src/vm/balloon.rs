//! `--balloon`: how much memory the host holds for the guest while the guest uses memory, frees it and
//! reports it.

use super::rows::{Row, StepTime};
use crate::{
    plot,
    qemu::{Balloon, Config, Event, Vm},
    resident::{self, Sample, Sampler},
};
use anyhow::Result;
use hotmem::Bytes;
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The time between two samples of the guest's resident memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// The time after the reports for which samples are taken, so that the plot shows the final state.
const TIME_AFTER_REPORTS: Duration = Duration::from_secs(1);

/// The memory that the host held for the guest during the run.
pub(super) struct Resident {
    /// The time of the VMM's start.
    pub(super) started: Instant,
    pub(super) samples: Vec<Sample>,
}

/// Returns the machine with a balloon device, whose guest frees the memory that it has written to.
pub(super) fn config(config: Config) -> Config {
    Config { balloon: Balloon::Reports, ..config.with_guest_option("hold", "off") }
}

/// Starts to sample the memory that the host holds for the guest.
pub(super) fn sampler(vm: &Vm) -> Sampler {
    Sampler::start(vm.pid(), SAMPLE_INTERVAL)
}

/// Waits until the guest has freed and reported the memory that it wrote to.
pub(super) fn wait_until_reported(vm: &mut Vm) -> Result<Row> {
    let (memory, freed) = vm.wait("end of the guest's work", |event| match *event {
        Event::Freed { bytes, .. } => Some(Bytes(bytes)),
        _ => None,
    })?;
    let ((), reported) = vm.wait("end of the reports", |event| {
        matches!(event, Event::Reported { .. }).then_some(())
    })?;
    // A guest on riscv64 waits as long by itself.
    thread::sleep(TIME_AFTER_REPORTS);
    let time = StepTime::InGuest(reported.saturating_sub(freed));
    Ok(Row { step: "give back", memory, time })
}

/// Plots the memory that the host held in the terminal.
pub(super) fn print_plot(resident: &Resident) -> Result<()> {
    say!("resident on the host, GiB")?;
    Ok(crate::out::write(format_args!("{}", plot::text(&series(resident), "GiB")))?)
}

/// Plots the memory that the host held as SVG.
pub(super) fn write_svg(resident: &Resident, path: &Path) -> Result<()> {
    plot::svg(&series(resident), "resident on the host", "GiB", path)
}

fn series(resident: &Resident) -> plot::Series {
    resident::series(&resident.samples, resident.started)
}
