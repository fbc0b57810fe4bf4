//! `hotmem bench tails`: measures the slowest of many allocations and frees while another CPU adds,
//! removes, reports and isolates memory, and the longest single call of the control path.
//!
//! Allocations and frees are measured in wall-clock time, so the times include the host's scheduler
//! and interrupts. The subject `limit` shows their share: it does nothing between two readings of
//! the clock. Calls of the control path are measured by CPU time.

mod beside;
mod calls;
mod control;
mod samples;

use super::frames::{Allocator, Bitmap, Buddy, allowed_cpus, pin};
use super::record::{self, Metric, Sample};
use crate::{hosted::Hosted, progress, size};
use anyhow::{Context, Result, ensure};
use beside::Beside;
use bitmap_allocator::{BitAlloc, BitAlloc16M};
use calls::Calls;
use control::Control;
use hotmem::{Bytes, geometry::FRAME_SIZE};
use samples::{Tail, Times};
use spin::Mutex;
use std::{path::PathBuf, thread, time::Duration};

/// Arguments of `hotmem bench tails`.
#[derive(clap::Args)]
pub struct Args {
    /// The memory of the machines
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "16G")]
    size: Bytes,
    /// The work of another CPU meanwhile
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Beside::ALL)]
    beside: Vec<Beside>,
    /// The approximate number of pageblocks that one call of the control path may handle
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,64,512,2048",
          value_parser = clap::value_parser!(u64).range(1..=2048))]
    budgets: Vec<u64>,
    /// Allocations in a run, and as many frees
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    operations: u64,
    /// Runs for each median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Half of all calls take at most this time.
const MEDIAN: Metric = ("median", "s");
/// One call in a thousand takes longer.
const P99_9: Metric = ("p99.9", "s");
/// The time of the slowest call.
const LONGEST: Metric = ("longest", "s");
/// CPU time of the longest call of the control path.
const LONGEST_CALL: Metric = ("longest_call", "s");

/// The bitmap is a `static` because it is too large for a stack. All of it is free after each run.
static BITMAP: Mutex<BitAlloc16M> = Mutex::new(BitAlloc16M::DEFAULT);

/// The measured allocators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Subject {
    Hotmem,
    Buddy,
    Bitmap,
}

impl Subject {
    const ALL: [Subject; 3] = [Subject::Hotmem, Subject::Buddy, Subject::Bitmap];

    fn name(self) -> &'static str {
        match self {
            Subject::Hotmem => "hotmem",
            Subject::Buddy => "buddy_system_allocator",
            Subject::Bitmap => "bitmap-allocator",
        }
    }

    /// Returns whether the subject supports this work: the other allocators can neither grow nor
    /// shrink.
    fn can(self, beside: Beside) -> bool {
        self == Subject::Hotmem || matches!(beside, Beside::Nothing | Beside::Traffic)
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (least, most) = (Bytes::gib(4), Bytes::gib(64));
    ensure!(
        (least..=most).contains(&args.size) && args.size.0.is_multiple_of(Bytes::mib(128).0),
        "--size {}: whole memory blocks of 128MiB, from {least} to {most}",
        args.size
    );
    let cases: Vec<_> = (args.beside.iter())
        .flat_map(|&beside| Subject::ALL.map(|subject| (beside, subject)))
        .filter(|(beside, subject)| subject.can(*beside))
        .collect();
    let progress = progress::bar(cases.len() as u64 * u64::from(args.runs));
    let mut sample = Sample::new("tails");
    for _ in 0..args.runs {
        for &(beside, subject) in &cases {
            let case = format!("{}/{beside}", size::short(args.size));
            progress.set_message(format!("{case}, {}", subject.name()));
            // The measuring thread is bound to a CPU.
            let measured = thread::scope(|scope| {
                let measuring = scope.spawn(|| args.measure(subject, beside));
                measuring.join().expect("a measuring thread panicked")
            });
            let (times, calls) = measured.with_context(|| format!("{case}, {}", subject.name()))?;
            add(&mut sample, &case, subject.name(), times, &calls);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let records = sample.records();
    record::print(&records)?;
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

fn add(sample: &mut Sample, case: &str, subject: &str, times: Times, calls: &Calls) {
    let Times { alloc, free, nothing } = times;
    let of = [("alloc", subject, alloc), ("free", subject, free)];
    // The machine is equally busy for each subject, so the limit is recorded for one of them.
    let limit = (subject == Subject::Hotmem.name()).then_some(nothing);
    let limits = limit
        .into_iter()
        .flat_map(|times| [("alloc", "limit", times.clone()), ("free", "limit", times)]);
    for (call, subject, times) in of.into_iter().chain(limits) {
        let case = format!("{case}/{call}");
        let Tail { median, p99_9, longest } = Tail::of(times);
        for (metric, value) in [(MEDIAN, median), (P99_9, p99_9), (LONGEST, longest)] {
            sample.add(&case, subject, metric, value);
        }
    }
    for (call, longest) in calls.longest() {
        let longest = longest.as_secs_f64();
        sample.add(&format!("{case}/{call}"), subject, LONGEST_CALL, longest);
    }
}

impl Args {
    fn measure(&self, subject: Subject, beside: Beside) -> Result<(Times, Calls)> {
        let frames = usize::try_from(self.size.0 / FRAME_SIZE)?;
        match subject {
            Subject::Hotmem => {
                let machine = Hosted::builder()
                    .boot_memory(Bytes::mib(128))
                    .room(Bytes(self.size.0 + control::EXTRA.0))
                    .build()?;
                let mut control = Control::new(&machine, self.size)?;
                let times = self.times(machine.frames(), || match beside {
                    Beside::Nothing => rest(),
                    Beside::Traffic => samples::traffic(machine.frames()),
                    _ => self.budgets.iter().try_for_each(|&budget| control.work(beside, budget)),
                })?;
                Ok((times, control.into_calls()))
            }
            Subject::Buddy => self.peer(&Buddy::new(frames), beside),
            Subject::Bitmap => self.peer(&Bitmap::new(&BITMAP, frames), beside),
        }
    }

    fn peer(&self, allocator: &impl Allocator, beside: Beside) -> Result<(Times, Calls)> {
        let times = self.times(allocator, || match beside {
            Beside::Traffic => samples::traffic(allocator),
            _ => rest(),
        })?;
        Ok((times, Calls::default()))
    }

    /// Measures allocations and frees on the first CPU, while `beside` is called repeatedly on the
    /// last one.
    fn times(
        &self,
        allocator: &impl Allocator,
        mut beside: impl FnMut() -> Result<()>,
    ) -> Result<Times> {
        let cpus = allowed_cpus()?;
        let (first, last) = cpus.first().zip(cpus.last()).context("no CPU may be used")?;
        pin(*last)?;
        thread::scope(|scope| {
            let measuring = scope.spawn(|| -> Result<Times> {
                pin(*first)?;
                Ok(samples::measure(allocator, self.operations))
            });
            let worked = loop {
                let worked = beside();
                if measuring.is_finished() || worked.is_err() {
                    break worked;
                }
            };
            let times = measuring.join().expect("a measuring thread panicked");
            worked.and(times)
        })
    }
}

/// Leaves the other CPU idle for a moment.
fn rest() -> Result<()> {
    thread::sleep(Duration::from_millis(1));
    Ok(())
}

#[cfg(test)]
mod tests;
