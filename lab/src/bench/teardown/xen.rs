//! Measures the cases under Xen, in dom0. The kernel of dom0 is `guest-xen`.

use super::args::{Args, CYCLES};
use crate::{
    bench::record::{Metric, RanOn, Sample},
    xen::{Clock, Figure, MAX_SIZE, Machine, Xpti},
};
use anyhow::Result;
use hotmem::geometry::FRAME_SIZE;
use indicatif::ProgressBar;

pub(super) const INSTRUCTIONS: Metric = ("instructions_per_entry", "instructions");
/// The instructions per entry that the hypervisor executes in hypercalls.
const INSTRUCTIONS_IN_XEN: Metric = ("instructions_per_entry_in_hypercalls", "instructions");
const FLUSHES: Metric = ("flushes", "count");
const HYPERCALLS: Metric = ("hypercalls", "count");
const TRAPS: Metric = ("traps", "count");
pub(super) const FLUSH_INTERRUPTS: Metric = ("flush_interrupts", "count");
/// The dirty bits that were lost in the race.
pub(super) const LOST_DIRTY: Metric = ("lost_dirty", "count");
const RACING_WRITES: Metric = ("racing_writes", "count");
/// The instructions of unmapping, as a share of all instructions of a migration.
pub(super) const UNMAPPING_SHARE: Metric = ("unmapping_share", "%");

/// The prefixes of the cases that change entries in batches.
const BATCH_CASES: [&str; 4] = ["xen-munmap", "xen-protect", "xen-foreign", "xen-migrate"];
/// The prefixes of the cases that change whole tables and address spaces.
const TABLE_CASES: [&str; 3] = ["xen-exit", "xen-unhook", "xen-sparse"];
/// The prefixes of the cases for which the host also counts traps and flushes.
const HOST_COUNTED_CASES: [&str; 3] = ["xen-munmap", "xen-exit", "xen-protect"];
/// The prefix of the cases that are parts of a migration. The figures of a subject's parts follow
/// each other.
const MIGRATION_PREFIX: &str = "xen-migrate-";
/// The number of parts of a migration: mapping, reading and unmapping.
const MIGRATION_PARTS: usize = 3;

/// Measures the requested cases, and adds their figures to `sample`.
pub(super) fn measure(args: &Args, progress: &ProgressBar, sample: &mut Sample) -> Result<()> {
    // Xen runs under TCG only.
    sample.set_executor(RanOn::Tcg);
    let wanted = |prefixes: &[&str], xpti| {
        prefixes.iter().any(|prefix| args.may_want(&format!("{prefix}/{xpti}")))
    };
    for xpti in [Xpti::On, Xpti::Off] {
        let (batched, tables) = (wanted(&BATCH_CASES, xpti), wanted(&TABLE_CASES, xpti));
        if !batched && !tables {
            continue;
        }
        let machine = Machine::find(args.guest_image.as_deref())?;
        let pages = MAX_SIZE.0 / FRAME_SIZE;
        for (clock, runs) in [(Clock::Instructions, 1), (Clock::Cycles, args.runs)] {
            let options = |mode| format!("mode={mode} pages={pages} runs={runs}");
            for batch in args.batches.iter().filter(|_| batched) {
                progress.set_message(format!("Xen, {xpti}, {clock:?}, batches of {batch}"));
                // In mode `bench` the guest flushes after each batch. A flush waits for the other
                // virtual CPUs, so its cycles mainly show when the host schedules these. For this
                // reason cycles are measured in another mode.
                let mode = if clock == Clock::Cycles { "batches" } else { "bench" };
                let options = format!("{} batch={batch}", options(mode));
                let outcome = machine.boot(xpti, clock, &options)?;
                let suffix = format!("{xpti}/batch-{batch}");
                add(args, clock, &outcome.figures, &suffix, sample);
                if clock == Clock::Instructions {
                    add_migrations(args, &outcome.figures, &suffix, sample);
                }
            }
            if tables {
                progress.set_message(format!("Xen, {xpti}, {clock:?}, whole tables"));
                let outcome = machine.boot(xpti, clock, &options("tables"))?;
                add(args, clock, &outcome.figures, &xpti.to_string(), sample);
            }
        }
        if wanted(&HOST_COUNTED_CASES, xpti) {
            progress.set_message(format!("Xen, {xpti}, interrupts"));
            for counts in machine.interrupts(xpti)? {
                let case = format!("{}/{xpti}/tables-{}", counts.case, counts.tables);
                if args.wants(&case) {
                    sample.add(&case, &counts.subject, TRAPS, count(counts.traps));
                    sample.add(&case, &counts.subject, FLUSH_INTERRUPTS, count(counts.flushes));
                }
            }
        }
        if args.writes > 0 && args.wants(&format!("xen-munmap/{xpti}")) {
            progress.set_message(format!("Xen, {xpti}, races"));
            let options = format!("mode=race writes={}", args.writes);
            let races = machine.boot(xpti, Clock::Cycles, &options)?.races;
            for race in &races {
                let case = format!("xen-munmap/{xpti}/batch-{}", race.batch);
                sample.add(&case, &race.subject, LOST_DIRTY, count(race.lost));
                sample.add(&case, &race.subject, RACING_WRITES, count(race.writes));
            }
        }
    }
    Ok(())
}

/// Adds the figures of one boot of Xen to `sample`.
fn add(args: &Args, clock: Clock, figures: &[Figure], suffix: &str, sample: &mut Sample) {
    for figure in figures {
        let (case, subject) = (format!("{}/{suffix}", figure.case), figure.subject.as_str());
        if !args.wants(&case) {
            continue;
        }
        if clock == Clock::Cycles {
            sample.add(&case, subject, CYCLES, figure.per_entry());
            continue;
        }
        sample.add(&case, subject, INSTRUCTIONS, figure.per_entry());
        sample.add(&case, subject, INSTRUCTIONS_IN_XEN, figure.per_entry_in_xen());
        sample.add(&case, subject, HYPERCALLS, count(figure.hypercalls));
        sample.add(&case, subject, FLUSHES, count(figure.flushes));
    }
}

/// Adds, for each migration, the share of unmapping and the instructions for each entry. The
/// figures are of [`Clock::Instructions`].
fn add_migrations(args: &Args, figures: &[Figure], suffix: &str, sample: &mut Sample) {
    let case = format!("xen-migrate/{suffix}");
    let parts: Vec<_> = figures.iter().filter(|f| f.case.starts_with(MIGRATION_PREFIX)).collect();
    for parts in parts.as_chunks::<MIGRATION_PARTS>().0 {
        let [_, _, unmap] = parts;
        let all: u64 = parts.iter().map(|part| part.cycles).sum();
        if args.wants(&case) {
            let share = 100.0 * count(unmap.cycles) / count(all.max(1));
            sample.add(&case, &unmap.subject, UNMAPPING_SHARE, share);
            let per_entry = count(all) / count(unmap.entries.max(1));
            sample.add(&case, &unmap.subject, INSTRUCTIONS, per_entry);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "people read the figure, and need no more digits")]
fn count(count: u64) -> f64 {
    count as f64
}
