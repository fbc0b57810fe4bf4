//! Figures of peers that no command of this project measures, from a file that is kept by hand.

use super::file::Done;
use crate::bench::record::Record;
use anyhow::{Context, Result};
use serde::Deserialize;

const LLFREE: &str = include_str!("../../../docs/llfree.json");

/// A peer, how it was measured, and its figures.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ByHand {
    pub(super) subject: String,
    pub(super) version: String,
    pub(super) date: String,
    pub(super) machine: String,
    pub(super) commands: Vec<String>,
    pub(super) differs: String,
    figures: Vec<Figure>,
}

/// Nanoseconds for an operation, in a case of `hotmem bench frames`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    case: String,
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

impl ByHand {
    /// Returns LLFree's.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn llfree() -> Result<ByHand> {
        serde_json::from_str(LLFREE).context("docs/llfree.json")
    }

    /// Returns the figures as a step that was done elsewhere.
    pub(super) fn done(&self) -> Done {
        let records = self.figures.iter().map(|figure| Record {
            bench: "frames".into(),
            case: figure.case.clone(),
            subject: self.subject.clone(),
            ran_on: crate::bench::record::RanOn::Process,
            metric: "time_per_op".into(),
            unit: "ns".into(),
            median: figure.median,
            min: figure.min,
            max: figure.max,
            runs: figure.runs,
        });
        let records = records.collect();
        Done { step: "by hand".into(), command: self.commands.join("; "), seconds: 0.0, records }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llfrees_figures_name_their_version_date_and_commands() {
        let llfree = ByHand::llfree().unwrap();
        assert!(llfree.version.contains("441c8d1") && llfree.date.len() == 10);
        assert!(llfree.commands.len() > 1 && !llfree.machine.is_empty());
        let done = llfree.done();
        assert!(done.records.iter().all(|r| r.min <= r.median && r.median <= r.max));
        assert!(done.records.len() > 3);
    }
}
