//! Results of `hotmem bench frames` that were recorded on a machine with many CPUs, and their table.

use super::sections::{Row, SECTIONS};
use crate::bench::record::Record;
use crate::table::seconds;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeSet;

const SCALING: &str = include_str!("../../../docs/scaling.json");

/// Records of `hotmem bench frames` with several numbers of threads.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scaling {
    machine: String,
    date: String,
    commands: Vec<String>,
    records: Vec<Record>,
}

impl Scaling {
    /// Reads docs/scaling.json.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read() -> Result<Scaling> {
        serde_json::from_str(SCALING).context("docs/scaling.json")
    }

    /// Returns the table, in Markdown: a row for each case and subject, and a column for each number
    /// of threads.
    pub(super) fn table(&self) -> String {
        let threads: BTreeSet<u32> = self.records.iter().filter_map(threads_of).collect();
        let commands: String = self.commands.iter().map(|c| format!("- `{c}`\n")).collect();
        let mut text = format!("Taken on {} on {}, by:\n\n{commands}\n", self.date, self.machine);
        text += "| what | subject |";
        text.extend(threads.iter().map(|count| match count {
            1 => " 1 thread |".to_owned(),
            count => format!(" {count} threads |"),
        }));
        text += &format!("\n|---|---|{}\n", "---|".repeat(threads.len()));
        for row in rows() {
            let title = row.title.trim_end_matches(", {}");
            let limit = Some(("limit", row.limit)).filter(|_| !row.limit.is_empty());
            let subjects = [("hotmem", row.subject)].into_iter().chain(row.peers.iter().copied());
            for (name, subject) in subjects.chain(limit) {
                let medians = threads.iter().map(|&count| self.median(row.case, count, subject));
                let medians: Vec<_> = medians.collect();
                if medians.iter().any(Option::is_some) {
                    text += &format!("| {title} | {name} |");
                    let cells = medians.into_iter().map(Option::unwrap_or_default);
                    text.extend(cells.map(|median| format!(" {median} |")));
                    text += "\n";
                }
            }
        }
        text
    }

    /// Returns the median time of an operation, as the table shows it. `case` has a `*` in place of
    /// the number of threads.
    fn median(&self, case: &str, count: u32, subject: &str) -> Option<String> {
        let plural = if count == 1 { "" } else { "s" };
        let case = case.replace('*', &format!("{count}thread{plural}"));
        let mut records = self.records.iter();
        let found = records.find(|record| record.case == case && record.subject == subject)?;
        Some(seconds(found.median * 1e-9))
    }
}

/// Returns the rows of the section about the frame allocator that show the time of an operation.
fn rows() -> impl Iterator<Item = &'static Row> {
    let section = SECTIONS.iter().filter(|section| section.id == "frames");
    section.flat_map(|section| section.rows).filter(|row| row.metric == "time_per_op")
}

/// Returns the number of threads in the name of a record's case.
fn threads_of(record: &Record) -> Option<u32> {
    let part = record.case.split('/').nth(2)?;
    part.trim_end_matches('s').strip_suffix("thread")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_records_are_times_and_their_cases_contain_the_number_of_threads() {
        let scaling = Scaling::read().unwrap();
        assert!(scaling.records.iter().all(|r| r.bench == "frames"
            && r.has_metric(("time_per_op", "ns"))
            && r.min <= r.median
            && r.median <= r.max
            && threads_of(r).is_some()));
    }

    #[test]
    fn the_table_has_a_row_for_each_case_and_subject() {
        let scaling = Scaling::read().unwrap();
        let table = scaling.table();
        let cases: BTreeSet<_> = scaling
            .records
            .iter()
            .map(|r| {
                (
                    r.case.split('/').enumerate().filter(|(i, _)| *i != 2).collect::<Vec<_>>(),
                    &r.subject,
                )
            })
            .collect();
        let rows = table.lines().filter(|line| line.contains(" ns |") || line.contains(" µs |"));
        assert_eq!(rows.count(), cases.len(), "{table}");
        assert!(table.contains("| one frame allocated and freed | LLFree | "), "{table}");
        assert!(table.contains("| 1 thread | 2 threads |"), "{table}");
    }
}
