//! `hotmem bench vm`: measures plugging and unplugging memory in guests under QEMU.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the runs, and the notes below their table |
//! | `args.rs` | the arguments, the default sizes and warm-ups |
//! | `measure.rs` | one guest: boot, warm-up, plug and unplug |
//! | `late_memory.rs` | one guest on a machine without a virtio-mem device |
//! | `memory_in_use.rs` | what happens to memory in use |

mod args;
mod late_memory;
mod measure;
mod memory_in_use;
#[cfg(feature = "report")]
pub(crate) mod section;

pub(super) use args::Args;

use super::{
    compare,
    record::{self, Metric, Record, Sample},
    results,
};
use crate::qemu::Architecture;
use crate::{guest::Policy, linux, progress, size, table::time};
use anyhow::{Context, Result};
use hotmem::Bytes;
use measure::{Bench, INSTRUCTIONS, NOT_CHANGED, TIME};
use memory_in_use::MemoryInUse;

/// The note that is printed if the bench migrates memory in use.
const MIGRATION_NOTE: &str = "migrated: these guests have no warm-up. Their boot memory is larger by \
     the size of the memory that is migrated.";

/// The note that is printed if instructions are counted.
const COUNTING_NOTE: &str = "linux: the resolution of the count is 10 million instructions, and \
     waiting is not counted. hotmem: the resolution is 1000 instructions, and waiting for the device is counted as instructions.";

/// The note that is printed if Linux leaves memory offline.
const LINUX_OFFLINE_NOTE: &str = "linux, offline: the virtio-mem driver of Linux plugs no more memory \
     once 1 GiB is offline. So the bench makes it plug all memory in two large blocks (force_bbm), \
     and the warm-up plugs one of them. The bench computes the plugged memory from the number of \
     memory blocks.";

/// The note that is printed if the guest takes memory into use that the machine had from the start.
const LATE_MEMORY_NOTE: &str = "riscv64: QEMU has no virtio-mem device there. The machine has the memory \
     from the start, and the guest tells its engine of it after boot. The figures are the guest's own, \
     and include no device.";

/// Returns the name of the bench in its records.
const fn name(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "vm",
        Architecture::Aarch64 => "vm-aarch64",
        Architecture::Riscv64 => "vm-riscv64",
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let measure = |sample: &mut Sample| measure_all(args, sample);
    let print = |records: &[Record]| print(args, records);
    results::collect(name(args.arch), args.json.as_deref(), measure, print)
}

/// Measures all cases.
fn measure_all(args: &Args, sample: &mut Sample) -> Result<()> {
    let sizes = args.sizes();
    let mut guests = args.machine.guests(args.arch, &args.guests, &sizes)?;
    sample.set_executor(guests.choose_accel()?.into());
    let mut bench = Bench { args, guests, sample, progress: progress::spinner() };
    for (size, policy) in sizes.iter().flat_map(|&s| args.policies.iter().map(move |&p| (s, p))) {
        for run in 1..=args.runs {
            for &guest in &args.guests {
                let case = format!("{}/{policy}", size::short(size));
                bench.progress.set_message(format!("{case}, {guest}, run {run} of {}", args.runs));
                let measured = match args.arch {
                    Architecture::X86_64 | Architecture::Aarch64 => {
                        bench.measure(guest, policy, size, &case)
                    }
                    Architecture::Riscv64 => bench.measure_late(guest, policy, size, &case),
                };
                measured.with_context(|| format!("{case}, {guest}"))?;
            }
        }
    }
    bench.progress.finish_and_clear();
    Ok(())
}

/// Prints the figures, and explains them.
fn print(args: &Args, records: &[Record]) -> Result<()> {
    record::print(records)?;
    if args.arch == Architecture::Riscv64 {
        return Ok(say!("{LATE_MEMORY_NOTE}")?);
    }
    if args.full_warm_up() != Bytes::ZERO {
        let warm_up = args.full_warm_up();
        say!("Warm-up: each guest first plugged and unplugged {warm_up}, or half of the size.")?;
    }
    if args.touch != Bytes::ZERO && args.used.contains(&MemoryInUse::Migrated) {
        say!("{MIGRATION_NOTE}")?;
    }
    if args.has_linux() {
        say!()?;
        compare::print(records, args.metric(), NOT_CHANGED)?;
        if args.machine.counts_instructions() {
            say!("{COUNTING_NOTE}")?;
        } else {
            say!(
                "The bench notices a change of Linux's memory up to {} late.",
                time(linux::POLL_INTERVAL)
            )?;
        }
        if args.policies.contains(&Policy::Offline) {
            say!("{LINUX_OFFLINE_NOTE}")?;
        }
    }
    Ok(())
}

impl Args {
    /// Returns the metric by which guests are compared.
    fn metric(&self) -> Metric {
        if self.machine.counts_instructions() { INSTRUCTIONS } else { TIME }
    }
}
