//! `hotmem bench reporting`: what it costs to give free memory back while it is used, and how fast
//! all of it goes.
//!
//! - `page_fault1/N/MACHINE/rounds-R`: N threads, each near one of two nodes, allocate 128 MiB in
//!   frames, clear each frame and free them all, R times in a burst, and rest between bursts for
//!   longer than free memory has to stay free before it is reported. The reporter is on with its
//!   default settings, or off (`hotmem-no-reports`). The machine is the reference guest under QEMU,
//!   each run a boot of its own, or a simulated one in this process.
//! - `give-back/SIZE`: so much memory is touched and freed frame by frame in random order while
//!   the reporter is off; then the time until the host has it all, beside one bare `madvise` over
//!   the same memory (`limit`).

mod give_back;
mod instructions;
mod page_fault;

use super::record::{self, Record, Sample};
use crate::out::OutputError;
use crate::{
    progress,
    qemu::image,
    size,
    table::{figures, table},
};
use anyhow::{Context, Result};
use hotmem::{Bytes, report::Settings};
use indicatif::ProgressBar;
use page_fault::{Machine, Plan, RATE, guest, hosted};
use std::{fmt, path::Path, path::PathBuf, time::Duration};

/// Arguments of `hotmem bench reporting`.
#[derive(clap::Args)]
pub struct Args {
    /// What is measured
    #[arg(long, value_enum, value_delimiter = ',', default_value = "page_fault,give_back")]
    cases: Vec<Case>,
    /// Whose memory page_fault uses
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hosted,guest")]
    machines: Vec<Machine>,
    /// Threads of page_fault; a guest has a CPU for each, and one more
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u16).range(1..=48))]
    threads: Vec<u16>,
    /// How often a thread allocates and frees its 128 MiB before it rests
    #[arg(long, value_name = "R,…", value_delimiter = ',', default_value = "1,16",
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Vec<u32>,
    /// Bursts that are timed in a run, after one that is not
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    bursts: u32,
    /// How long a thread rests between two bursts, in milliseconds: longer than memory has to stay
    /// free before it is reported
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(least_rest()..))]
    rest: u32,
    /// Boots for each median of a guest
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    boots: u32,
    /// How much is given back at once [default: 8G, or half of what the host can spare]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse)]
    give_back: Vec<Bytes>,
    /// Runs for each other median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Do not count instructions
    #[arg(long)]
    no_instructions: bool,
    /// The reference guest's image; built from the workspace if not given
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Case {
    /// Memory that is used again and again while it is reported
    PageFault,
    /// Memory that is given back at once
    GiveBack,
}

/// Arguments of one run of page_fault on a hosted machine, which is started under valgrind.
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
    #[arg(long)]
    rest: u32,
}

/// Whether free memory is reported while it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Subject {
    /// The reporter is off
    #[value(name = "hotmem-no-reports")]
    Silent,
    /// The reporter is on
    Hotmem,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::Silent => "hotmem-no-reports",
            Subject::Hotmem => "hotmem",
        })
    }
}

/// Instructions for a frame allocated and freed.
const INSTRUCTIONS: (&str, &str) = ("instructions", "count");
/// Until the host has it all.
const TIME: (&str, &str) = ("time", "s");

/// Said under what page_fault measured.
const DOCUMENT: &str = "\
A patch series for Linux (page reporting, v12) gave 1 to 3 % less with reporting, of page_fault1 in a
VM of 30 GB with 24 CPUs under KVM, and 4 to 6 % between boots without it. What differs here: the
guest's CPUs are QEMU's translator's, which share this host's, so that a frame costs more
instructions and less memory traffic; bursts and rests alternate, so that each burst's first round
faults all of its memory in again; and there are two nodes.
hosted: a simulated machine, whose memory is this process's. Its instructions are those of one thread
without the host's own for faults, for frames that are touched and not cleared; a guest's are those
of the whole guest, clearing and reporting included.";

pub(super) fn run(args: &Args) -> Result<()> {
    let faults = args.cases.contains(&Case::PageFault);
    let boots = faults && args.machines.contains(&Machine::Guest);
    let image = boots.then(|| image::find(args.guest_image.as_deref())).transpose()?;
    let mut sample = Sample::new("reporting");
    let progress = progress::spinner();
    if faults {
        for plan in args.plans() {
            for &machine in &args.machines {
                page_faults(args, plan, machine, image.as_deref(), &mut sample, &progress)?;
            }
        }
        if !args.no_instructions {
            instructions::count(args, image.as_deref(), &mut sample, &progress)?;
        }
    }
    if args.cases.contains(&Case::GiveBack) {
        give_backs(args, &mut sample, &progress)?;
    }
    progress.finish_and_clear();
    let records = sample.records();
    record::print(&records)?;
    if faults {
        say!()?;
        print_sides(&records, args)?;
        say!("{DOCUMENT}")?;
    }
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

/// Runs of one plan, with reporting and without it in turns.
fn page_faults(
    args: &Args,
    plan: Plan,
    machine: Machine,
    image: Option<&Path>,
    sample: &mut Sample,
    progress: &ProgressBar,
) -> Result<()> {
    let case = plan.name(machine);
    let runs = if machine == Machine::Guest { args.boots } else { args.runs };
    for run in 1..=runs {
        for subject in [Subject::Silent, Subject::Hotmem] {
            progress.set_message(format!("{case}, {subject}, run {run} of {runs}"));
            let timed = match image.filter(|_| machine == Machine::Guest) {
                Some(image) => guest::measure(subject, plan, image, false),
                None => hosted::measure(subject, plan, hosted::Use::Clear),
            };
            let timed = timed.with_context(|| format!("{case} of {subject}"))?;
            timed.record(&case, subject, sample);
        }
    }
    Ok(())
}

fn give_backs(args: &Args, sample: &mut Sample, progress: &ProgressBar) -> Result<()> {
    let sizes = match &args.give_back[..] {
        [] => &[give_back::usual_size()],
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

/// What reporting costs, case by case.
fn print_sides(records: &[Record], args: &Args) -> Result<(), OutputError> {
    let header = ["case", "metric", "without reports", "with reports", "more"];
    let mut table = table(&header, 2);
    for plan in args.plans() {
        for case in args.machines.iter().map(|&machine| plan.name(machine)) {
            for metric in [RATE, INSTRUCTIONS] {
                let of = |subject: Subject| {
                    let who = subject.to_string();
                    records.iter().find(|r| r.case == case && r.is(metric) && r.who() == who)
                };
                if let (Some(without), Some(with)) = (of(Subject::Silent), of(Subject::Hotmem)) {
                    let more = (with.median / without.median - 1.0) * 100.0;
                    table.add_row([
                        case.clone(),
                        metric.0.into(),
                        without.show(without.median),
                        with.show(with.median),
                        format!("{}{} %", if more < 0.0 { "-" } else { "" }, figures(more.abs())),
                    ]);
                }
            }
        }
    }
    say!("{table}")?;
    Ok(())
}

/// The shortest rest, in milliseconds, after which memory is reported: a reporter looks once in each
/// dwell time, and twice before it takes what was free both times.
fn least_rest() -> i64 {
    let Settings { delay, dwell, .. } = Settings::default();
    i64::try_from((delay + 2 * dwell).as_millis()).unwrap_or(i64::MAX)
}

impl Args {
    fn plans(&self) -> impl Iterator<Item = Plan> + '_ {
        let rest = Duration::from_millis(self.rest.into());
        let bursts = self.bursts;
        self.threads.iter().flat_map(move |&threads| {
            self.rounds.iter().map(move |&rounds| Plan { threads, rounds, bursts, rest })
        })
    }
}

/// Does so much of page_fault, to be counted from outside.
pub(super) fn run_case(args: &CaseArgs) -> Result<()> {
    let &CaseArgs { subject, threads, rounds, bursts, rest } = args;
    let plan = Plan { threads, rounds, bursts, rest: Duration::from_millis(rest.into()) };
    hosted::measure(subject, plan, hosted::Use::Touch).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parsed;

    #[test]
    fn every_case_comes_to_an_end() {
        let rest = Duration::from_millis(1500);
        let plan = Plan { threads: 3, rounds: 1, bursts: 2, rest };
        for subject in [Subject::Silent, Subject::Hotmem] {
            let timed = hosted::measure(subject, plan, hosted::Use::Touch).unwrap();
            assert!(timed.rate() > 0.0);
            assert_eq!(timed.refaulted > Bytes::ZERO, subject == Subject::Hotmem);
        }
        for subject in [give_back::Subject::Limit, give_back::Subject::Hotmem] {
            assert!(give_back::measure(subject, Bytes::mib(256)).unwrap() > 0.0);
        }
    }

    #[test]
    fn a_rest_in_which_nothing_can_be_reported_is_refused() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("bench"));
        let Settings { delay, dwell, .. } = Settings::default();
        let short = (delay + dwell).as_millis().to_string();
        assert!(command.try_get_matches_from(["bench", "--rest", &short]).is_err());
        let args: Args = parsed(&["--threads", "1,24", "--rounds", "2"]);
        assert!(args.plans().all(|plan| plan.rest > delay + dwell));
        assert_eq!(args.plans().map(|plan| plan.threads).collect::<Vec<_>>(), [1, 24]);
    }
}
