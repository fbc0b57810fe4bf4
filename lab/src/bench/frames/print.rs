//! Prints the figures: for each table and metric the cases, and below each of them its subjects.

use super::case::Case;
use crate::bench::record::{Metric, Record};
use crate::out::OutputError;
use crate::table::Groups;

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
    let mut groups = Groups::new(&["subject", "figure"], 1);
    for name in names {
        groups.begin(&name);
        for subject in &subjects {
            let is_case = |c: &&Case| c.subject.to_string() == *subject && c.name() == name;
            let figure = cases.iter().find(is_case).and_then(|case| shown(case, &name));
            if let Some(figure) = figure {
                groups.add_row([subject.clone(), figure]);
            }
        }
    }
    say!("{title}\n{groups}")
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
