//! Prints the figures: for each table and metric a row for each case, and a column for each subject.

use super::case::Case;
use crate::bench::record::{Metric, Record};
use crate::out::OutputError;
use crate::table::table;

/// Prints the figures of a metric of these cases, if there are any.
pub(super) fn print(
    cases: &[Case],
    records: &[Record],
    metric: Metric,
    title: &str,
) -> Result<(), OutputError> {
    let mut subjects: Vec<String> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let shown = |case: &Case, name: &str| -> Option<String> {
        let subject = case.subject.to_string();
        let is_figure =
            |r: &&Record| r.has_metric(metric) && r.case == name && r.subject_name() == subject;
        records.iter().find(is_figure).map(cell)
    };
    for case in cases {
        let (subject, name) = (case.subject.to_string(), case.name());
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
        if shown(case, &name).is_some() && !names.contains(&name) {
            names.push(name);
        }
    }
    subjects.retain(|subject| {
        cases.iter().any(|c| c.subject.to_string() == *subject && shown(c, &c.name()).is_some())
    });
    if names.is_empty() {
        return Ok(());
    }
    let header: Vec<_> = ["case"].into_iter().chain(subjects.iter().map(String::as_str)).collect();
    let mut table = table(&header, 1);
    for name in names {
        let figure = |subject: &String| {
            let is_case = |c: &&Case| c.subject.to_string() == *subject && c.name() == name;
            let case = cases.iter().find(is_case);
            case.and_then(|case| shown(case, &name)).unwrap_or_default()
        };
        let figures: Vec<_> = subjects.iter().map(figure).collect();
        table.add_row([name].into_iter().chain(figures));
    }
    say!("{title}\n{table}\n")
}

/// Returns a figure with its spread: the median, and the smallest and the largest value.
fn cell(record: &Record) -> String {
    let [median, min, max] = [record.median, record.min, record.max].map(|v| record.show(v));
    if min == max {
        return median;
    }
    let number = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    format!("{median} ({} to {})", number(&min), number(&max))
}
