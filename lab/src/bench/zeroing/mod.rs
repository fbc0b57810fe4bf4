//! `hotmem bench zeroing`: measures what a kernel gains if it does not zero memory that the host
//! has already zeroed.
//!
//! - `touch/SIZE/PAGES`: SIZE bytes are allocated in single frames that must be zero, and one word
//!   of each frame is written. The memory is real memory of this process, backed by pages of 4 KiB
//!   or by transparent huge pages (`thp`).
//! - `load/SIZES/SIZE/Ncpus`: requests of mixed sizes or for single frames, with mixed lifetimes,
//!   are made while free memory is reported to the host. An oracle knows which frames the host has
//!   zeroed, and checks each answer.
//! - `guest` and a size: the instructions of the reference guest under QEMU for each frame. With `--accel`,
//!   times instead, with the same parts as `touch`.
//! - `published/256M/thp`: the figures published with a patch series for Linux. They are of another
//!   machine, and this bench does not measure them.
//!
//! Subjects of `touch` and `guest`:
//!
//! | subject | free memory | a frame that must be zero |
//! |---|---|---|
//! | `hotmem` | reported, marked as zero | is zeroed by the host when it backs the frame |
//! | `hotmem-no-marks` | reported | is zeroed by the host, and again by the kernel |
//! | `resident` | not reported, dirty | is zeroed by the kernel |
//! | `filled` | not reported, all of it zero | was zeroed by the kernel when it was freed |
//!
//! `other_frame` of `touch` and `backed_zero` of `load` answer whether a search should take divided
//! pageblocks that are zero and backed before dirty memory: see docs/findings/known-zero.md.

mod args;
mod goals;
mod guest;
mod load;
mod names;
mod oracle;
mod published;
#[cfg(feature = "report")]
pub(crate) mod section;
mod subject;
#[cfg(test)]
mod tests;
mod touch;

pub(super) use args::Args;

use super::record::{self, RanOn, Record, Sample};
use super::results;
use crate::hosted::HostPages;
use crate::{progress, size};
use anyhow::{Context, Result};
use args::Case;
use indicatif::ProgressBar;
use load::{Load, Sizes};
use names::{NAME, TIME, case};
use subject::Subject;

pub(super) fn run(args: &Args) -> Result<()> {
    let measure = |sample: &mut Sample| measure(args, sample);
    let print = |records: &[Record]| {
        record::print(records)?;
        goals::print(records)?;
        Ok(())
    };
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures all cases.
fn measure(args: &Args, sample: &mut Sample) -> Result<()> {
    let progress = progress::spinner();
    for case in &args.cases {
        match case {
            Case::Touch => measure_touching(args, sample, &progress)?,
            Case::Load => measure_load(args, sample, &progress)?,
            Case::Guest => guest::measure(args, sample, &progress)?,
        }
    }
    published::record(sample);
    progress.finish_and_clear();
    Ok(())
}

/// Measures touching memory of this process, by all subjects in turn.
fn measure_touching(args: &Args, sample: &mut Sample, progress: &ProgressBar) -> Result<()> {
    sample.set_executor(RanOn::Process);
    for pages in [HostPages::Small, HostPages::Huge] {
        let case = case("touch", args.size, pages);
        for run in 1..=args.runs {
            // Each run begins with another subject, so that none has the advantage of its place.
            let mut subjects = Subject::ALL;
            let first = usize::try_from(run)? % subjects.len();
            subjects.rotate_left(first);
            for subject in subjects {
                progress.set_message(format!("{case}, {subject}, run {run} of {}", args.runs));
                let costs = touch::measure(subject, args.size, pages);
                costs.with_context(|| format!("{case} of {subject}"))?.record(
                    &case,
                    &subject.to_string(),
                    sample,
                );
            }
        }
    }
    Ok(())
}

/// Measures the mixed load with and without marks.
fn measure_load(args: &Args, sample: &mut Sample, progress: &ProgressBar) -> Result<()> {
    sample.set_executor(RanOn::Process);
    let all = Sizes::ALL.iter().flat_map(|&sizes| args.cpus.iter().map(move |&cpus| (sizes, cpus)));
    for (sizes, cpus) in all {
        let plural = if cpus == 1 { "" } else { "s" };
        let size = size::short(args.load_size);
        let case = format!("load/{}/{size}/{cpus}cpu{plural}", sizes.name());
        for run in 0..args.load_runs {
            for subject in [Subject::NoMarks, Subject::Hotmem] {
                progress.set_message(format!("{case}, {subject}, run {}", run + 1));
                let load = Load {
                    sizes,
                    size: args.load_size,
                    cpus,
                    requests: args.requests,
                    seed: 1 + u64::from(run),
                };
                let results = load::measure(subject, load);
                let results = results.with_context(|| format!("{case} of {subject}"))?;
                results.record(&case, &subject.to_string(), sample);
            }
        }
    }
    Ok(())
}
