//! Touches memory of the reference guest under QEMU, which reports free memory to the host by a
//! balloon.
//!
//! QEMU's balloon does not say that it zeroes reported memory. The bench starts QEMU with anonymous
//! memory, which QEMU discards, so it vouches for this by the guest's option `hotmem.zero`.

use super::{Args, NAME, Subject, case};
use crate::bench::record::{Metric, Sample};
use crate::hosted::HostPages;
use crate::qemu::{Accel, Balloon, Config, Event, Vm, accel, image};
use anyhow::{Context, Result, ensure};
use hotmem::Bytes;
use hotmem_time_limit::scaled;
use indicatif::ProgressBar;
use rustix::thread::disable_transparent_huge_pages;
use std::{path::Path, time::Duration};

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

/// Measures all subjects with both kinds of pages.
pub(super) fn measure(args: &Args, sample: &mut Sample, progress: &ProgressBar) -> Result<()> {
    let image = image::find(args.guest_image.as_deref())?;
    let accel = match args.accel {
        None => accel::best_accel(args.guest_image.as_deref())?,
        Some(accel) => accel,
    };
    sample.set_executor(accel.into());
    for pages in [HostPages::Small, HostPages::Huge] {
        let case = case("guest", args.size, pages);
        for boot in 1..=args.boots {
            for subject in Subject::ALL {
                progress.set_message(format!("{case}, {subject}, boot {boot} of {}", args.boots));
                let seconds = round(subject, args.size, pages, &image, accel)
                    .with_context(|| format!("{NAME} {case} of {subject}"))?;
                sample.add(&case, &subject.to_string(), ROUND, seconds);
            }
        }
    }
    Ok(())
}

/// Boots a guest, and returns the mean time of a round.
fn round(
    subject: Subject,
    size: Bytes,
    pages: HostPages,
    image: &Path,
    accel: Accel,
) -> Result<f64> {
    let mut vm = start(&config(subject, size, image, accel), pages)?;
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
