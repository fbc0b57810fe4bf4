//! `hotmem bench tails`: measures the slowest of many allocations and frees while another CPU adds,
//! removes, reports and isolates memory, and the longest single call of the control path.
//!
//! Allocations and frees are measured in wall-clock time, so the times include the host's scheduler
//! and interrupts. The subject `limit` shows their share: it only reads the clock twice. Calls of
//! the control path are measured in CPU time.

mod background;
mod calls;
mod control;
mod samples;
#[cfg(feature = "report")]
pub(crate) mod section;

use super::frames::{Allocator, Bitmap, Buddy, allowed_cpus, pin};
use super::record::{self, Metric, Record, Sample};
use super::results;
use crate::{hosted::Hosted, progress, size};
use anyhow::{Context, Result, ensure};
use background::Background;
use bitmap_allocator::{BitAlloc, BitAlloc16M};
use calls::LongestCalls;
use control::Control;
use hotmem::{Bytes, geometry::FRAME_SIZE};
use samples::{CallTimes, Tail};
use spin::Mutex;
use std::{path::PathBuf, thread, time::Duration};

/// The name of the bench in its records.
const NAME: &str = "tails";

/// Arguments of `hotmem bench tails`.
#[derive(clap::Args)]
pub struct Args {
    /// The memory of the machines
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "16G")]
    size: Bytes,
    /// What another CPU does during the measurement
    #[arg(long = "beside", value_enum, value_delimiter = ',', default_values_t = Background::ALL)]
    background: Vec<Background>,
    /// The approximate number of pageblocks that one call of the control path may handle
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,64,512,2048",
          value_parser = clap::value_parser!(u64).range(1..=2048))]
    budgets: Vec<u64>,
    /// The number of allocations in a run, which is also the number of frees
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    operations: u64,
    /// The number of runs for each median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Half of all calls take at most this time.
const MEDIAN: Metric = ("median", "s");
/// One call in a thousand takes longer than this time.
const P99_9: Metric = ("p99.9", "s");
/// The time of the slowest call.
const LONGEST: Metric = ("longest", "s");
/// The CPU time of the longest call of the control path.
const LONGEST_CALL: Metric = ("longest_call", "s");

/// The bitmap of the subject `bitmap-allocator`: a `static`, because it is too large for a stack.
/// After each run all of its frames are free, so the next run can use it.
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

    /// Returns whether the subject can be measured with `background`. Only Hotmem can add, remove,
    /// report and isolate memory.
    fn supports(self, background: Background) -> bool {
        self == Subject::Hotmem || matches!(background, Background::Nothing | Background::Traffic)
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let measure = |sample: &mut Sample| measure_all(args, sample);
    let print = |records: &[Record]| Ok(record::print(records)?);
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures all cases.
fn measure_all(args: &Args, sample: &mut Sample) -> Result<()> {
    let (min, max) = (Bytes::gib(4), Bytes::gib(64));
    ensure!(
        (min..=max).contains(&args.size) && args.size.0.is_multiple_of(Bytes::mib(128).0),
        "--size {} must be whole memory blocks of 128 MiB, from {min} to {max}",
        args.size
    );
    let cases: Vec<_> = (args.background.iter())
        .flat_map(|&background| Subject::ALL.map(|subject| (background, subject)))
        .filter(|(background, subject)| subject.supports(*background))
        .collect();
    let progress = progress::bar(cases.len() as u64 * u64::from(args.runs));
    for _ in 0..args.runs {
        for &(background, subject) in &cases {
            let case = format!("{}/{background}", size::short(args.size));
            progress.set_message(format!("{case}, {}", subject.name()));
            // `measure` binds its thread to a CPU, so it runs in a thread of its own.
            let measured = thread::scope(|scope| {
                let measuring = scope.spawn(|| args.measure(subject, background));
                measuring.join().expect("a measuring thread panicked")
            });
            let (times, calls) = measured.with_context(|| format!("{case}, {}", subject.name()))?;
            add(sample, &case, subject.name(), times, &calls);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(())
}

/// Records the times of a run, and the longest calls of the control path.
fn add(sample: &mut Sample, case: &str, subject: &str, times: CallTimes, calls: &LongestCalls) {
    let CallTimes { alloc, free, clock_only } = times;
    let timed_calls = [("alloc", subject, alloc), ("free", subject, free)];
    // The subject does not change the time of the clock, so the limit is recorded only once.
    let limit = (subject == Subject::Hotmem.name()).then_some(clock_only);
    let limits = limit
        .into_iter()
        .flat_map(|times| [("alloc", "limit", times.clone()), ("free", "limit", times)]);
    for (call, subject, times) in timed_calls.into_iter().chain(limits) {
        let case = format!("{case}/{call}");
        let Tail { median, p99_9, longest } = Tail::of(times);
        for (metric, value) in [(MEDIAN, median), (P99_9, p99_9), (LONGEST, longest)] {
            sample.add(&case, subject, metric, value);
        }
    }
    for (call, longest) in calls.iter() {
        let longest = longest.as_secs_f64();
        sample.add(&format!("{case}/{call}"), subject, LONGEST_CALL, longest);
    }
}

impl Args {
    /// Measures one run of `subject`. Returns the times of its allocations and frees, and the
    /// longest calls of the control path.
    fn measure(
        &self,
        subject: Subject,
        background: Background,
    ) -> Result<(CallTimes, LongestCalls)> {
        let frames = usize::try_from(self.size.0 / FRAME_SIZE)?;
        match subject {
            Subject::Hotmem => {
                let machine = Hosted::builder()
                    .boot_memory(Bytes::mib(128))
                    .hotplug_size(Bytes(self.size.0 + control::RESIZED_MEMORY.0))
                    .build()?;
                let mut control = Control::new(&machine, self.size)?;
                let times = self.call_times(machine.frames(), || match background {
                    Background::Nothing => idle(),
                    Background::Traffic => samples::traffic(machine.frames()),
                    _ => {
                        self.budgets.iter().try_for_each(|&budget| control.run(background, budget))
                    }
                })?;
                Ok((times, control.into_calls()))
            }
            Subject::Buddy => self.measure_peer(&Buddy::new(frames), background),
            Subject::Bitmap => self.measure_peer(&Bitmap::new(&BITMAP, frames), background),
        }
    }

    /// Measures one run of an allocator without a control path.
    fn measure_peer(
        &self,
        allocator: &impl Allocator,
        background: Background,
    ) -> Result<(CallTimes, LongestCalls)> {
        let times = self.call_times(allocator, || match background {
            Background::Traffic => samples::traffic(allocator),
            _ => idle(),
        })?;
        Ok((times, LongestCalls::default()))
    }

    /// Measures allocations and frees on the first CPU, while `background` is called repeatedly on
    /// the last one.
    fn call_times(
        &self,
        allocator: &impl Allocator,
        mut background: impl FnMut() -> Result<()>,
    ) -> Result<CallTimes> {
        let cpus = allowed_cpus()?;
        let (first, last) = cpus.first().zip(cpus.last()).context("no CPU may be used")?;
        pin(*last)?;
        thread::scope(|scope| {
            let measuring = scope.spawn(|| -> Result<CallTimes> {
                pin(*first)?;
                Ok(samples::measure(allocator, self.operations))
            });
            let background_result = loop {
                let background_result = background();
                if measuring.is_finished() || background_result.is_err() {
                    break background_result;
                }
            };
            let times = measuring.join().expect("a measuring thread panicked");
            background_result.and(times)
        })
    }
}

/// Sleeps for a millisecond, so that the other CPU is idle.
fn idle() -> Result<()> {
    thread::sleep(Duration::from_millis(1));
    Ok(())
}

#[cfg(test)]
mod tests;
