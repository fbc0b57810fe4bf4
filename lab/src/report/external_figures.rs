//! Figures of peers that no command of this project measures, from a file that is written by hand.

use super::file::BenchRun;
use crate::bench::record::Record;
use anyhow::{Context, Result};
use serde::Deserialize;

const LLFREE: &str = include_str!("../../../docs/llfree.json");

/// Figures of a peer that were measured elsewhere, and the way in which they were measured.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExternalFigures {
    pub(super) subject: String,
    pub(super) version: String,
    pub(super) date: String,
    pub(super) machine: String,
    pub(super) commands: Vec<String>,
    /// How the peer's measurement differs from that of the other subjects.
    #[serde(rename = "differs")]
    pub(super) differences: String,
    figures: Vec<Figure>,
}

/// A figure of a case of `hotmem bench`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    /// The bench, metric and unit. The default is nanoseconds for an operation of `hotmem bench
    /// frames`.
    #[serde(default, rename = "of")]
    measured: Measured,
    case: String,
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

/// The bench, metric and unit of a figure.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    bench: String,
    metric: String,
    unit: String,
}

impl Default for Measured {
    fn default() -> Measured {
        let [bench, metric, unit] = ["frames", "time_per_op", "ns"].map(String::from);
        Measured { bench, metric, unit }
    }
}

impl ExternalFigures {
    /// Returns the figures of LLFree.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn llfree() -> Result<ExternalFigures> {
        serde_json::from_str(LLFREE).context("docs/llfree.json")
    }

    /// Returns the figures as a [`BenchRun`], as if a bench of this project had measured them.
    pub(super) fn as_step(&self) -> BenchRun {
        let records = self.figures.iter().map(|figure| {
            let Measured { bench, metric, unit } = figure.measured.clone();
            Record {
                bench: bench.into(),
                case: figure.case.clone(),
                subject: self.subject.clone(),
                ran_on: crate::bench::record::RanOn::Process,
                metric: metric.into(),
                unit: unit.into(),
                median: figure.median,
                min: figure.min,
                max: figure.max,
                runs: figure.runs,
            }
        });
        let records = records.collect();
        BenchRun {
            step: "by hand".into(),
            command: self.commands.join("; "),
            visits: 1,
            seconds: 0.0,
            records,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llfrees_figures_name_their_version_date_and_commands() {
        let llfree = ExternalFigures::llfree().unwrap();
        assert!(llfree.version.contains("441c8d1") && llfree.date.len() == 10);
        assert!(llfree.commands.len() > 1 && !llfree.machine.is_empty());
        let bench_run = llfree.as_step();
        assert!(bench_run.records.iter().all(|r| r.min <= r.median && r.median <= r.max));
        assert!(bench_run.records.len() > 3);
    }

    #[test]
    fn a_figure_can_name_another_bench() {
        let values = r#""median": 90.5, "min": 90, "max": 91, "runs": 3"#;
        let of = r#""bench": "fragmentation", "metric": "free_in_whole_pageblocks", "unit": "%""#;
        let figures = format!(
            r#"[{{"case": "4G/1cpu", "of": {{{of}}}, {values}}}, {{"case": "1G/pair", {values}}}]"#
        );
        let figures: Vec<Figure> = serde_json::from_str(&figures).unwrap();
        let llfree = ExternalFigures { figures, ..ExternalFigures::llfree().unwrap() };
        let records = llfree.as_step().records;
        assert!(records[0].has_metric(("free_in_whole_pageblocks", "%")));
        assert_eq!((&*records[0].bench, &*records[1].bench), ("fragmentation", "frames"));
        assert!(records[1].has_metric(("time_per_op", "ns")));
    }
}
