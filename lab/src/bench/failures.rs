//! Peers' cases that failed. The bench goes on with its other cases, and says at its end what failed.

use super::record::{Metric, Sample};
use crate::{out::remark, qemu::Error};
use anyhow::{Result, bail};
use indicatif::ProgressBar;

/// The first line of each failure so far. The other lines are the output of a guest, which the terminal has.
#[derive(Default)]
pub(super) struct Failures(Vec<String>);

impl Failures {
    /// Adds the outcome of a step of a peer. A guest that did not end in time is not a failure: its record
    /// says that it was stopped at the limit.
    pub(super) fn add(
        &mut self,
        outcome: Result<()>,
        step: &PeerStep<'_>,
        sample: &mut Sample,
        progress: &ProgressBar,
    ) {
        let Err(error) = outcome else { return };
        let PeerStep { case, subject, time_limit } = *step;
        let text = format!("{case}, {subject}: {error:#}");
        progress.suspend(|| remark(format_args!("{text}")));
        match (error.downcast_ref(), time_limit) {
            (Some(Error::Hang { .. }), Some((metric, limit))) => {
                sample.add_stopped(case, subject, metric, limit);
            }
            _ => {
                self.0.extend(text.lines().next().map(str::to_owned));
            }
        }
    }

    /// Returns all failures as an error of one line, because a report keeps the last line of a bench that
    /// failed.
    pub(super) fn into_result(self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        bail!(self.0.join("; "))
    }
}

/// What a peer was doing.
pub(super) struct PeerStep<'a> {
    pub(super) case: &'a str,
    pub(super) subject: &'a str,
    /// The metric and the limit at which a guest that hangs was stopped, if the step is timed.
    pub(super) time_limit: Option<(Metric, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::Tail;
    use anyhow::anyhow;
    use std::time::Duration;

    fn step(case: &str) -> PeerStep<'_> {
        PeerStep { case, subject: "linux", time_limit: Some((("time", "s"), 60.0)) }
    }

    fn hang() -> Error {
        Error::Hang {
            awaited: "change of memory".into(),
            wait: Duration::from_secs(60),
            output: Tail(Vec::new()),
        }
    }

    #[test]
    fn failures_of_several_cases_are_one_line() {
        let (mut failures, mut sample) = (Failures::default(), Sample::new("cxl"));
        let progress = ProgressBar::hidden();
        failures.add(Ok(()), &step("1x1G"), &mut sample, &progress);
        failures.add(Err(anyhow!("no memory\nat all")), &step("2x1G"), &mut sample, &progress);
        failures.add(Err(anyhow!("a part")), &step("4x1G"), &mut sample, &progress);
        let text = "2x1G, linux: no memory; 4x1G, linux: a part";
        assert_eq!(failures.into_result().unwrap_err().to_string(), text);
        assert!(sample.records().is_empty());
    }

    #[test]
    fn a_guest_that_hangs_in_a_timed_step_is_recorded_as_stopped() {
        let (mut failures, mut sample) = (Failures::default(), Sample::new("cxl"));
        failures.add(Err(hang().into()), &step("2x1G"), &mut sample, &ProgressBar::hidden());
        failures.into_result().unwrap();
        let records = sample.records();
        assert!(matches!(&records[..], [record] if !record.is_measured() && record.median == 60.0));
    }

    #[test]
    fn a_guest_that_hangs_in_a_counted_step_is_a_failure() {
        let (mut failures, mut sample) = (Failures::default(), Sample::new("cxl"));
        let counted = PeerStep { time_limit: None, ..step("2x1G") };
        failures.add(Err(hang().into()), &counted, &mut sample, &ProgressBar::hidden());
        assert!(failures.into_result().is_err() && sample.records().is_empty());
    }
}
