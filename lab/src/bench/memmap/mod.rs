//! `hotmem bench memmap`: measures writing the descriptors of a device's frames, and compares with
//! a baseline and with filling the memory.
//!
//! Each turn measures every subject once, so that load of the host affects all of them alike. Each
//! subject is compared with the limit of the same turn.

mod case;
mod device_range;
mod field_by_field;
mod fill;
mod instructions;
mod memory;
#[cfg(feature = "report")]
pub(crate) mod section;

use super::record::{self, Metric, Record, Sample};
use super::results;
use crate::{progress, qemu::host, size};
use anyhow::{Context, Result};
use case::{BindKind, Case, FastestFill, Subject};
use device_range::range;
use fill::Fill;
use hotmem::{Bytes, PfnRange};
use hotmem_guest::descriptor::Page;
use hotmem_memmap::Stores;
use memory::{Memory, PageSize};
use std::{
    collections::BTreeMap,
    num::NonZero,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// The name of the bench in its records.
const NAME: &str = "memmap";

/// Arguments of `hotmem bench memmap`.
#[derive(clap::Args)]
pub struct Args {
    /// The memory of the device, in whole GiB
    #[arg(long, value_parser = size::parse, default_value = "100G")]
    size: Bytes,
    /// The number of runs for each median on memory that holds older descriptors
    #[arg(long, value_name = "RUNS", default_value_t = 30)]
    rebinds: u32,
    /// The number of runs for each median on memory that was never touched
    #[arg(long, value_name = "RUNS", default_value_t = 6)]
    first_binds: u32,
    /// Count the instructions for a frame by valgrind
    #[arg(long)]
    instructions: bool,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const TIME: Metric = ("time", "s");
/// The time divided by the limit's time in the same turn.
const OF_LIMIT: Metric = ("of_limit", "count");
/// The baseline's time divided by Hotmem's in the same turn.
const SPEEDUP: Metric = ("speedup", "count");
/// The amount of descriptors that Hotmem writes.
const WRITTEN: Metric = ("written", "MiB");

pub(super) use instructions::{CaseArgs, run_case};

pub(super) fn run(args: &Args) -> Result<()> {
    let measure = |sample: &mut Sample| measure_all(args, sample);
    let print = |records: &[Record]| Ok(record::print(records)?);
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Returns all cases on this host.
fn all_cases() -> Vec<Case> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    Case::all(cpus as u64)
}

/// Measures all cases.
fn measure_all(args: &Args, sample: &mut Sample) -> Result<()> {
    let range = range(args.size)?;
    if args.rebinds > 0 || args.first_binds > 0 {
        measure_times(args, range, sample)?;
    }
    if args.instructions {
        instructions::count_all(sample)?;
    }
    Ok(())
}

/// Measures the time of each subject in each case.
fn measure_times(args: &Args, range: PfnRange, sample: &mut Sample) -> Result<()> {
    let memmap_size = Bytes(range.frames() * size_of::<Page>() as u64);
    host::ensure_available(memmap_size + memmap_size + Bytes::mib(256))?;
    let descriptors = usize::try_from(range.frames()).context("--size")?;
    let cases = all_cases();
    let runs = |case: &Case| match case.bind {
        BindKind::Rebind => args.rebinds,
        BindKind::First(_) => args.first_binds,
    };

    let mut rebind_memory = Memory::new(descriptors, PageSize::Huge)?;
    let fastest = FastestFill { fill: fastest_fill(&mut rebind_memory), stores: Stores::best() };
    let progress = progress::bar(cases.iter().map(|case| u64::from(runs(case))).sum());
    for case in &cases {
        progress.set_message(case.name());
        for turn in 0..runs(case) {
            measure_turn(case, turn, sample, |subject| match case.bind {
                BindKind::Rebind => case.measure(subject, fastest, range, rebind_memory.slots()),
                BindKind::First(pages) => {
                    case.measure(subject, fastest, range, Memory::new(descriptors, pages)?.slots())
                }
            })?;
            progress.inc(1);
        }
        if runs(case) == 0 {
            continue;
        }
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let written = case.written(range)?.0 as f64 / f64::from(1 << 20);
        sample.add(&case.name(), Subject::Hotmem.name(), WRITTEN, written);
    }
    progress.finish_and_clear();
    say!("The limit is the time of {:?} stores, which fill this memory fastest.", fastest.fill)?;
    Ok(())
}

/// Returns the fastest of all fills. Each runs three times, so that it also runs on memory that was
/// touched before.
fn fastest_fill(memory: &mut Memory) -> Fill {
    let mut time = |fill: Fill| {
        let once = |_| {
            let start = Instant::now();
            fill.fill(memory.slots());
            start.elapsed()
        };
        (0..3).map(once).min()
    };
    Fill::all().into_iter().min_by_key(|&fill| time(fill)).unwrap_or(Fill::Ordinary)
}

/// Measures every subject once. Each turn begins with the subject after the previous turn's first.
fn measure_turn(
    case: &Case,
    turn: u32,
    sample: &mut Sample,
    mut measure: impl FnMut(Subject) -> Result<Duration>,
) -> Result<()> {
    let subjects = case.namespace.subjects;
    let mut times = BTreeMap::new();
    for i in 0..subjects.len() {
        let subject = subjects[(i + turn as usize) % subjects.len()];
        let time = measure(subject).with_context(|| case.name())?;
        times.insert(subject, time.as_secs_f64());
    }
    let name = case.name();
    for (&subject, &time) in &times {
        sample.add(&name, subject.name(), TIME, time);
        if let Some(limit) = times.get(&subject.limit()) {
            sample.add(&name, subject.name(), OF_LIMIT, time / limit);
        }
        if let Some(field_by_field) = times.get(&Subject::FieldByField) {
            sample.add(&name, subject.name(), SPEEDUP, field_by_field / time);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_begins_with_another_subject_and_has_its_own_limit() {
        let case = Case::all(1)[0];
        let (mut sample, mut order) = (Sample::new("memmap"), Vec::new());
        for turn in 0..2 {
            measure_turn(&case, turn, &mut sample, |subject| {
                order.push(subject);
                // In the second turn every subject takes twice as long.
                let factor = if turn == 0 { 1 } else { 2 };
                Ok(Duration::from_secs(factor * (subject as u64 + 1)))
            })
            .unwrap();
        }
        assert_eq!(
            (order[0], order[6], order[11]),
            (Subject::FieldByField, Subject::Template, Subject::FieldByField)
        );
        let records = sample.records();
        let find = |subject: Subject, metric| {
            let is_match = |r: &&Record| r.subject_name() == subject.name() && r.has_metric(metric);
            records.iter().find(is_match).unwrap()
        };
        let hotmem = find(Subject::Hotmem, OF_LIMIT);
        assert_eq!((hotmem.min, hotmem.max, hotmem.runs), (0.8, 0.8, 2));
        assert_eq!(find(Subject::Movnti, OF_LIMIT).median, 0.5);
        assert_eq!(find(Subject::Hotmem, SPEEDUP).median, 0.25);
    }
}
