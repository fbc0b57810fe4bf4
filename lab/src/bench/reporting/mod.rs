//! `hotmem bench reporting`: what it costs to give free memory back while it is used, and how fast
//! all of it goes.
//!
//! - `page_fault1/N`: N threads, each near a node of its own, allocate 128 MiB in frames, clear
//!   each frame and free them all, again and again, as a kernel does under will-it-scale's
//!   `page_fault1`; the reporter is off (`before`) or on with its default settings, after an idle
//!   time in which all memory has gone to the host.
//! - `give-back/SIZE`: so much memory is touched and freed frame by frame in random order while
//!   the reporter is off; then the time until the host has it all, beside one bare `madvise` over
//!   the same memory (`limit`).

mod give_back;
mod instructions;
mod page_fault;

use super::record::{self, Sample};
use crate::{progress, size};
use anyhow::{Context, Result};
use hotmem::Bytes;
use std::{fmt, path::PathBuf};

/// Arguments of `hotmem bench reporting`.
#[derive(clap::Args)]
pub struct Args {
    /// Threads of page_fault1
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u16).range(1..=2))]
    threads: Vec<u16>,
    /// How long each run of page_fault1 lasts, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    seconds: u16,
    /// How much is given back at once [default: 8G, or half of what the host can spare]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse)]
    give_back: Vec<Bytes>,
    /// Runs for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Do not count instructions, even if valgrind is installed
    #[arg(long)]
    no_instructions: bool,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Arguments of one case of page_fault1, which is started under valgrind.
#[derive(clap::Args)]
pub struct CaseArgs {
    #[arg(long, value_enum)]
    subject: Subject,
    #[arg(long)]
    threads: u16,
    #[arg(long)]
    rounds: u64,
}

/// Whether free memory is reported while it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Subject {
    /// The reporter is off
    Before,
    /// The reporter is on
    Hotmem,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::Before => "before",
            Subject::Hotmem => "hotmem",
        })
    }
}

/// Frames allocated, cleared and freed in a second, by all threads together.
const RATE: (&str, &str) = ("rate", "ops/s");
/// Instructions of the first thread for a frame allocated and freed.
const INSTRUCTIONS: (&str, &str) = ("instructions", "count");
/// Pageblocks that the host took, and those of them that were used again.
const REPORTED: (&str, &str) = ("reported", "count");
const REFAULTED: (&str, &str) = ("refaulted", "count");
/// Until the host has it all.
const TIME: (&str, &str) = ("time", "s");

pub(super) fn run(args: &Args) -> Result<()> {
    let mut sample = Sample::new("reporting");
    let give_back = match &args.give_back[..] {
        [] => &[give_back::usual_size()],
        sizes => sizes,
    };
    let steps = args.threads.len() + give_back.len();
    let progress = progress::bar(steps as u64 * u64::from(args.runs));
    for _ in 0..args.runs {
        for &threads in &args.threads {
            let case = page_fault::name(threads);
            progress.set_message(case.clone());
            for subject in [Subject::Before, Subject::Hotmem] {
                let work = page_fault::Work::Seconds(args.seconds);
                let done = page_fault::measure(subject, threads, work)
                    .with_context(|| format!("{case} of {subject}"))?;
                let subject = subject.to_string();
                sample.add(&case, &subject, RATE, done.rate);
                if let Some(statistics) = done.statistics {
                    #[allow(clippy::cast_precision_loss, reason = "for people")]
                    for (metric, count) in
                        [(REPORTED, statistics.reported), (REFAULTED, statistics.refaulted)]
                    {
                        sample.add(&case, &subject, metric, count as f64);
                    }
                }
            }
            progress.inc(1);
        }
        for &size in give_back {
            let case = format!("give-back/{}", size::short(size));
            progress.set_message(case.clone());
            for subject in [give_back::Subject::Limit, give_back::Subject::Hotmem] {
                let seconds = give_back::measure(subject, size)
                    .with_context(|| format!("{case} of {subject}"))?;
                sample.add(&case, &subject.to_string(), TIME, seconds);
            }
            progress.inc(1);
        }
    }
    if !args.no_instructions {
        instructions::count(&args.threads, &mut sample, &progress)?;
    }
    progress.finish_and_clear();
    let records = sample.records();
    record::print(&records);
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

/// Does so much of page_fault1, to be counted from outside.
pub(super) fn run_case(args: &CaseArgs) -> Result<()> {
    let work = page_fault::Work::Rounds(args.rounds);
    page_fault::measure(args.subject, args.threads, work).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_comes_to_an_end() {
        for subject in [Subject::Before, Subject::Hotmem] {
            let done = page_fault::measure(subject, 2, page_fault::Work::Rounds(2)).unwrap();
            assert!(done.rate > 0.0);
            assert_eq!(done.statistics.is_some(), subject == Subject::Hotmem);
        }
        for subject in [give_back::Subject::Limit, give_back::Subject::Hotmem] {
            assert!(give_back::measure(subject, Bytes::mib(256)).unwrap() > 0.0);
        }
    }
}
