//! Allocates, clears and frees frames, as a kernel does under will-it-scale's `page_fault1`, while
//! memory that stays free is reported to the host and faulted in again.
//!
//! Threads work in bursts of several rounds. Between bursts a thread rests for longer than memory
//! stays free before it is reported. Threads take turns, so that one thread's memory is reported
//! while another thread works. Only bursts are timed, and the first burst is not. From the end of
//! the first burst to the end of the last, the bench counts the memory that was reported and that
//! was used again.

pub(super) mod guest;
pub(super) mod hosted;

use super::subject::Subject;
use crate::bench::record::{Metric, Sample};
use anyhow::{Result, ensure};
use hotmem::Bytes;
use std::{fmt, time::Duration};

/// The memory that a thread has in use at the end of each round.
pub(super) const WORKING_SET: Bytes = Bytes::mib(128);
/// The number of nodes. Consecutive threads use the nodes in turn.
const NODES: u64 = 2;

/// The number of frames that all threads together allocate, clear and free in a second of bursts.
pub(super) const OPERATION_RATE: Metric = ("rate", "ops/s");
/// The amount of memory that was reported to the host.
const REPORTED: Metric = ("reported", "MiB");
/// The amount of reported memory that was used again.
const REFAULTED: Metric = ("refaulted", "MiB");

/// The number of threads, and what they do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) threads: u16,
    /// The number of working sets that are allocated and freed in a burst.
    pub(super) rounds: u32,
    /// The number of bursts that are timed.
    pub(super) bursts: u32,
    /// How long a thread rests between two bursts.
    pub(super) rest_time: Duration,
}

/// The machine that runs the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Machine {
    /// A hosted machine in this process, which reports memory by `madvise`
    Hosted,
    /// The reference guest under QEMU with a balloon
    Guest,
}

/// The results of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BurstCosts {
    /// The number of frames that all threads have allocated in their timed bursts.
    pub(super) frames: u64,
    /// The sum of the times of all timed bursts.
    pub(super) burst_time: Duration,
    pub(super) threads: u16,
    /// The amount of memory that was reported between the first and the last burst, including the
    /// rests.
    pub(super) reported: Bytes,
    /// The amount of reported memory that was used again in the same time.
    pub(super) refaulted: Bytes,
}

impl Plan {
    /// Returns the case's name, from general to specific: `page_fault1/2/guest/rounds-16`.
    pub(super) fn name(self, machine: Machine) -> String {
        format!("page_fault1/{}/{machine}/rounds-{}", self.threads, self.rounds)
    }

    /// Returns the size of a node: one and a half times the memory that its threads use, and some
    /// memory for the kernel.
    fn node_size(self) -> Bytes {
        let threads = u64::from(self.threads).div_ceil(NODES);
        Bytes(Bytes::mib(256).0 + threads * (WORKING_SET.0 + WORKING_SET.0 / 2))
    }

    /// Returns the least memory that a valid run reports: an eighth of the working sets of all
    /// timed bursts. The actual amount depends on when the reporter ran, and on how much it keeps.
    fn min_reported(self) -> Bytes {
        Bytes(u64::from(self.threads) * u64::from(self.bursts) * WORKING_SET.0 / 8)
    }

    /// Returns the number of frames that all threads allocate in their timed bursts.
    pub(super) fn frames(self) -> u64 {
        let rounds = u64::from(self.rounds) * u64::from(self.bursts);
        u64::from(self.threads) * rounds * WORKING_SET.frames()
    }
}

impl BurstCosts {
    /// Returns the number of frames that all threads together allocate and free in a second.
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    pub(super) fn rate(&self) -> f64 {
        self.frames as f64 / self.burst_time.as_secs_f64() * f64::from(self.threads)
    }

    /// Checks that the run measured reporting. With reporting, at least [`Plan::min_reported`]
    /// must have been reported and used again. Without reporting, no memory may have been.
    ///
    /// # Errors
    /// The condition that does not hold.
    pub(super) fn check(&self, subject: Subject, plan: Plan) -> Result<()> {
        ensure!(
            self.frames == plan.frames(),
            "the threads allocated {} frames instead of {}",
            self.frames,
            plan.frames()
        );
        let min = if subject == Subject::Hotmem { plan.min_reported() } else { Bytes::ZERO };
        for (event, bytes) in [("reported", self.reported), ("used again", self.refaulted)] {
            ensure!(
                bytes >= min,
                "only {bytes} were {event} during the run, which is less than {min}"
            );
            ensure!(
                subject == Subject::Hotmem || bytes == Bytes::ZERO,
                "{bytes} were {event} without reporting"
            );
        }
        Ok(())
    }

    /// Adds the figures of one run to the sample.
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    pub(super) fn record(&self, case: &str, subject: Subject, sample: &mut Sample) {
        let subject = subject.to_string();
        sample.add(case, &subject, OPERATION_RATE, self.rate());
        for (metric, bytes) in [(REPORTED, self.reported), (REFAULTED, self.refaulted)] {
            sample.add(case, &subject, metric, bytes.0 as f64 / f64::from(1 << 20));
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Machine::Hosted => "hosted",
            Machine::Guest => "guest",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan =
        Plan { threads: 2, rounds: 3, bursts: 4, rest_time: Duration::from_millis(700) };

    /// Returns the costs of a run of [`PLAN`] that reports the least memory that is valid.
    fn valid_costs() -> BurstCosts {
        let (reported, refaulted) = (PLAN.min_reported(), PLAN.min_reported());
        let burst_time = Duration::from_secs(4);
        BurstCosts { frames: PLAN.frames(), burst_time, threads: 2, reported, refaulted }
    }

    #[test]
    fn a_run_that_reports_or_allocates_too_little_is_an_error() {
        valid_costs().check(Subject::Hotmem, PLAN).unwrap();
        assert_eq!(PLAN.min_reported(), WORKING_SET);
        let less = Bytes(PLAN.min_reported().0 - 1);
        assert!(
            BurstCosts { reported: less, ..valid_costs() }.check(Subject::Hotmem, PLAN).is_err()
        );
        assert!(
            BurstCosts { refaulted: less, ..valid_costs() }.check(Subject::Hotmem, PLAN).is_err()
        );
        assert!(valid_costs().check(Subject::NoReporting, PLAN).is_err());
        let without_reports =
            BurstCosts { reported: Bytes::ZERO, refaulted: Bytes::ZERO, ..valid_costs() };
        without_reports.check(Subject::NoReporting, PLAN).unwrap();
        let more_rounds = Plan { rounds: 4, ..PLAN };
        assert!(valid_costs().check(Subject::Hotmem, more_rounds).is_err());
    }

    #[test]
    fn the_rate_is_that_of_all_threads_during_their_bursts() {
        assert_eq!(PLAN.frames(), 2 * 3 * 4 * 32768);
        assert_eq!(valid_costs().rate(), 2.0 * f64::from(2 * 3 * 4 * 32768) / 4.0);
    }

    #[test]
    fn figures_have_their_case_and_subject() {
        let mut sample = Sample::new("reporting");
        valid_costs().record(&PLAN.name(Machine::Guest), Subject::Hotmem, &mut sample);
        valid_costs().record(&PLAN.name(Machine::Hosted), Subject::NoReporting, &mut sample);
        let records = sample.records();
        let summaries: Vec<_> = records
            .iter()
            .map(|r| format!("{} {} {} {}", r.case, r.subject, r.metric, r.unit))
            .collect();
        let [guest, hosted] = [
            "page_fault1/2/guest/rounds-3 hotmem",
            "page_fault1/2/hosted/rounds-3 hotmem-no-reports",
        ];
        let metrics = ["rate ops/s", "reported MiB", "refaulted MiB"];
        let expected = [guest, hosted].map(|case| metrics.map(|metric| format!("{case} {metric}")));
        assert_eq!(summaries, expected.concat());
    }
}
