//! `hotmem bench contiguity`: measures adding and removing blocks of a zone while the bench queries
//! after each block whether the zone is contiguous.
//!
//! The machine is hosted, and nothing accesses its memory. The bench adds and removes memory in
//! blocks of 128 MiB. The zone grows without a hole (`plug`), or by every second block first and
//! then by the others (`plug-gaps`). The zone shrinks from the top down (`unplug`) or from the
//! middle outwards (`unplug-middle`). In `unplug-ends` the block in the middle is removed first,
//! and then the blocks at the two ends in turn. So each of these is at an end of a zone that is not
//! contiguous.
//!
//! The baseline, `before` in the records, differs from `hotmem` only in how it finds the answer. As
//! Linux does, it walks the zone's span pageblock by pageblock and stops at the first that is not in
//! the zone. If the removed block was at an end of the span, the baseline first walks inwards to the
//! next pageblock of the zone.
//!
//! A probe is a read that is counted. The baseline counts each pageblock that it reads. For
//! `hotmem`, the engine (feature `probes`) counts each read of a zone's state, of a section's words
//! or of a word of a tree. The probes include the reads that update the answer when a block is
//! added or removed, and the reads of a query.
//!
//! When all memory is added, the bench scans the zone for how much of each pageblock is in use
//! (`scan`). `hotmem` relies on the zone's contiguity. The baseline checks whether each pageblock is
//! present, as Linux does in a zone that is not contiguous. The memory lies on a separate node.
//! This corresponds to a guest whose boot memory is all below 4 GiB, where hot-added memory is in a
//! separate zone.
//!
//! In the cases `pc` the memory lies on the node of the boot memory. The 2 GiB of boot memory are
//! below 4 GiB, and not in the zone that grows. This is the machine on which a linux-mm patch by
//! Yuan Liu (March 2026) measured the updates of `zone->contiguous`.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the arguments and the runs |
//! | `steps.rs` | the measured steps and the orders of their blocks |
//! | `queried_zone.rs` | the zone, and how each subject finds the answer |
//! | `growth.rs` | the exponents of time and probes |

mod growth;
mod queried_zone;
#[cfg(feature = "report")]
pub(crate) mod section;
mod steps;
#[cfg(test)]
mod tests;

use super::{
    record::{self, Record, Sample},
    results,
    subject::Subject,
};
use crate::{guest::Policy, progress, size};
use anyhow::{Context, Result, bail};
use growth::{PROBES, TIME, add_growth};
use hotmem::{Bytes, OnlineType};
use std::path::PathBuf;
use steps::{BLOCK, DeviceNode, MachineShape, STEPS, measure};

/// The name of the bench in its records.
const NAME: &str = "contiguity";

/// Arguments of `hotmem bench contiguity`.
#[derive(clap::Args)]
pub struct Args {
    /// The sizes of memory to plug, scan and unplug. The cases with 256G on a PC and with 2 and 4
    /// devices of 128G are run as well
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse,
          default_value = "64G,256G,512G,4T,64T")]
    sizes: Vec<Bytes>,
    /// Skip the cases with 256G on a PC and with 2 and 4 devices
    #[arg(long)]
    only_sizes: bool,
    /// The largest size for the subject `before`, whose time grows with the square of the size
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512G")]
    before_up_to: Bytes,
    /// Policies by which memory is brought online
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "offline,online,online_movable"
    )]
    policies: Vec<Policy>,
    /// The number of runs for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Returns the online type that memory gets by a policy if its zone was empty before.
fn online_type(policy: Policy) -> OnlineType {
    match policy {
        Policy::Offline => OnlineType::Offline,
        Policy::Online | Policy::OnlineKernel => OnlineType::Kernel,
        Policy::OnlineMovable => OnlineType::Movable,
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let measure = |sample: &mut Sample| measure_all(args, sample);
    let print = |records: &[Record]| Ok(record::print(records)?);
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures all cases.
fn measure_all(args: &Args, sample: &mut Sample) -> Result<()> {
    if let Some(odd) = args.sizes.iter().find(|size| size.0 == 0 || size.frames() % BLOCK != 0) {
        bail!("--sizes {odd} must be whole blocks of 128 MiB, and not 0");
    }
    let on_separate_node =
        |devices, device_size| MachineShape { devices, device_size, node: DeviceNode::Separate };
    let vm = args.sizes.iter().map(|&size| (size::short(size), on_separate_node(1, size)));
    let pc =
        MachineShape { node: DeviceNode::OfBootMemory, ..on_separate_node(1, Bytes::gib(256)) };
    let several =
        [2, 4].map(|n| (format!("devices-{n}x128G"), on_separate_node(n, Bytes::gib(128))));
    let fixed = [("pc-256G".to_owned(), pc)].into_iter().chain(several);
    let fixed = fixed.filter(|_| !args.only_sizes);
    let shapes: Vec<_> = vm.chain(fixed).collect();
    let measurements = shapes.len() * args.policies.len() * args.runs as usize;
    let progress = progress::bar(measurements as u64);
    for (name, shape) in &shapes {
        for &policy in &args.policies {
            for run in 0..args.runs {
                // Another subject is first in each run.
                let mut subjects = [Subject::Baseline, Subject::Hotmem];
                subjects.rotate_left(run as usize % 2);
                for subject in subjects {
                    let size = Bytes(shape.device_size.0.saturating_mul(shape.devices));
                    if subject == Subject::Baseline && size > args.before_up_to {
                        continue;
                    }
                    let measured = measure(*shape, online_type(policy), subject)
                        .with_context(|| format!("{name}/{policy} of {}", subject.name()))?;
                    for (step, (seconds, probes)) in STEPS.into_iter().zip(measured) {
                        let case = format!("{name}/{policy}/{step}");
                        sample.add(&case, subject.name(), TIME, seconds);
                        #[allow(clippy::cast_precision_loss, reason = "for people")]
                        sample.add(&case, subject.name(), PROBES, probes as f64);
                    }
                }
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    add_growth(sample, &args.sizes, &args.policies);
    Ok(())
}
