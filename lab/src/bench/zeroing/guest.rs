//! Touches memory of the reference guest under QEMU, which reports free memory to the host by a
//! balloon.
//!
//! QEMU's balloon does not say that it zeroes reported memory. The bench starts QEMU with anonymous
//! memory, which QEMU discards, so it vouches for this by the guest's option `hotmem.zero`.
//!
//! Times of a guest that TCG runs say little, because TCG's own work hides what the guest saves. So the
//! bench counts the guest's instructions, unless it is asked for times. Instructions leave out the
//! host's faults, which do not depend on marks.

use super::{Args, NAME, Subject, case};
use crate::bench::record::{Metric, RanOn, Sample};
use crate::hosted::HostPages;
use crate::qemu::{Accel, Balloon, Config, Event, Vm, image};
use crate::size;
use anyhow::{Context, Result, ensure};
use hotmem::Bytes;
use hotmem_time_limit::scaled;
use indicatif::ProgressBar;
use rustix::thread::disable_transparent_huge_pages;
use std::{path::Path, time::Duration};

/// The guest's instructions for allocating a frame, writing a word of it, and freeing it.
pub(super) const INSTRUCTIONS: Metric = ("instructions_per_frame", "count");
/// The time for allocating all frames, writing a word of each, and freeing them.
pub(super) const ROUND: Metric = ("round", "s");

/// The number of rounds of a boot, of which the mean is taken.
const ROUNDS: u32 = 2;
/// The time between two rounds, in which all free memory is reported.
const REST: Duration = Duration::from_millis(1500);
/// The time limit of a guest on an idle host, without the rests.
const TIME_LIMIT: Duration = Duration::from_secs(90);
/// The least share of the memory of each round that must have been reported before.
const MIN_REPORTED_PERCENT: u64 = 95;

/// Measures the instructions of all subjects, or their times if `args` says what runs the guest.
pub(super) fn measure(args: &Args, sample: &mut Sample, progress: &ProgressBar) -> Result<()> {
    let image = image::find(args.guest_image.as_deref())?;
    match args.accel {
        Some(accel) => measure_times(args, sample, progress, &image, accel),
        None => measure_instructions(args, sample, progress, &image),
    }
}

/// Measures the instructions of all subjects. They do not depend on the host's pages.
fn measure_instructions(
    args: &Args,
    sample: &mut Sample,
    progress: &ProgressBar,
    image: &Path,
) -> Result<()> {
    sample.set_executor(RanOn::Tcg);
    let case = format!("guest/{}", size::short(args.size));
    let frames = args.size.frames() as f64;
    for boot in 1..=args.boots {
        for subject in Subject::ALL {
            progress.set_message(format!("{case}, {subject}, boot {boot} of {}", args.boots));
            let config = Config { icount: true, ..config(subject, args.size, image, Accel::Tcg) };
            let time = round(subject, args.size, HostPages::Small, &config)
                .with_context(|| format!("{NAME} {case} of {subject}"))?;
            // An instruction takes a nanosecond of the guest's time.
            let instructions = time * 1e9 / frames;
            sample.add(&case, &subject.to_string(), INSTRUCTIONS, instructions);
        }
    }
    Ok(())
}

/// Measures the times of all subjects with both kinds of pages.
fn measure_times(
    args: &Args,
    sample: &mut Sample,
    progress: &ProgressBar,
    image: &Path,
    accel: Accel,
) -> Result<()> {
    sample.set_executor(accel.into());
    for pages in [HostPages::Small, HostPages::Huge] {
        let case = case("guest", args.size, pages);
        for boot in 1..=args.boots {
            for subject in Subject::ALL {
                progress.set_message(format!("{case}, {subject}, boot {boot} of {}", args.boots));
                let config = config(subject, args.size, image, accel);
                let seconds = round(subject, args.size, pages, &config)
                    .with_context(|| format!("{NAME} {case} of {subject}"))?;
                sample.add(&case, &subject.to_string(), ROUND, seconds);
            }
        }
    }
    Ok(())
}

/// Boots a guest, and returns the mean time of a round in seconds of the guest.
fn round(subject: Subject, size: Bytes, pages: HostPages, config: &Config) -> Result<f64> {
    let mut vm = start(config, pages)?;
    let faulted = |event: &Event| match *event {
        Event::Faulted { frames, us, refaulted, .. } => Some((frames, us, Bytes(refaulted))),
        _ => None,
    };
    let ((frames, us, refaulted), _) = vm.wait("end of the rounds", faulted)?;
    vm.finish()?;
    let all = Bytes(size.0 * u64::from(ROUNDS));
    ensure!(frames == all.frames(), "{frames} frames were touched, not {}", all.frames());
    let min = if subject.is_reported() { all.0 / 100 * MIN_REPORTED_PERCENT } else { 0 };
    ensure!(
        refaulted.0 >= min && (subject.is_reported() || refaulted == Bytes::ZERO),
        "{refaulted} of {all} had been reported"
    );
    Ok(Duration::from_micros(us).as_secs_f64() / f64::from(ROUNDS))
}

/// Starts a machine whose memory the host backs by these pages. QEMU asks for huge pages itself. A
/// process can forbid them to its children.
fn start(config: &Config, pages: HostPages) -> Result<Vm> {
    disable_transparent_huge_pages(pages == HostPages::Small)
        .context("choosing the pages by which the host backs the guest's memory")?;
    let vm = Vm::start(config);
    disable_transparent_huge_pages(false)?;
    Ok(vm?)
}

/// Returns the configuration of a guest with a CPU that touches memory, and one that drives the
/// balloon.
fn config(subject: Subject, size: Bytes, image: &Path, accel: Accel) -> Config {
    let faults = format!("{}:1:{ROUNDS}:{}", size.0, REST.as_millis());
    let config = Config::new(image.into(), Bytes::ZERO)
        .with_guest_option("faults", faults)
        .with_guest_option("reports", if subject.is_reported() { "on" } else { "off" })
        .with_guest_option("zero", if subject == Subject::Hotmem { "reported" } else { "off" });
    let config = match subject {
        Subject::Filled => config.with_guest_option("poison", 0),
        Subject::Hotmem | Subject::NoMarks | Subject::Resident => config,
    };
    Config {
        boot_memory: Bytes(size.0 + size.0 / 2 + Bytes::mib(128).0),
        balloon: Balloon::Reports,
        cpus: 2,
        accel,
        patience: scaled(TIME_LIMIT + REST * (ROUNDS + 2)),
        ..config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_differ_in_reports_marks_and_contents() {
        let append = |subject| {
            let config = config(subject, Bytes::mib(256), Path::new("guest"), Accel::Tcg);
            assert_eq!((config.cpus, config.boot_memory), (2, Bytes::mib(512)));
            config.append[1..].join(" ")
        };
        assert_eq!(append(Subject::Hotmem), "hotmem.reports=on hotmem.zero=reported");
        assert_eq!(append(Subject::NoMarks), "hotmem.reports=on hotmem.zero=off");
        assert_eq!(append(Subject::Resident), "hotmem.reports=off hotmem.zero=off");
        assert_eq!(append(Subject::Filled), "hotmem.reports=off hotmem.zero=off hotmem.poison=0");
    }
}
