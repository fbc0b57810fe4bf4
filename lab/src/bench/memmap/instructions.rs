//! Counts the instructions that a subject takes to describe a frame.

use super::case::{BindKind, Case, FastestFill, NAMESPACES, Subject};
use super::device_range::range;
use super::fill::Fill;
use super::memory::{Memory, PageSize};
use crate::{
    bench::{
        callgrind,
        record::{Metric, Sample},
    },
    progress, size,
};
use anyhow::{Context, Result};
use hotmem::Bytes;
use hotmem_memmap::Stores;

/// The metric of the counts.
pub(super) const INSTRUCTIONS: Metric = ("instructions_per_frame", "count");

/// Arguments of one case. `hotmem bench memmap` starts a separate process with them.
#[derive(clap::Args)]
pub struct CaseArgs {
    /// The name of the namespace
    #[arg(long)]
    namespace: String,
    /// The name of the subject
    #[arg(long)]
    subject: String,
    /// The memory of the device, in whole GiB
    #[arg(long, value_parser = size::parse)]
    size: Bytes,
}

/// Counts the instructions of all subjects that write descriptors one by one.
pub(super) fn count_all(sample: &mut Sample) -> Result<()> {
    let rebinds = Case::all(1).into_iter().filter(|case| case.bind == BindKind::Rebind);
    let cases = rebinds.flat_map(|case| case.namespace.subjects.iter().map(move |&s| (case, s)));
    let cases: Vec<_> = cases.filter(|(_, subject)| !subject.is_limit()).collect();
    let progress = progress::bar(cases.len() as u64);
    for (case, subject) in cases {
        progress.set_message(format!("{}, instructions", case.name()));
        let count = per_frame(&case, subject).with_context(|| case.name())?;
        sample.add(&case.name(), subject.name(), INSTRUCTIONS, count);
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(())
}

/// Returns the instructions for a frame. Describes devices of two sizes, and divides the difference
/// of the counts by the number of additional frames.
fn per_frame(case: &Case, subject: Subject) -> Result<f64> {
    let count = |gib: u64| {
        let words = ["bench", "memmap-case", "--namespace", case.namespace.name(), "--subject"];
        let words = words.into_iter().chain([subject.name(), "--size"]).map(str::to_owned);
        callgrind::count(&words.chain([format!("{gib}G")]).collect::<Vec<_>>())
    };
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let frames = Bytes::gib(1).frames() as f64;
    Ok((count(2)? - count(1)?) / frames)
}

/// Describes the frames of a device once.
pub(in crate::bench) fn run_case(args: &CaseArgs) -> Result<()> {
    let namespace = NAMESPACES.iter().find(|namespace| namespace.name() == args.namespace);
    let namespace = namespace.context("--namespace")?;
    let subject = Subject::ALL.into_iter().find(|subject| subject.name() == args.subject);
    let case = Case { namespace, bind: BindKind::Rebind, cpus: 1 };
    let range = range(args.size)?;
    let mut memory = Memory::new(usize::try_from(range.frames())?, PageSize::Small)?;
    let fastest = FastestFill { fill: Fill::Ordinary, stores: Stores::best() };
    case.measure(subject.context("--subject")?, fastest, range, memory.slots())?;
    Ok(())
}
