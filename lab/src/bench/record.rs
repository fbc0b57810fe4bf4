//! Collects the results of all benches in one form, prints them, and writes them as JSON.

use crate::out::OutputError;
use crate::qemu::Accel;
use crate::table::{Groups, figures, time};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap, fmt, path::Path, time::Duration};

/// The name of a measured quantity, and its unit.
pub type Metric = (&'static str, &'static str);

/// The suffix of a subject whose runs were stopped at a limit; their values are that limit.
const STOPPED_SUFFIX: &str = " (not done)";

/// The suffix of a subject that cannot do the case; it has no values.
const CANNOT_SUFFIX: &str = " (cannot)";

/// What executed the instructions that were measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RanOn {
    /// The bench's own process.
    #[default]
    Process,
    /// A guest, by QEMU's translator.
    Tcg,
    /// A guest, by the host's processor.
    Kvm,
}

/// The result of one measurement: the values that several runs of a bench have measured of one
/// quantity. [`subject`](Self::subject) is what was measured, and [`case`](Self::case) the
/// conditions.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The name of the bench, such as `vm`.
    pub bench: Cow<'static, str>,
    /// The conditions, from general to specific, such as `64G/online_movable/plug`.
    pub case: String,
    /// What was measured: `hotmem`, or a peer such as `linux`. The suffix ` (not done)` means that
    /// the runs were stopped at a limit, and that the values are this limit. The suffix ` (cannot)`
    /// means that the peer cannot do the case, and that the values are 0.
    pub subject: String,
    /// What executed the measured instructions.
    pub ran_on: RanOn,
    /// The measured quantity, such as `time`.
    pub metric: Cow<'static, str>,
    /// The unit of the values, such as `s`.
    pub unit: Cow<'static, str>,
    /// The median of the values.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The number of runs.
    pub runs: usize,
}

impl Record {
    /// Returns whether the record has this metric and unit.
    #[must_use]
    pub fn has_metric(&self, (metric, unit): Metric) -> bool {
        self.metric == metric && self.unit == unit
    }

    /// Returns whether both records have the same bench, case, subject, metric, unit and executor.
    #[must_use]
    pub fn has_same_key(&self, other: &Record) -> bool {
        let key = |r: &Record| {
            (r.bench.clone(), r.case.clone(), r.subject.clone(), r.metric.clone(), r.unit.clone())
        };
        key(self) == key(other) && self.ran_on == other.ran_on
    }

    /// Returns the subject without the suffix that says that its values were not measured.
    #[must_use]
    pub fn subject_name(&self) -> &str {
        let suffixes = [STOPPED_SUFFIX, CANNOT_SUFFIX];
        suffixes.iter().find_map(|s| self.subject.strip_suffix(s)).unwrap_or(&self.subject)
    }

    /// Returns whether the values were measured. If not, they are the limit at which the runs were
    /// stopped, or the peer cannot do the case.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.subject_name() == self.subject
    }

    /// Returns whether the subject can do the case. If not, the record has no values.
    #[must_use]
    pub fn can_do_the_case(&self) -> bool {
        !self.subject.ends_with(CANNOT_SUFFIX)
    }

    /// Formats a value of this metric with its unit. If the runs were stopped, `> ` precedes it. If
    /// the peer cannot do the case, returns `cannot`.
    #[must_use]
    pub fn show(&self, value: f64) -> String {
        if !self.can_do_the_case() {
            return "cannot".into();
        }
        let value = match &*self.unit {
            "s" => time(Duration::try_from_secs_f64(value).unwrap_or_default()),
            "count" => figures(value),
            unit => format!("{} {unit}", figures(value)),
        };
        if self.is_measured() { value } else { format!("> {value}") }
    }
}

impl From<Accel> for RanOn {
    fn from(accel: Accel) -> RanOn {
        match accel {
            Accel::Tcg => RanOn::Tcg,
            Accel::Kvm => RanOn::Kvm,
        }
    }
}

impl fmt::Display for RanOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RanOn::Process => "process",
            RanOn::Tcg => "TCG",
            RanOn::Kvm => "KVM",
        })
    }
}

/// The values of runs, grouped by their keys in the order in which the keys first appear.
pub struct Sample {
    bench: &'static str,
    ran_on: RanOn,
    keys: Vec<Key>,
    values: BTreeMap<Key, Vec<f64>>,
}

/// What the values of a record have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    case: String,
    subject: String,
    ran_on: RanOn,
    metric: &'static str,
    unit: &'static str,
}

impl Sample {
    /// Makes a sample without runs. Runs count as executed by this process until
    /// [`Sample::set_executor`] is called.
    #[must_use]
    pub fn new(bench: &'static str) -> Sample {
        Sample { bench, ran_on: RanOn::Process, keys: Vec::new(), values: BTreeMap::new() }
    }

    /// Sets what executes the runs that are added after this call.
    pub fn set_executor(&mut self, ran_on: RanOn) {
        self.ran_on = ran_on;
    }

    /// Adds a run that was stopped at `limit`.
    pub fn add_stopped(&mut self, case: &str, subject: &str, metric: Metric, limit: f64) {
        self.add(case, &format!("{subject}{STOPPED_SUFFIX}"), metric, limit);
    }

    /// Adds that a subject cannot do a case.
    pub fn add_cannot(&mut self, case: &str, subject: &str, metric: Metric) {
        self.add(case, &format!("{subject}{CANNOT_SUFFIX}"), metric, 0.0);
    }

    /// Adds the value of one run.
    pub fn add(&mut self, case: &str, subject: &str, metric: Metric, value: f64) {
        let (metric, unit) = metric;
        let ran_on = self.ran_on;
        let key = Key { case: case.into(), subject: subject.into(), ran_on, metric, unit };
        if !self.values.contains_key(&key) {
            self.keys.push(key.clone());
        }
        self.values.entry(key).or_default().push(value);
    }

    /// Returns a record for each key.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let record = |key: &Key| {
            let mut values = self.values.get(key)?.clone();
            values.sort_by(f64::total_cmp);
            let (&min, &max) = (values.first()?, values.last()?);
            let Key { case, subject, ran_on, metric, unit } = key.clone();
            let (median, runs) = (median(&values), values.len());
            let [bench, metric, unit] = [self.bench, metric, unit].map(Cow::Borrowed);
            let record =
                Record { bench, case, subject, ran_on, metric, unit, median, min, max, runs };
            Some(record)
        };
        self.keys.iter().filter_map(record).collect()
    }
}

/// Returns the median. The values must be sorted, and there must be at least one.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// Prints the records: for each case its metrics, with the subjects of a metric one below the other.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(records: &[Record]) -> Result<(), OutputError> {
    let mut groups = Groups::new(&["metric", "subject", "median", "min", "max", "runs"], 2);
    let case = |record: &Record| (record.case.clone(), record.ran_on);
    let mut left: Vec<&Record> = records.iter().collect();
    while let Some(&first) = left.first() {
        let (in_case, others): (Vec<_>, _) = left.iter().partition(|r| case(r) == case(first));
        left = others;
        groups.begin(format!("{}, {}", first.case, first.ran_on));
        print_case(&mut groups, in_case);
    }
    crate::out::write(format_args!("{groups}"))
}

/// Adds the rows of the records of one case.
fn print_case(groups: &mut Groups, mut left: Vec<&Record>) {
    while let Some(&first) = left.first() {
        let (of_metric, others): (Vec<_>, _) =
            left.iter().partition(|r| (&r.metric, &r.unit) == (&first.metric, &first.unit));
        left = others;
        for record in of_metric {
            groups.add_row([
                record.metric.to_string(),
                record.subject.clone(),
                record.show(record.median),
                record.show(record.min),
                record.show(record.max),
                record.runs.to_string(),
            ]);
        }
    }
}

/// Writes the records to `path` as a JSON array.
///
/// # Errors
/// The file cannot be written.
pub fn write_json(records: &[Record], path: &Path) -> Result<()> {
    let json = serde_json::to_string_pretty(records)?;
    std::fs::write(path, json + "\n").with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_medians_and_are_in_the_order_in_which_cases_were_added() {
        let mut sample = Sample::new("vm");
        for value in [3.0, 1.0, 2.0] {
            sample.add("64G/plug", "hotmem", ("time", "s"), value);
            sample.add("16G/plug", "hotmem", ("requests", "count"), 1.0);
        }
        sample.add("64G/plug", "hotmem", ("time", "s"), 4.0);
        let records = sample.records();
        let summaries: Vec<_> =
            records.iter().map(|r| (r.case.as_str(), r.median, r.min, r.max, r.runs)).collect();
        assert_eq!(summaries, [("64G/plug", 2.5, 1.0, 4.0, 4), ("16G/plug", 1.0, 1.0, 1.0, 3)]);
    }

    #[test]
    fn runs_that_reached_a_limit_are_separate_figures() {
        let mut sample = Sample::new("vm");
        sample.add("64G/unplug", "linux", ("time", "s"), 55.0);
        sample.add_stopped("64G/unplug", "linux", ("time", "s"), 60.0);
        let records = sample.records();
        let summaries: Vec<_> =
            records.iter().map(|r| (r.subject.as_str(), r.subject_name(), r.runs)).collect();
        assert_eq!(summaries, [("linux", "linux", 1), ("linux (not done)", "linux", 1)]);
        let shown: Vec<_> = records.iter().map(|record| record.show(record.median)).collect();
        assert_eq!(shown, ["55 s", "> 60 s"]);
    }

    #[test]
    fn a_subject_that_cannot_do_a_case_has_a_record_without_a_figure() {
        let mut sample = Sample::new("frames");
        sample.add_cannot("64G/order0/pair", "bitmap-allocator", ("time_per_op", "ns"));
        let [record] = &sample.records()[..] else { panic!() };
        assert_eq!(record.subject_name(), "bitmap-allocator");
        assert_eq!((record.show(record.median), record.is_measured()), ("cannot".into(), false));
    }

    #[test]
    fn the_json_has_the_documented_keys() {
        let mut sample = Sample::new("vm");
        sample.add("64G/online_movable/plug", "hotmem", ("time", "s"), 0.001);
        let json = serde_json::to_value(sample.records()).unwrap();
        let record = json[0].as_object().unwrap();
        let keys: Vec<_> = record.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "bench", "case", "max", "median", "metric", "min", "ran_on", "runs", "subject",
                "unit"
            ]
        );
        assert_eq!(record["ran_on"], "process");
        let parsed: Vec<Record> = serde_json::from_value(json).unwrap();
        assert_eq!(parsed, sample.records());
    }

    #[test]
    fn guests_under_tcg_and_under_kvm_are_separate_figures() {
        let mut sample = Sample::new("vm");
        for (ran_on, value) in [(RanOn::Tcg, 2.0), (RanOn::Kvm, 1.0)] {
            sample.set_executor(ran_on);
            sample.add("64G/plug", "hotmem", ("time", "s"), value);
        }
        let summaries: Vec<_> = sample.records().iter().map(|r| (r.ran_on, r.median)).collect();
        assert_eq!(summaries, [(RanOn::Tcg, 2.0), (RanOn::Kvm, 1.0)]);
    }
}
