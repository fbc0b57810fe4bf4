//! `hotmem bench reporting`: measures the cost of reporting free memory while memory is in use, and
//! the time for reporting all free memory.
//!
//! - `page_fault1/N/MACHINE/rounds-R`: N threads run bursts of R rounds. In a round a thread
//!   allocates 128 MiB in frames near one of two nodes, clears each frame, and frees all of them.
//!   Between bursts a thread rests for longer than memory stays free before it is reported. The
//!   reporter is on with its default settings, or off (`hotmem-no-reports`). The machine is the
//!   reference guest under QEMU, which boots for each run, or a hosted machine in this process.
//! - `give-back/SIZE`: SIZE bytes are written and then freed frame by frame in random order while
//!   the reporter is off. Then the bench measures the time until the host has taken back all of
//!   them. The subject `limit` is a single `madvise` over the same memory.

mod args;
mod give_back;
mod instructions;
mod page_fault;
#[cfg(feature = "report")]
pub(crate) mod section;
mod subject;

pub(super) use args::Args;

use super::record::{self, RanOn, Record, Sample};
use super::results;
use crate::out::OutputError;
use crate::{
    progress,
    qemu::{Accel, accel, image},
    size,
    table::{Groups, figures},
};
use anyhow::{Context, Result};
use args::Case;
use indicatif::ProgressBar;
use page_fault::{
    Machine, OPERATION_RATE, Plan,
    guest::{self, Clock},
    hosted,
};
use std::{path::Path, time::Duration};
use subject::{INSTRUCTIONS, Subject};

/// Arguments of one run of page_fault on a hosted machine. The bench starts the run under valgrind.
#[derive(clap::Args)]
pub struct CaseArgs {
    #[arg(long, value_enum)]
    subject: Subject,
    #[arg(long)]
    threads: u16,
    #[arg(long)]
    rounds: u32,
    #[arg(long)]
    bursts: u32,
    /// How long a thread rests between two bursts, in milliseconds
    #[arg(long)]
    rest: u32,
}

/// The time until the host has taken back all free memory.
const TIME: (&str, &str) = ("time", "s");

/// The note under the table of page_fault.
const NOTE: &str = "\
A patch series for Linux (page reporting, v12) measured page_fault1 in a VM of 30 GB with 24 CPUs
under KVM: with reporting the rate was 1 to 3 % lower, and without it boots differed by 4 to 6 %.
This bench differs in three ways. TCG runs the guest's CPUs on the host's CPUs, so a frame costs
more instructions and less memory traffic. Bursts and rests alternate, so the first round of each
burst faults all of its memory in again. There are two nodes.
hosted: the machine's memory is that of this process. The instructions are those of one thread.
They do not include the host's page faults, and frames are touched and not cleared.
guest: the instructions are those of the whole guest, including clearing and reporting.";

/// The name of the bench in its records.
const NAME: &str = "reporting";

pub(super) fn run(args: &Args) -> Result<()> {
    let has_page_faults = args.cases.contains(&Case::PageFault);
    let boots_guests = has_page_faults && args.machines.contains(&Machine::Guest);
    let image = boots_guests.then(|| image::find(args.guest_image.as_deref())).transpose()?;
    let accel = match args.accel {
        None if boots_guests => accel::best_accel(args.guest_image.as_deref())?,
        accel => accel.unwrap_or_default(),
    };
    let print = |records: &[Record]| {
        record::print(records)?;
        if has_page_faults {
            say!()?;
            print_side_by_side(records, args)?;
            say!("{NOTE}")?;
        }
        Ok(())
    };
    let measure = |sample: &mut Sample| measure(args, image.as_deref(), accel, sample);
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures all cases. `image` and `accel` are the image and the accelerator of guests.
fn measure(args: &Args, image: Option<&Path>, accel: Accel, sample: &mut Sample) -> Result<()> {
    let progress = progress::spinner();
    if args.cases.contains(&Case::PageFault) {
        for plan in args.plans() {
            for &machine in &args.machines {
                let guest = image.filter(|_| machine == Machine::Guest);
                let guest = guest.map(|image| (image, accel));
                measure_page_faults(args, plan, guest, sample, &progress)?;
            }
        }
        if !args.no_instructions {
            instructions::count(args, image, sample, &progress)?;
        }
    }
    if args.cases.contains(&Case::GiveBack) {
        measure_give_back(args, sample, &progress)?;
    }
    progress.finish_and_clear();
    Ok(())
}

/// Measures one plan with and without reporting in turn. The machine is a guest with the given
/// image and accelerator, or hosted if there is none.
fn measure_page_faults(
    args: &Args,
    plan: Plan,
    guest: Option<(&Path, Accel)>,
    sample: &mut Sample,
    progress: &ProgressBar,
) -> Result<()> {
    let (machine, ran_on, runs) = match guest {
        Some((_, accel)) => (Machine::Guest, accel.into(), args.boots),
        None => (Machine::Hosted, RanOn::Process, args.runs),
    };
    let case = plan.name(machine);
    sample.set_executor(ran_on);
    for run in 1..=runs {
        for subject in [Subject::NoReporting, Subject::Hotmem] {
            progress.set_message(format!("{case}, {subject}, run {run} of {runs}"));
            let costs = match guest {
                Some((image, accel)) => guest::measure(subject, plan, image, Clock::Time(accel)),
                None => hosted::measure(subject, plan, hosted::FrameUse::Clear),
            };
            let costs = costs.with_context(|| format!("{case} of {subject}"))?;
            costs.record(&case, subject, sample);
        }
    }
    Ok(())
}

/// Measures each size by both subjects in turn.
fn measure_give_back(args: &Args, sample: &mut Sample, progress: &ProgressBar) -> Result<()> {
    sample.set_executor(RanOn::Process);
    let sizes = match &args.give_back[..] {
        [] => &[give_back::default_size()],
        sizes => sizes,
    };
    for &size in sizes {
        let case = format!("give-back/{}", size::short(size));
        for run in 1..=args.runs {
            for subject in [give_back::Subject::Limit, give_back::Subject::Hotmem] {
                progress.set_message(format!("{case}, {subject}, run {run} of {}", args.runs));
                let seconds = give_back::measure(subject, size)
                    .with_context(|| format!("{case} of {subject}"))?;
                sample.add(&case, &subject.to_string(), TIME, seconds);
            }
        }
    }
    Ok(())
}

/// Prints the figures without and with reporting side by side for each case.
fn print_side_by_side(records: &[Record], args: &Args) -> Result<(), OutputError> {
    let header = ["metric", "without reports", "with reports", "difference"];
    let mut groups = Groups::new(&header, 1);
    for plan in args.plans() {
        for case in args.machines.iter().map(|&machine| plan.name(machine)) {
            groups.begin(&case);
            for metric in [OPERATION_RATE, INSTRUCTIONS] {
                let figure_of = |subject: Subject| {
                    let subject = subject.to_string();
                    records.iter().find(|r| {
                        r.case == case && r.has_metric(metric) && r.subject_name() == subject
                    })
                };
                if let (Some(without), Some(with)) =
                    (figure_of(Subject::NoReporting), figure_of(Subject::Hotmem))
                {
                    let percent = (with.median / without.median - 1.0) * 100.0;
                    groups.add_row([
                        metric.0.into(),
                        without.show(without.median),
                        with.show(with.median),
                        format!(
                            "{}{} %",
                            if percent < 0.0 { "-" } else { "" },
                            figures(percent.abs())
                        ),
                    ]);
                }
            }
        }
    }
    crate::out::write(format_args!("{groups}"))
}

/// Runs one case of page_fault, whose instructions valgrind counts.
pub(super) fn run_case(args: &CaseArgs) -> Result<()> {
    let &CaseArgs { subject, threads, rounds, bursts, rest } = args;
    let plan = Plan { threads, rounds, bursts, rest_time: Duration::from_millis(rest.into()) };
    hosted::measure(subject, plan, hosted::FrameUse::Touch).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parsed;
    use hotmem::{Bytes, report::ReporterSettings};

    #[test]
    fn each_subject_of_both_cases_can_be_measured() {
        let rest_time = Duration::from_millis(1500);
        let plan = Plan { threads: 3, rounds: 1, bursts: 2, rest_time };
        for subject in [Subject::NoReporting, Subject::Hotmem] {
            let costs = hosted::measure(subject, plan, hosted::FrameUse::Touch).unwrap();
            assert!(costs.rate() > 0.0);
            assert_eq!(costs.refaulted > Bytes::ZERO, subject == Subject::Hotmem);
        }
        for subject in [give_back::Subject::Limit, give_back::Subject::Hotmem] {
            assert!(give_back::measure(subject, Bytes::mib(256)).unwrap() > 0.0);
        }
    }

    #[test]
    fn a_rest_in_which_nothing_can_be_reported_is_refused() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("bench"));
        let ReporterSettings { wake_delay, min_free_time, .. } = ReporterSettings::default();
        let too_short = (wake_delay + min_free_time).as_millis().to_string();
        assert!(command.try_get_matches_from(["bench", "--rest", &too_short]).is_err());
        let args: Args = parsed(&["--threads", "1,24", "--rounds", "2"]);
        assert!(args.plans().all(|plan| plan.rest_time > wake_delay + min_free_time));
        assert_eq!(args.plans().map(|plan| plan.threads).collect::<Vec<_>>(), [1, 24]);
    }
}
