//! `hotmem bench frames`: measures the frame allocator, and compares it with others. The bench does
//! not access allocated frames.
//!
//! A case says what is allocated, from which part of the memory, in which state of the machine,
//! and in which order. `tables.rs` lists the cases. Each allocator has a file in `adapters/`, which
//! also says which cases it cannot do.
//!
//! Each run measures every case once, in a separate process for each. The subjects of a case follow
//! each other, so load of the host affects all of them alike.

mod access;
mod adapters;
mod allocator;
mod cannot;
mod case;
mod instructions;
mod length;
mod measure;
mod mixed_orders;
mod place;
mod prepare;
mod print;
mod program;
mod remote_frees;
mod ring;
mod run;
#[cfg(feature = "report")]
pub(crate) mod section;
mod state;
mod subject;
mod tables;
mod traffic;
mod value_name;

pub(super) use adapters::{bitmap::Bitmap, buddy_system::Buddy};
pub(super) use allocator::alloc_until_some;
pub use allocator::{Allocator, ThreadState};
pub use length::Length;
pub(super) use traffic::{allowed_cpus, cpu_time, pin};
pub(super) use value_name::value_name;

use super::record::{Record, Sample};
use super::{callgrind, results, valgrind};
use crate::{progress, size};
use access::Access;
use anyhow::{Context, Result, bail, ensure};
use case::Case;
use hotmem::Bytes;
use place::Place;
use run::Run;
use state::State;
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
use tables::{Group, TableName};

/// The name of the bench in its records.
const NAME: &str = "frames";

/// Arguments of `hotmem bench frames`.
#[derive(clap::Args)]
pub struct Args {
    /// Measure all tables, 7 runs
    #[arg(long)]
    thorough: bool,
    /// The tables to measure; by default the first five of these
    #[arg(long, value_enum, value_delimiter = ',')]
    tables: Vec<TableName>,
    /// The sizes of the machines' memory, in place of those of the tables
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse)]
    sizes: Vec<Bytes>,
    /// The lengths to allocate, such as `order3` and `12frames`, in place of those of the tables
    #[arg(long, value_name = "LENGTH,…", value_delimiter = ',')]
    lengths: Vec<Length>,
    /// The numbers of CPUs that run at the same time, in place of those of the tables
    #[arg(long, value_name = "N,…", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// The parts of the memory to allocate from, in place of those of the tables
    #[arg(long, value_enum, value_delimiter = ',')]
    places: Vec<Place>,
    /// What is in use, in place of the states of the tables
    #[arg(long, value_enum, value_delimiter = ',')]
    states: Vec<State>,
    /// The access patterns, in place of those of the tables
    #[arg(long, value_enum, value_delimiter = ',')]
    accesses: Vec<Access>,
    /// The allocators to measure, in place of those of the tables
    #[arg(long, value_enum, value_delimiter = ',')]
    subjects: Vec<Subject>,
    /// The number of runs for each median of times; with 0, only instructions are counted
    #[arg(long, default_value = "3", default_value_if("thorough", "true", "7"))]
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
    /// Tell valgrind which instructions are to be counted
    #[arg(long)]
    counts_instructions: bool,
}

/// The CPU time for allocating and freeing a run.
const TIME_PER_OP: (&str, &str) = ("time_per_op", "ns");
/// The instructions for allocating and freeing a run, in the mean.
const INSTRUCTIONS_PER_OP: (&str, &str) = ("instructions_per_op", "count");
/// The instructions of the operation that executes most.
const MOST_INSTRUCTIONS: (&str, &str) = ("most_instructions", "count");
/// The CPU time until all memory can be allocated.
const TIME: (&str, &str) = ("time", "s");

pub(super) fn run(args: &Args) -> Result<()> {
    let tables = args.tables();
    let mut cases: Vec<Case> = Vec::new();
    for case in tables.iter().flat_map(|(_, cases)| cases) {
        if !cases.contains(case) {
            cases.push(*case);
        }
    }
    let (cases, too_large): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|case| case.size >= case.min_size());
    for case in too_large {
        let (name, subject, min) = (case.name(), case.subject, size::short(case.min_size()));
        crate::out::remark(format_args!("{name}, {subject}: left out, because it needs {min}"));
    }
    if cases.iter().any(|case| !program::is_built(case.subject)) {
        let build = adapters::llfree::BUILD;
        crate::out::remark(format_args!(
            "LLFree: left out, because this has not built it: {build}"
        ));
    }
    let (possible, impossible): (Vec<_>, Vec<_>) = cases
        .into_iter()
        .filter(|case| program::is_built(case.subject))
        .partition(|case| case.cannot().is_none());
    ensure!(!possible.is_empty(), "no subject supports any of these cases");
    let counts_instructions = !args.no_instructions && can_count_instructions();
    let measure = |sample: &mut Sample| {
        let measured = measure_all(&possible, args.runs, sample);
        let counted =
            if counts_instructions { count_instructions(&possible, sample) } else { Ok(()) };
        for case in &impossible {
            let metrics = args.metrics(case, counts_instructions);
            let add = |&metric| sample.add_cannot(&case.name(), &case.subject.to_string(), metric);
            metrics.iter().for_each(add);
        }
        measured.and(counted)
    };
    let print = |records: &[Record]| -> Result<()> {
        for (table, cases) in &tables {
            for (metric, unit) in [
                (INSTRUCTIONS_PER_OP, "instructions of an operation"),
                (MOST_INSTRUCTIONS, "instructions of the operation that executes most"),
                (TIME_PER_OP, "time of an operation"),
                (TIME, "time of the start"),
            ] {
                print::print(cases, records, metric, &format!("{}: {unit}", table.title()))?;
            }
        }
        print_reasons(&impossible, Case::cannot)?;
        if counts_instructions {
            print_reasons(&possible, Case::cannot_be_counted)?;
        }
        Ok(())
    };
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures one case in this process and prints the figure.
pub(super) fn run_case(args: &CaseArgs) -> Result<()> {
    say!("{}", args.case.measure(args.run())?)?;
    Ok(())
}

/// Measures one case of an allocator that another program has, and prints the figure. `arguments` are
/// those of the process. `new` makes the allocator of this many frames.
///
/// # Errors
/// The arguments are not those of a case, or the case cannot be measured.
pub fn run_peer<A: Allocator>(
    arguments: impl Iterator<Item = String>,
    new: impl FnOnce(usize) -> Result<A>,
) -> Result<()> {
    let command = <CaseArgs as clap::Args>::augment_args(clap::Command::new("frames-case"));
    // The first two arguments after the program's name are `bench frames-case`.
    let matches = command.no_binary_name(true).try_get_matches_from(arguments.skip(3))?;
    let args = <CaseArgs as clap::FromArgMatches>::from_arg_matches(&matches)?;
    let frames = allocator::index(args.case.size.frames());
    say!("{}", args.case.measure_peer(args.run(), || new(frames))?)?;
    Ok(())
}

impl CaseArgs {
    const fn run(&self) -> Run {
        Run { operations: self.operations, counts_instructions: self.counts_instructions }
    }
}

impl Args {
    /// Returns the requested tables with their cases.
    fn tables(&self) -> Vec<(TableName, Vec<Case>)> {
        let default_set = TableName::default_set(self.thorough);
        let names = if self.tables.is_empty() { default_set } else { &self.tables };
        let cases = |name: TableName| {
            let groups = name.groups().into_iter();
            groups.flat_map(|group| self.requested(group).cases()).collect()
        };
        names.iter().map(|&name| (name, cases(name))).collect()
    }

    /// Returns a group with the values that the options request in place of its own.
    fn requested(&self, group: Group) -> Group {
        fn or<T: Clone>(requested: &[T], usual: Vec<T>) -> Vec<T> {
            if requested.is_empty() { usual } else { requested.to_vec() }
        }
        Group {
            sizes: or(&self.sizes, group.sizes),
            lengths: or(&self.lengths, group.lengths),
            threads: or(&self.threads, group.threads),
            places: or(&self.places, group.places),
            states: or(&self.states, group.states),
            accesses: or(&self.accesses, group.accesses),
            subjects: or(&self.subjects, group.subjects),
        }
    }

    /// Returns the metrics that a case would have.
    fn metrics(&self, case: &Case, counts_instructions: bool) -> Vec<super::record::Metric> {
        let time = if case.access.is_start() { TIME } else { TIME_PER_OP };
        let counts = counts_instructions && has_instructions(case);
        let metrics = [
            (INSTRUCTIONS_PER_OP, counts),
            (MOST_INSTRUCTIONS, counts && case.counts_each_operation()),
            (time, self.runs > 0),
        ];
        metrics.into_iter().filter(|(_, has)| *has).map(|(metric, _)| metric).collect()
    }
}

/// Prints why subjects cannot do cases, or why their instructions cannot be counted.
fn print_reasons(cases: &[Case], reason: impl Fn(&Case) -> Option<&'static str>) -> Result<()> {
    let mut reasons: Vec<(Subject, &str)> = Vec::new();
    for case in cases {
        let Some(reason) = reason(case).map(|reason| (case.subject, reason)) else { continue };
        if !reasons.contains(&reason) {
            reasons.push(reason);
            say!("{} cannot: {}.", reason.0, reason.1)?;
        }
    }
    Ok(())
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

/// Measures one case in a separate process.
fn measure(case: &Case) -> Result<f64> {
    let output = Command::new(program::program(case.subject)?)
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

/// Returns whether instructions can be counted. If not, prints the reason.
fn can_count_instructions() -> bool {
    let reason = if !valgrind::IS_SUPPORTED {
        "the bench cannot talk to valgrind on this processor"
    } else if !callgrind::is_installed() {
        "valgrind is not installed"
    } else {
        return true;
    };
    crate::out::remark(format_args!("{reason}: instructions are not counted"));
    false
}

/// Returns whether the instructions of a case are counted: valgrind runs one thread at a time.
fn has_instructions(case: &Case) -> bool {
    case.threads == 1 && !case.access.is_start()
}

/// Counts the instructions of the cases with one thread. Counts do not depend on the load, so all
/// CPUs count at the same time.
fn count_instructions(cases: &[Case], sample: &mut Sample) -> Result<()> {
    let can_be_counted = |case: &&Case| case.cannot_be_counted().is_none();
    let cases: Vec<_> =
        cases.iter().filter(|case| has_instructions(case)).filter(can_be_counted).collect();
    let progress = progress::bar(cases.len() as u64);
    let next_case = AtomicUsize::new(0);
    let counts: Vec<_> = cases.iter().map(|_| OnceLock::new()).collect();
    let count = || {
        // Relaxed: each number is given to one thread, and the counts are read after all have
        // ended.
        while let Some(nth) =
            Some(next_case.fetch_add(1, Ordering::Relaxed)).filter(|&n| n < cases.len())
        {
            progress.set_message(format!("{}, instructions", cases[nth].name()));
            _ = counts[nth].set(instructions::count(cases[nth]));
            progress.inc(1);
        }
    };
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..cpus {
            scope.spawn(count);
        }
    });
    progress.finish_and_clear();
    let mut failed = Vec::new();
    for (case, count) in cases.iter().zip(counts) {
        let (name, subject) = (case.name(), case.subject.to_string());
        match count.into_inner() {
            Some(Ok(count)) => {
                sample.add(&name, &subject, INSTRUCTIONS_PER_OP, count.mean);
                if let Some(most) = count.most {
                    sample.add(&name, &subject, MOST_INSTRUCTIONS, most);
                }
            }
            Some(Err(error)) => failed.push(format!("{name}, {subject}: {error:#}")),
            None => failed.push(format!("{name}, {subject}: not counted")),
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests;
