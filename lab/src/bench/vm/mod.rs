//! `hotmem bench vm`: measures plugging and unplugging memory in guests under QEMU.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the runs, and the notes below their table |
//! | `args.rs` | the arguments, the default sizes and warm-ups |
//! | `measure.rs` | one guest: boot, warm-up, plug and unplug |
//! | `used.rs` | what happens to memory in use |

mod args;
mod measure;
mod used;

pub(super) use args::Args;

use super::{
    compare,
    record::{self, Metric, Sample},
};
use crate::{guest::Policy, linux, progress, size, table::time};
use anyhow::{Context, Result};
use hotmem::Bytes;
use measure::{Bench, INSTRUCTIONS, LEFT, TIME};
use used::Used;

/// The note that is printed if memory in use is migrated.
const MIGRATED: &str = "migrated: without a warm-up, in guests that have as much more memory at \
     boot for it to go to.";

/// The note that is printed if instructions are counted.
const COUNTING: &str = "linux: to 10 million, without the time that it waited. hotmem: to 1000, \
     the time that it waited for the device counted as instructions.";

/// The note that is printed if Linux leaves memory offline.
const LINUX_OFFLINE: &str = "linux, offline: its virtio-mem driver would wait for somebody to bring \
     memory online as soon as 1 GiB is not, so it takes all in two blocks (force_bbm); guests are \
     warmed up with one of them; what is there is told by the number of memory blocks.";

pub(super) fn run(args: &Args) -> Result<()> {
    let sizes = args.sizes();
    let mut guests = args.machine.guests(&args.guests, &sizes)?;
    let mut sample = Sample::new("vm");
    sample.ran_on(guests.choose_accel()?.into());
    let mut bench = Bench { args, guests, sample, progress: progress::spinner() };
    for (size, policy) in sizes.iter().flat_map(|&s| args.policies.iter().map(move |&p| (s, p))) {
        for run in 1..=args.runs {
            for &guest in &args.guests {
                let case = format!("{}/{policy}", size::short(size));
                bench.progress.set_message(format!("{case}, {guest}, run {run} of {}", args.runs));
                let measured = bench.measure(guest, policy, size, &case);
                measured.with_context(|| format!("{case}, {guest}"))?;
            }
        }
    }
    bench.progress.finish_and_clear();
    let records = bench.sample.records();
    record::print(&records)?;
    if args.wanted_warm_up() != Bytes::ZERO {
        let warm_up = args.wanted_warm_up();
        say!("Each guest had been given and relieved of {warm_up} before, or half of the size.")?;
    }
    if args.touch != Bytes::ZERO && args.used.contains(&Used::Migrated) {
        say!("{MIGRATED}")?;
    }
    if args.is_beside_linux() {
        say!()?;
        compare::print(&records, args.metric(), LEFT)?;
        if args.machine.counts_instructions() {
            say!("{COUNTING}")?;
        } else {
            say!("A change of Linux's memory is seen up to {} late.", time(linux::LOOKS_EVERY))?;
        }
        if args.policies.contains(&Policy::Offline) {
            say!("{LINUX_OFFLINE}")?;
        }
    }
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

impl Args {
    /// Returns the metric by which guests are compared.
    fn metric(&self) -> Metric {
        if self.machine.counts_instructions() { INSTRUCTIONS } else { TIME }
    }
}
