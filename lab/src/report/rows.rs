//! Finds the records of a row and computes their ratios.

use super::{
    file::{BenchRun, Records},
    sections::{Row, Section},
};
use crate::{
    bench::record::Record,
    table::{figures, seconds},
};

/// Figures whose relative difference is less than this count as equal.
pub(super) const EQUAL_WITHIN: f64 = 0.02;

/// The records of a report: those that a command measured, and those of peers that were measured by
/// hand.
pub(super) struct Lookup<'a> {
    steps: Vec<&'a BenchRun>,
}

/// A row of a table, with its figures.
pub(super) struct FoundRow<'a> {
    pub(super) title: String,
    pub(super) hotmem: &'a Record,
    /// The command that measured it.
    pub(super) command: &'a str,
    pub(super) peers: Vec<Peer<'a>>,
    /// The machine's limit, and Hotmem's figure as a multiple of it.
    pub(super) limit: Option<(&'a Record, Ratio)>,
    /// Whether it is in README's table.
    pub(super) is_headline: bool,
}

/// A peer's figure.
pub(super) struct Peer<'a> {
    pub(super) name: &'a str,
    pub(super) record: &'a Record,
    /// The factor by which Hotmem's figure is better.
    pub(super) ratio: Option<Ratio>,
}

/// A quotient of two figures, and its spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Ratio {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Whether the quotient is a lower bound, because its numerator is a time limit that was
    /// reached.
    pub(super) is_lower_bound: bool,
}

impl<'a> Lookup<'a> {
    /// Makes a lookup. `external_figures` has figures that no command of this project measures.
    pub(super) fn new(records: &'a Records, external_figures: &'a BenchRun) -> Lookup<'a> {
        Lookup { steps: records.steps.iter().chain([external_figures]).collect() }
    }

    /// Returns the rows of a section for which there are figures.
    pub(super) fn rows<'s: 'a>(&self, section: &'s Section) -> Vec<FoundRow<'a>> {
        section.rows.iter().flat_map(|row| self.rows_of_pattern(row)).collect()
    }

    fn rows_of_pattern<'s: 'a>(&self, row: &'s Row) -> Vec<FoundRow<'a>> {
        let mut found: Vec<FoundRow<'a>> = Vec::new();
        for &bench_run in
            self.steps.iter().filter(|bench_run| row.step.is_empty() || row.step == bench_run.step)
        {
            for ours in &bench_run.records {
                let is_of_row = ours.bench == row.bench && ours.metric == row.metric;
                if !is_of_row
                    || ours.subject_name() != row.subject
                    || found.iter().any(|f| f.hotmem.case == ours.case)
                {
                    continue;
                }
                let Some(wildcard_text) = wildcard_text(row.case, &ours.case) else { continue };
                found.push(FoundRow {
                    title: row.title.replace("{}", &readable(&wildcard_text)),
                    hotmem: ours,
                    command: &bench_run.command,
                    peers: self.peers(row, bench_run, ours),
                    limit: self
                        .figure_of(bench_run, ours, row.limit)
                        .and_then(|limit| Some((limit, Ratio::of(ours, limit)?))),
                    is_headline: row.headline == Some(&*wildcard_text.replace("-simulated", "")),
                });
            }
        }
        found
    }

    fn peers<'s: 'a>(
        &self,
        row: &'s Row,
        bench_run: &'a BenchRun,
        ours: &'a Record,
    ) -> Vec<Peer<'a>> {
        let peer = |&(name, subject): &(&'a str, &'static str)| {
            let record = self.figure_of(bench_run, ours, subject)?;
            let [numerator, denominator] =
                if row.more_is_better { [ours, record] } else { [record, ours] };
            let ratio = if row.is_extreme { None } else { Ratio::of(numerator, denominator) };
            Some(Peer { name, record, ratio })
        };
        row.peers.iter().filter_map(peer).collect()
    }

    /// Returns the figure of another subject for the same case and metric. It is from the same step,
    /// or an external figure. If the subject reached its time limit in some runs, returns the figure
    /// of those runs.
    fn figure_of(
        &self,
        bench_run: &'a BenchRun,
        ours: &Record,
        subject: &str,
    ) -> Option<&'a Record> {
        let external_figures = self.steps.last().copied();
        let find_in = |bench_run: &'a BenchRun| {
            let same = bench_run.records.iter().filter(|record| {
                let keys = |r: &Record| (r.bench.clone(), r.metric.clone(), r.case.clone());
                record.subject_name() == subject && keys(record) == keys(ours)
            });
            same.min_by_key(|record| record.is_measured())
        };
        find_in(bench_run).or_else(|| external_figures.and_then(find_in))
    }

    /// Returns the records of one subject that match a pattern, each with the text that the
    /// wildcards matched. If a case has several records, returns the first.
    pub(super) fn matching(
        &self,
        (bench, metric): (&str, &str),
        subject: &str,
        pattern: &str,
    ) -> Vec<(String, &'a Record)> {
        let mut found: Vec<(String, &Record)> = Vec::new();
        for record in self.steps.iter().flat_map(|bench_run| &bench_run.records) {
            let is_wanted = record.bench == bench
                && record.metric == metric
                && record.subject_name() == subject;
            if is_wanted
                && let Some(wildcard_text) = wildcard_text(pattern, &record.case)
                && found.iter().all(|(_, seen)| seen.case != record.case)
            {
                found.push((wildcard_text, record));
            }
        }
        found
    }
}

/// Formats the text that a wildcard matched, such as `2 threads` for `2threads`.
fn readable(wildcard_text: &str) -> String {
    let units = [("threads", "threads"), ("thread", "thread"), ("cpus", "CPUs"), ("cpu", "CPU")];
    let found =
        units.into_iter().find_map(|(end, unit)| Some((wildcard_text.strip_suffix(end)?, unit)));
    found.map_or(wildcard_text.into(), |(number, unit)| format!("{number} {unit}"))
}

/// Returns the parts of a case that the wildcards of a pattern match, joined by `/`. Returns `None`
/// if the pattern does not match.
pub(super) fn wildcard_text(pattern: &str, case: &str) -> Option<String> {
    let (pattern, case): (Vec<_>, Vec<_>) =
        (pattern.split('/').collect(), case.split('/').collect());
    if pattern.len() != case.len() {
        return None;
    }
    let mut matched = Vec::new();
    for (pattern, part) in pattern.into_iter().zip(case) {
        if pattern == "#" {
            part.starts_with(|first: char| first.is_ascii_digit()).then(|| matched.push(part))?;
            continue;
        }
        match pattern.strip_suffix('*') {
            Some(begin) => matched.push(part.strip_prefix(begin)?),
            None if pattern == part => {}
            None => return None,
        }
    }
    Some(matched.join("/"))
}

impl Ratio {
    /// Divides a figure by another. Returns `None` if the denominator is not positive, or if it
    /// reached its time limit, because then the quotient has no lower bound, or if one of the two
    /// cannot do the case.
    pub(super) fn of(numerator: &Record, denominator: &Record) -> Option<Ratio> {
        let is_positive =
            denominator.min > 0.0 && numerator.min >= 0.0 && numerator.can_do_the_case();
        (is_positive && denominator.is_measured()).then(|| Ratio {
            median: numerator.median / denominator.median,
            low: numerator.min / denominator.max,
            high: numerator.max / denominator.min,
            is_lower_bound: !numerator.is_measured(),
        })
    }

    /// Returns whether the other ratio's median is in the spread of this one, or so close that it
    /// counts as equal.
    pub(super) fn covers(&self, other: &Ratio) -> bool {
        (self.low * (1.0 - EQUAL_WITHIN)..=self.high * (1.0 + EQUAL_WITHIN)).contains(&other.median)
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, low, high] = [self.median, self.low, self.high].map(figures);
        if self.is_lower_bound {
            write!(f, "> {median}")
        } else if low == high {
            f.write_str(&median)
        } else {
            write!(f, "{median} ({low} to {high})")
        }
    }
}

/// Returns the median of a record, with its least and greatest value.
pub(super) fn spread(record: &Record) -> String {
    let Record { median, min, max, .. } = *record;
    if !record.is_measured() {
        return record.show(median);
    }
    let [median, min, max] = [median, min, max].map(|value| value_and_unit(record, value));
    if min == max {
        return join(&median);
    }
    if median.1 == min.1 && min.1 == max.1 {
        let unit = (String::new(), median.1.clone());
        return format!("{} ({} to {}){}", median.0, min.0, max.0, join(&unit));
    }
    format!("{} ({} to {})", join(&median), join(&min), join(&max))
}

/// Returns the median alone.
pub(super) fn median(record: &Record) -> String {
    if record.is_measured() {
        return join(&value_and_unit(record, record.median));
    }
    record.show(record.median)
}

/// Returns a value in a readable unit; large counts are in millions.
fn value_and_unit(record: &Record, value: f64) -> (String, String) {
    let split = |text: String| match text.split_once(' ') {
        Some((value, unit)) => (value.to_owned(), unit.to_owned()),
        None => (text, String::new()),
    };
    match &*record.unit {
        "s" => split(seconds(value)),
        "ns" => split(seconds(value * 1e-9)),
        unit if value >= 1e6 => {
            let rest = match unit {
                "count" | "instructions" => String::new(),
                unit => format!(" {unit}"),
            };
            (figures(value / 1e6), format!("million{rest}"))
        }
        "count" | "instructions" => (figures(value), String::new()),
        unit => (figures(value), unit.to_owned()),
    }
}

fn join((value, unit): &(String, String)) -> String {
    let space = if unit.is_empty() { "" } else { " " };
    format!("{value}{space}{unit}")
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{file::tests::records, sections::SECTIONS},
        *,
    };

    pub(in super::super) fn no_external_figures() -> BenchRun {
        BenchRun {
            step: "by hand".into(),
            command: String::new(),
            visits: 1,
            seconds: 0.0,
            records: vec![],
        }
    }

    #[test]
    fn wildcards_match_parts_of_a_case() {
        assert_eq!(
            wildcard_text("*/online_movable/plug", "64G/online_movable/plug").unwrap(),
            "64G"
        );
        assert_eq!(wildcard_text("a/batch-*", "a/batch-32").unwrap(), "32");
        assert_eq!(wildcard_text("*/*", "15G/5G").unwrap(), "15G/5G");
        assert_eq!(wildcard_text("boot", "boot").unwrap(), "");
        assert_eq!(wildcard_text("#/plug", "64G/plug").unwrap(), "64G");
        assert_eq!(wildcard_text("#/plug", "pc-256G/plug"), None);
        for (pattern, case) in [("*", "a/b"), ("a/*", "b/c"), ("a", "b"), ("a/x-*", "a/y-1")] {
            assert_eq!(wildcard_text(pattern, case), None, "{pattern} {case}");
        }
    }

    #[test]
    fn a_row_has_its_peers_and_their_ratios() {
        let measured = records(&[
            ("64G/online_movable/plug", "hotmem-64B", 0.2),
            ("64G/online_movable/plug", "hotmem-64B", 0.1),
            ("64G/online_movable/plug", "linux", 4.0),
            ("64G/online_movable/plug", "linux", 6.0),
            ("16G/online_movable/plug", "hotmem-64B", 0.05),
        ]);
        let external = no_external_figures();
        let rows = Lookup::new(&measured, &external).rows(&SECTIONS[0]);
        let [large, small, ..] = &rows[..] else { panic!("{}", rows.len()) };
        assert_eq!(large.title, "64G plugged into a guest, 64 bytes written for each frame");
        assert_eq!((spread(large.hotmem), large.is_headline), ("150 (100 to 200) ms".into(), true));
        let peer = &large.peers[0];
        assert_eq!((peer.name, spread(peer.record)), ("Linux", "5 (4 to 6) s".into()));
        let ratio = peer.ratio.unwrap();
        assert_eq!(ratio.to_string(), "33.3 (20 to 60)");
        assert!(ratio.covers(&Ratio { median: 61.0, ..ratio }));
        assert!(!ratio.covers(&Ratio { median: 62.0, ..ratio }));
        assert!(!ratio.covers(&Ratio { median: 19.0, ..ratio }));
        assert!(small.peers.is_empty() && !small.is_headline);
    }

    #[test]
    fn if_a_peer_reached_its_time_limit_the_ratio_is_a_lower_bound() {
        let measured = records(&[
            ("64G/online_movable/unplug", "hotmem-64B", 0.01),
            ("64G/online_movable/unplug", "linux", 50.0),
            ("64G/online_movable/unplug", "linux (not done)", 60.0),
        ]);
        let external = no_external_figures();
        let rows = Lookup::new(&measured, &external).rows(&SECTIONS[0]);
        let peer = &rows[0].peers[0];
        assert_eq!(spread(peer.record), "> 60 s");
        assert_eq!(peer.ratio.unwrap().to_string(), "> 6000");
    }

    #[test]
    fn figures_that_are_zero_have_no_ratio() {
        let zero = records(&[("a", "x", 0.0), ("a", "y", 1.0)]);
        let [x, y] = &zero.steps[0].records[..] else { panic!() };
        assert_eq!(Ratio::of(y, x), None);
        assert!(Ratio::of(x, y).is_some());
    }

    #[test]
    fn values_are_written_in_readable_units() {
        let show = |unit: &'static str, value: f64| {
            let all = records(&[("a", "b", value)]);
            let record = Record { unit: unit.into(), ..all.steps[0].records[0].clone() };
            median(&record)
        };
        assert_eq!(show("ns", 874.2), "874 ns");
        assert_eq!(show("ns", 6.578), "6.58 ns");
        assert_eq!(show("count", 537_000_000.0), "537 million");
        assert_eq!(show("ops/s", 2_400_000.0), "2.40 million ops/s");
        assert_eq!(show("MiB", 33.0), "33 MiB");
    }
}
