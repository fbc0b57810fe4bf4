//! `hotmem report --compare`: lists figures that improved or worsened by more than the spread of
//! both measurements.

use super::{
    external_figures::ExternalFigures,
    file::Records,
    rows::{EQUAL_WITHIN, Lookup, spread},
    sections::SECTIONS,
};
use crate::{bench::record::Record, table::Groups};
use anyhow::Result;
use std::fmt;

/// How a figure differs from an older figure of the same case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Better,
    Worse,
    /// The spreads of both overlap, or their relative difference is less than [`EQUAL_WITHIN`].
    WithinSpread,
    /// The spread is unknown, because a time was measured only once.
    Unknown,
}

/// Prints the figures that changed, the number of those that did not, and the ratios that changed.
pub(super) fn print(
    old: &Records,
    new: &Records,
    external_figures: &ExternalFigures,
) -> Result<()> {
    let mut changed = Groups::new(&["metric", "", "was", "is", "now / then"], 2);
    let mut changes = 0;
    let (mut within, mut unknown, mut new_cases) = (0, 0, 0);
    for new_record in new.all() {
        let Some(old_record) = old.all().find(|record| record.has_same_key(new_record)) else {
            new_cases += 1;
            continue;
        };
        match change(old_record, new_record) {
            Change::WithinSpread => within += 1,
            Change::Unknown => unknown += 1,
            change => {
                changes += 1;
                let Record { bench, case, subject, .. } = new_record;
                changed.begin(format!("{bench} {case}, {subject}"));
                changed.add_row([
                    new_record.metric.to_string(),
                    change.to_string(),
                    spread(old_record),
                    spread(new_record),
                    format!("{:.2}", new_record.median / old_record.median),
                ]);
            }
        }
    }
    say!("{} then, {} now, on {}", old.date, new.date, new.machine.hardware())?;
    if changes > 0 {
        say!("{changed}")?;
    }
    say!(
        "{changes} figures changed beyond the spread, {within} did not; {unknown} have only one run, and \
         {new_cases} have no old record"
    )?;
    let (compared, outside) = changed_ratios(old, new, external_figures);
    for line in &outside {
        say!("ratio outside its old spread: {line}")?;
    }
    say!(
        "{} of {compared} ratios are in their old spread, or within {:.0} % of it",
        compared - outside.len(),
        EQUAL_WITHIN * 100.0
    )?;
    Ok(())
}

/// Returns the number of ratios that both reports have, and a line for each ratio that is outside its
/// old spread.
fn changed_ratios(
    old: &Records,
    new: &Records,
    external_figures: &ExternalFigures,
) -> (usize, Vec<String>) {
    let external_step = external_figures.as_step();
    let (old, new) = (Lookup::new(old, &external_step), Lookup::new(new, &external_step));
    let (mut compared, mut outside) = (0, Vec::new());
    for section in SECTIONS {
        let old_rows = old.rows(section);
        for row in new.rows(section) {
            let old_row = old_rows.iter().find(|old_row| old_row.title == row.title);
            for peer in &row.peers {
                let old_peer =
                    old_row.and_then(|row| row.peers.iter().find(|old| old.name == peer.name));
                let old_ratio = old_peer.and_then(|old_peer| old_peer.ratio);
                let (Some(then), Some(now)) = (old_ratio, peer.ratio) else { continue };
                compared += 1;
                if !then.covers(&now) {
                    let (title, name) = (&row.title, peer.name);
                    outside.push(format!("{title}, {name}: {then} then, {now} now"));
                }
            }
        }
    }
    (compared, outside)
}

/// Compares a new figure with the old one.
fn change(old: &Record, new: &Record) -> Change {
    let is_count = matches!(&*new.unit, "count" | "instructions" | "B");
    let gap = if new.min > old.max {
        new.min - old.max
    } else if old.min > new.max {
        old.min - new.max
    } else {
        return Change::WithinSpread;
    };
    if gap <= old.median.abs() * EQUAL_WITHIN {
        return Change::WithinSpread;
    }
    if !is_count && (old.runs < 2 || new.runs < 2) {
        return Change::Unknown;
    }
    let is_more = new.median > old.median;
    if is_more == is_better_if_more(new) { Change::Better } else { Change::Worse }
}

fn is_better_if_more(record: &Record) -> bool {
    const METRICS: [&str; 8] = [
        "answered",
        "free",
        "free_in_whole_pageblocks",
        "guests",
        "rate",
        "saved",
        "speedup",
        "whole_pageblocks",
    ];
    METRICS.contains(&&*record.metric)
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::Better => "better",
            Change::Worse => "worse",
            Change::WithinSpread => "within",
            Change::Unknown => "unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{file::tests::records, rows::median},
        *,
    };

    fn record(metric: &'static str, unit: &'static str, values: [f64; 3], runs: usize) -> Record {
        let all = records(&[("a", "hotmem", 1.0)]);
        let [min, median, max] = values;
        let (metric, unit) = (metric.into(), unit.into());
        Record { metric, unit, min, median, max, runs, ..all.steps[0].records[0].clone() }
    }

    #[test]
    fn a_figure_has_changed_if_its_spread_does_not_overlap_the_old_one() {
        let time = |values, runs| record("time", "s", values, runs);
        let old = time([1.0, 1.1, 1.2], 3);
        assert_eq!(change(&old, &time([1.15, 1.5, 2.0], 3)), Change::WithinSpread);
        assert_eq!(change(&old, &time([1.21, 1.5, 2.0], 3)), Change::WithinSpread, "too close");
        assert_eq!(change(&old, &time([1.3, 1.5, 2.0], 3)), Change::Worse);
        assert_eq!(change(&old, &time([0.5, 0.6, 0.7], 3)), Change::Better);
        assert_eq!(change(&old, &time([2.0; 3], 1)), Change::Unknown);
    }

    #[test]
    fn some_metrics_are_better_if_larger_and_counts_have_no_spread() {
        let rate = |value| record("rate", "ops/s", [value; 3], 5);
        assert_eq!(change(&rate(1.0), &rate(2.0)), Change::Better);
        let count = |value| record("instructions", "count", [value; 3], 1);
        assert_eq!(change(&count(100.0), &count(101.0)), Change::WithinSpread);
        assert_eq!(change(&count(100.0), &count(110.0)), Change::Worse);
    }

    #[test]
    fn metrics_of_rows_in_which_more_is_better_are_better_if_larger() {
        for row in SECTIONS.iter().flat_map(|section| section.rows) {
            let record = record(row.metric, "count", [1.0; 3], 1);
            assert_eq!(is_better_if_more(&record), row.more_is_better, "{}", row.title);
        }
    }

    #[test]
    fn ratios_outside_their_old_spread_are_listed() {
        let measured = |linux: &[f64]| {
            let values: Vec<_> =
                linux.iter().map(|&value| ("4G/online_movable/plug", "linux", value)).collect();
            let ours = [("4G/online_movable/plug", "hotmem-64B", 0.1)];
            let mut all = records(&[&ours[..], &values].concat());
            all.steps[0].step = "vm".into();
            all
        };
        let external_figures = ExternalFigures::llfree().unwrap();
        let old = measured(&[1.0, 2.0, 3.0]);
        assert_eq!(changed_ratios(&old, &measured(&[2.9]), &external_figures), (1, vec![]));
        let (compared, outside) = changed_ratios(&old, &measured(&[9.0]), &external_figures);
        assert_eq!((compared, outside.len()), (1, 1));
        assert!(outside[0].contains("Linux: 20 (10 to 30) then, 90 now"), "{outside:?}");
        print(&old, &measured(&[9.0]), &external_figures).unwrap();
        assert_eq!(median(old.all().next().unwrap()), "100 ms");
    }
}
