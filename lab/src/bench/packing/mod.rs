//! `hotmem bench packing`: counts how many guests fit on a host, if each uses its memory for a
//! while and then idles.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | measures the kinds of guests one after the other |
//! | `args.rs` | the arguments |
//! | `subject.rs` | the kinds of guests |
//! | `pack.rs` | one kind: guest after guest, until the host is full |
//! | `cgroup.rs` | the memory cgroup that is the host |

mod args;
mod cgroup;
mod pack;
mod subject;

pub(super) use args::Args;

use super::record::{self, Record, Sample};
use super::results;
use crate::qemu::Architecture;
use anyhow::{Result, bail};
use pack::Bench;
#[cfg(feature = "report")]
pub(super) use pack::{GUESTS, IDLE, RESIDENT_AFTER_FREE, SETTLE_TIME, TOTAL_HELD};
use subject::{Subject, subjects};

const NOTE: &str = "A host is a memory cgroup. For a simulated host, the bench limits the sum of \
     the memory that the guests' processes hold. hotmem-64B writes a descriptor of 64 bytes for \
     each frame, as linux does. hotmem writes none. hotmem-no-reports is hotmem without reports.";

/// Returns the name of the bench in its records.
pub(super) const fn name(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "packing",
        Architecture::Aarch64 => "packing-aarch64",
        Architecture::Riscv64 => "packing-riscv64",
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    if args.guest > args.host {
        bail!("--guest {} is more than the host's {} of memory", args.guest, args.host);
    }
    if args.touch.1 > args.guest {
        bail!(
            "--touch goes up to {}, which is more than a guest's {} of memory",
            args.touch.1,
            args.guest
        );
    }
    let measure = |sample: &mut Sample| {
        pack_each(subjects(&args.guests), |subject| {
            let mut guests =
                args.accel_and_image.guests(args.arch, &[subject.guest()], args.guest)?;
            sample.set_executor(guests.choose_accel()?.into());
            Bench { args, guests, sample }.pack(subject)
        })
    };
    let print = |records: &[Record]| {
        record::print(records)?;
        Ok(say!("{NOTE}")?)
    };
    results::collect(name(args.arch), args.json.as_deref(), measure, print)
}

/// Packs guests of each subject, even if others fail.
///
/// # Errors
/// The subjects that failed, and the reasons. Figures that were recorded before a failure stay
/// recorded.
fn pack_each(subjects: Vec<Subject>, mut pack: impl FnMut(Subject) -> Result<()>) -> Result<()> {
    let failures = subjects.into_iter().filter_map(|subject| {
        let error = pack(subject).err()?;
        Some(format!("packing {}: {error:#}", subject.name()))
    });
    let failures: Vec<_> = failures.collect();
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_subject_is_named_and_the_others_are_packed() {
        let (mut packed, all) =
            (Vec::new(), || vec![Subject::Linux, Subject::HotmemWithDescriptors]);
        let failed = pack_each(all(), |subject| {
            packed.push(subject.name());
            if subject == Subject::Linux { bail!("no Linux") } else { Ok(()) }
        });
        assert_eq!(packed, ["linux", "hotmem-64B"]);
        assert_eq!(failed.unwrap_err().to_string(), "packing linux: no Linux");
        assert!(pack_each(all(), |_| Ok(())).is_ok());
        let failed = pack_each(all(), |_| bail!("killed")).unwrap_err().to_string();
        assert_eq!(failed, "packing linux: killed; packing hotmem-64B: killed");
    }
}
