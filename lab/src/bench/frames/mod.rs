//! `hotmem bench frames`: measures the frame allocator, and compares it with others. The bench does
//! not access allocated frames.
//!
//! Each run measures every case once, in a separate process for each. The subjects of a case follow
//! each other, so load of the host affects all of them alike.

mod access_pattern;
mod case;
mod instructions;
pub(super) use subject::{Allocator, Bitmap, Buddy, alloc_until_some};
pub(super) use traffic::{allowed_cpus, cpu_time, pin};
pub(super) use value_name::value_name;
mod many_frames;
mod measure;
mod min_size;
mod mixed_orders;
mod remote_frees;
mod ring;
#[cfg(feature = "report")]
pub(crate) mod section;
mod subject;
mod traffic;
mod value_name;

use super::record::{self, Record, Sample};
use super::{callgrind, results};
use crate::{progress, size};
use access_pattern::AccessPattern;
use anyhow::{Context, Result, bail, ensure};
use case::Case;
use hotmem::Bytes;
use std::{
    num::NonZero,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use subject::Subject;

/// The name of the bench in its records.
const NAME: &str = "frames";

/// Arguments of `hotmem bench frames`.
#[derive(clap::Args)]
pub struct Args {
    /// Measure everything: all accesses at 16G, 1T and 64T, 7 runs
    #[arg(long)]
    thorough: bool,
    /// The sizes of the machines' memory
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse,
          default_value = "16G", default_value_if("thorough", "true", "16G,1T,64T"))]
    sizes: Vec<Bytes>,
    /// The orders to allocate: powers of two of frames
    #[arg(long, value_name = "ORDER,…", value_delimiter = ',', default_value = "0,9",
          value_parser = clap::value_parser!(u32).range(0..=9))]
    orders: Vec<u32>,
    /// The numbers of CPUs that run at the same time
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// The allocators to measure
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = Subject::ALL)]
    subjects: Vec<Subject>,
    /// The access patterns; by default the first six of these, with --thorough all
    #[arg(long, value_enum, value_delimiter = ',')]
    accesses: Vec<AccessPattern>,
    /// The number of runs for each median
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), default_value = "3",
          default_value_if("thorough", "true", "7"))]
    runs: u32,
    /// Do not count instructions, even if valgrind is installed
    #[arg(long)]
    no_instructions: bool,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Arguments of one case. `hotmem bench frames` starts a separate process with them.
#[derive(clap::Args)]
pub struct CaseArgs {
    #[command(flatten)]
    case: Case,
    /// The number of operations of each thread
    #[arg(long)]
    operations: u64,
    /// Reserve no addresses for plugged memory
    #[arg(long)]
    unbacked: bool,
}

/// The CPU time for allocating and freeing 2^order frames.
const TIME_PER_OP: (&str, &str) = ("time_per_op", "ns");
/// The instructions for allocating and freeing 2^order frames.
const INSTRUCTIONS_PER_OP: (&str, &str) = ("instructions_per_op", "count");
/// The CPU time until all memory can be allocated.
const TIME: (&str, &str) = ("time", "s");

pub(super) fn run(args: &Args) -> Result<()> {
    let (cases, too_large): (Vec<_>, Vec<_>) =
        args.cases().into_iter().partition(|case| case.size >= case.min_size());
    for case in too_large {
        let (name, subject, min) = (case.name(), case.subject, size::short(case.min_size()));
        crate::out::remark(format_args!("{name}, {subject}: left out, because it needs {min}"));
    }
    ensure!(!cases.is_empty(), "no subject supports any of these cases");
    let measure = |sample: &mut Sample| {
        let measured = measure_all(&cases, args.runs, sample);
        let counted =
            if args.no_instructions { Ok(()) } else { count_instructions(&cases, sample) };
        measured.and(counted)
    };
    let print = |records: &[Record]| Ok(record::print(records)?);
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures the times of all cases. A case that fails is not measured again, and the others are.
///
/// # Errors
/// The cases that failed, and the reasons.
fn measure_all(cases: &[Case], runs: u32, sample: &mut Sample) -> Result<()> {
    let progress = progress::bar(cases.len() as u64 * u64::from(runs));
    let mut failed: Vec<(&Case, anyhow::Error)> = Vec::new();
    for _ in 0..runs {
        for case in cases {
            progress.inc(1);
            if failed.iter().any(|(failed, _)| *failed == case) {
                continue;
            }
            progress.set_message(case.name());
            let (name, subject) = (case.name(), case.subject.to_string());
            match measure(case) {
                Ok(ns) if case.access.is_start() => sample.add(&name, &subject, TIME, ns / 1e9),
                Ok(ns) => sample.add(&name, &subject, TIME_PER_OP, ns),
                Err(error) => failed.push((case, error)),
            }
        }
    }
    progress.finish_and_clear();
    if failed.is_empty() {
        return Ok(());
    }
    let text = |(case, error): &(&Case, _)| format!("{}, {}: {error:#}", case.name(), case.subject);
    bail!("{}", failed.iter().map(text).collect::<Vec<_>>().join("; "))
}

/// Measures one case in this process and prints the figure.
pub(super) fn run_case(args: &CaseArgs) -> Result<()> {
    say!("{}", args.case.measure(args.operations, args.unbacked)?)?;
    Ok(())
}

impl Args {
    /// Returns the requested cases that can run. Cases that differ only in the subject are next to
    /// each other.
    fn cases(&self) -> Vec<Case> {
        let default_set = AccessPattern::default_set(self.thorough);
        let accesses = if self.accesses.is_empty() { default_set } else { &self.accesses };
        let mut cases = Vec::new();
        for &size in &self.sizes {
            for &access in accesses {
                for &order in &self.orders {
                    for &threads in &self.threads {
                        for &subject in &self.subjects {
                            let case = Case { subject, size, order, threads, access }.normalized();
                            if case.is_supported() && !cases.contains(&case) {
                                cases.push(case);
                            }
                        }
                    }
                }
            }
        }
        cases
    }
}

/// Measures one case in a separate process.
fn measure(case: &Case) -> Result<f64> {
    let output = Command::new(std::env::current_exe()?)
        .args(case.arguments(case.operations()))
        .stderr(Stdio::inherit())
        .output()
        .context("starting a process for the case")?;
    if !output.status.success() {
        bail!("the case's process failed: {}", output.status);
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.trim().parse().with_context(|| format!("the case's process printed `{printed}`"))
}

/// Counts instructions of the cases with one thread, if valgrind is installed. Counts do not depend
/// on the load, so all CPUs count at the same time.
fn count_instructions(cases: &[Case], sample: &mut Sample) -> Result<()> {
    if !callgrind::is_installed() {
        crate::out::remark(format_args!("valgrind is not installed: instructions are not counted"));
        return Ok(());
    }
    let cases: Vec<_> =
        cases.iter().filter(|case| case.threads == 1 && !case.access.is_start()).collect();
    let progress = progress::bar(cases.len() as u64);
    let next_case = AtomicUsize::new(0);
    let counts: Vec<_> = cases.iter().map(|_| OnceLock::new()).collect();
    let count = || -> Result<()> {
        // Relaxed: each number is given to one thread, and the counts are read after all have
        // ended.
        while let Some(nth) =
            Some(next_case.fetch_add(1, Ordering::Relaxed)).filter(|&n| n < cases.len())
        {
            progress.set_message(format!("{}, instructions", cases[nth].name()));
            let count = instructions::per_operation(cases[nth]);
            _ = counts[nth].set(count.with_context(|| cases[nth].name())?);
            progress.inc(1);
        }
        Ok(())
    };
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(count)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().expect("a counting thread panicked")
        };
        threads.into_iter().try_for_each(join)
    })?;
    progress.finish_and_clear();
    for (case, count) in cases.iter().zip(&counts) {
        if let Some(&count) = count.get() {
            sample.add(&case.name(), &case.subject.to_string(), INSTRUCTIONS_PER_OP, count);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parsed;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    fn cases(line: &[&str]) -> Vec<Case> {
        parsed::<Args>(line).cases()
    }

    #[test]
    fn cases_have_the_documented_names() {
        let names: BTreeSet<_> = cases(&["--thorough"]).iter().map(Case::name).collect();
        for name in [
            "1T/order0/1thread/pair",
            "1T/order0/2threads/pair-neighbours",
            "16G/order9/2threads/bulk",
            "64T/order9/1thread/random",
            "16G/order0/2threads/remote-free",
            "16G/order0-3-9/1thread/mixed",
            "1T/init",
            "64T/announce-add-online",
        ] {
            assert!(names.contains(name), "no {name} in {names:?}");
        }
        assert!(
            !names.contains("1T/order0/1thread/pair-neighbours"),
            "one thread has no neighbours"
        );
    }

    #[test]
    fn subjects_are_left_out_for_sizes_beyond_their_limit() {
        let subjects = |sizes| {
            let cases = cases(&["--sizes", sizes, "--accesses", "pair", "--threads", "1"]);
            cases.iter().filter(|case| case.order == 0).map(|case| case.subject).collect::<Vec<_>>()
        };
        let engine = [Subject::Hotmem, Subject::HotmemMagazine, Subject::HotmemCpuMagazine];
        let up_to_1t = [Subject::BuddySystemAllocator, Subject::BitmapAllocator, Subject::Limit];
        assert_eq!(subjects("1T"), [&engine[..], &up_to_1t].concat());
        let up_to_64t = [Subject::BuddySystemAllocator, Subject::Limit];
        assert_eq!(subjects("64T"), [&engine[..], &up_to_64t].concat());
    }

    #[test]
    fn the_default_set_is_a_small_part_of_all() {
        let (default_set, all) = (cases(&[]), cases(&["--thorough"]));
        assert!(default_set.iter().all(|case| all.contains(case)));
        assert!(default_set.iter().all(|case| case.size == Bytes::gib(16)));
        assert!(default_set.len() * 2 < all.len(), "{} of {}", default_set.len(), all.len());
        let runs = |line: &[&str]| parsed::<Args>(line).runs;
        assert_eq!([runs(&[]), runs(&["--thorough"]), runs(&["--runs", "5"])], [3, 7, 5]);
        for access in [AccessPattern::RemoteFree, AccessPattern::Interrupts, AccessPattern::Mixed] {
            for subject in
                [Subject::Hotmem, Subject::BuddySystemAllocator, Subject::BitmapAllocator]
            {
                let is_match = |case: &Case| (case.access, case.subject) == (access, subject);
                assert!(default_set.iter().any(is_match), "{subject}: {access}");
            }
        }
    }

    #[test]
    fn parsing_the_command_line_of_a_case_gives_the_case() {
        for case in cases(&["--thorough"]) {
            let parsed_args: CaseArgs = parsed(&case.arguments(5)[2..]);
            assert_eq!((parsed_args.case, parsed_args.operations), (case, 5));
        }
    }

    /// One test at a time measures cases, because the bitmaps of the peers are statics.
    static MEASURING: Mutex<()> = Mutex::new(());

    #[test]
    fn every_case_of_the_thorough_set_can_be_measured() {
        let _measuring = MEASURING.lock();
        for case in cases(&["--thorough", "--sizes", "4G", "--threads", "1"]) {
            let measured = case.measure(1 << 10, false);
            assert!(measured.unwrap() > 0.0, "{}", case.name());
        }
    }

    #[test]
    fn a_case_on_the_smallest_machine_can_be_measured_and_on_a_smaller_one_it_cannot() {
        let _measuring = MEASURING.lock();
        for size in ["1G", "4G"] {
            let all = cases(&["--thorough", "--sizes", size, "--threads", "1"]);
            assert!(all.iter().any(|case| (case.size < case.min_size()) == (size == "1G")));
            let smallest = all.into_iter().filter(|case| case.size == case.min_size());
            for case in smallest {
                assert!(case.measure(1 << 10, false).unwrap() > 0.0, "{}", case.name());
            }
        }
        let [small, ..] = cases(&["--sizes", "1G", "--accesses", "random"])[..] else { panic!() };
        assert_eq!(small.min_size(), Bytes::gib(4));
        assert!(small.measure(1, false).unwrap_err().to_string().contains("2048 pageblocks"));
    }
}
