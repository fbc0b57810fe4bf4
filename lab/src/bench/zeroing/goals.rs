//! The goals of keeping zero marks, and whether the records of the mixed load reach them.

use super::Subject;
use crate::bench::record::{Metric, Record};
use crate::out::OutputError;
use crate::table::figures;

/// The share of the allocated frames that the host had zeroed that were answered as zero.
pub(super) const ANSWERED: Metric = ("answered", "%");
/// The number of pageblocks that were reported and that the host had to back again.
pub(super) const BACKED_AGAIN: Metric = ("backed_again", "count");
/// The mean number of free pageblocks.
pub(super) const WHOLE_PAGEBLOCKS: Metric = ("whole_pageblocks", "count");

/// The least share of frames that are answered as zero, in percent.
const MIN_ANSWERED: f64 = 99.0;
/// The largest difference that marks may make to the host and to fragmentation, in percent.
const MAX_DIFFERENCE: f64 = 1.0;

/// Prints whether each case of the mixed load reaches the goals.
pub(super) fn print(records: &[Record]) -> Result<(), OutputError> {
    let lines = lines(records);
    if !lines.is_empty() {
        say!()?;
    }
    lines.iter().try_for_each(|line| say!("{line}"))
}

/// Returns a line for each goal of each case.
fn lines(records: &[Record]) -> Vec<String> {
    let with_marks = |metric: Metric| {
        let subject = Subject::Hotmem.to_string();
        let is_match = move |r: &&Record| r.has_metric(metric) && r.subject == subject;
        records.iter().filter(is_match)
    };
    let verdict = |is_reached| if is_reached { "goal reached" } else { "goal MISSED" };
    let answered = with_marks(ANSWERED).map(|record| {
        let (case, share) = (&record.case, record.min);
        let verdict = verdict(share >= MIN_ANSWERED);
        let share = figures(share);
        format!("{case}: at least {share} % of reported frames are answered as zero: {verdict}")
    });
    let same = [BACKED_AGAIN, WHOLE_PAGEBLOCKS].into_iter().flat_map(|metric| {
        with_marks(metric).filter_map(move |with| {
            let without = Subject::NoMarks.to_string();
            let is_match =
                |r: &&Record| r.has_metric(metric) && r.case == with.case && r.subject == without;
            let without = records.iter().find(is_match)?;
            let differences =
                [(with.median, without.median), (with.min, without.min), (with.max, without.max)]
                    .map(|(with, without)| (with - without).abs() * 100.0 / without.max(1.0));
            let largest = differences.into_iter().fold(0.0, f64::max);
            let (case, metric) = (&with.case, &with.metric);
            let verdict = verdict(largest <= MAX_DIFFERENCE);
            let largest = figures(largest);
            Some(format!("{case}: {metric} differs by {largest} % with marks: {verdict}"))
        })
    });
    answered.chain(same).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::Sample;

    #[test]
    fn each_goal_is_reached_or_missed() {
        let mut sample = Sample::new("zeroing");
        for (case, answered, backed) in [("load/good", 99.2, 1009.0), ("load/bad", 98.0, 1011.0)] {
            sample.add(case, "hotmem-no-marks", BACKED_AGAIN, 1000.0);
            sample.add(case, "hotmem", BACKED_AGAIN, backed);
            sample.add(case, "hotmem", ANSWERED, answered);
        }
        let lines = lines(&sample.records());
        assert_eq!(
            lines,
            [
                "load/good: at least 99.2 % of reported frames are answered as zero: goal reached",
                "load/bad: at least 98 % of reported frames are answered as zero: goal MISSED",
                "load/good: backed_again differs by 0.900 % with marks: goal reached",
                "load/bad: backed_again differs by 1.10 % with marks: goal MISSED",
            ]
        );
    }
}
