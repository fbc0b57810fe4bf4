//! Figures of `hotmem bench frames` from another machine, which has more CPUs, and their table.

use crate::bench::record::Record;
use crate::table::seconds;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeSet;

const SCALING: &str = include_str!("../../../docs/scaling.json");

/// The rows of the table: the title, and the memory, order and access pattern in the names of the
/// cases.
const ROWS: &[(&str, [&str; 3])] = &[
    ("one frame allocated and freed", ["16G", "order0", "pair"]),
    ("a page of 2 MiB allocated and freed", ["16G", "order9", "pair"]),
    ("many frames allocated, then freed", ["16G", "order0", "bulk"]),
    ("many pages of 2 MiB allocated, then freed", ["16G", "order9", "bulk"]),
    ("a frame allocated on one CPU and freed on another", ["16G", "order0", "remote-free"]),
    ("a frame freed at random and one allocated, all memory in use", ["16G", "order0", "random"]),
    (
        "an allocation freed at random and one made, 90 % frames, 9 % 32 KiB, 1 % 2 MiB",
        ["16G", "order0-3-9", "mixed"],
    ),
];
/// The subjects, each with its name in the records.
const SUBJECTS: &[(&str, &str)] = &[
    ("hotmem", "hotmem"),
    ("LLFree", "llfree"),
    ("bitmap-allocator behind a spin lock", "bitmap-allocator"),
    ("buddy_system_allocator behind a spin lock", "buddy_system_allocator"),
    ("limit", "limit"),
];

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
        for (title, case) in ROWS {
            for (name, subject) in SUBJECTS {
                let medians: Vec<_> =
                    threads.iter().map(|&count| self.median(*case, count, subject)).collect();
                if medians.iter().any(Option::is_some) {
                    let cells: String = medians
                        .into_iter()
                        .map(|median| format!(" {} |", median.unwrap_or_default()))
                        .collect();
                    text += &format!("| {title} | {name} |{cells}\n");
                }
            }
        }
        text
    }

    /// Returns the median time of an operation, as the table shows it.
    fn median(
        &self,
        [size, order, access]: [&str; 3],
        count: u32,
        subject: &str,
    ) -> Option<String> {
        let plural = if count == 1 { "" } else { "s" };
        let case = format!("{size}/{order}/{count}thread{plural}/{access}");
        let mut records = self.records.iter();
        let found = records.find(|record| record.case == case && record.subject == subject)?;
        Some(seconds(found.median * 1e-9))
    }
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
    fn all_records_are_times_of_the_bench_and_name_their_threads() {
        let scaling = Scaling::read().unwrap();
        assert!(scaling.records.iter().all(|r| r.bench == "frames"
            && r.has_metric(("time_per_op", "ns"))
            && r.min <= r.median
            && r.median <= r.max
            && threads_of(r).is_some()));
    }

    #[test]
    fn the_table_has_a_row_for_each_case_and_subject() {
        let table = Scaling::read().unwrap().table();
        for (title, _) in ROWS {
            assert!(table.contains(&format!("| {title} | hotmem | ")), "{table}");
        }
        assert!(table.contains("| one frame allocated and freed | LLFree | "), "{table}");
        assert!(table.contains("| 1 thread | 2 threads |"), "{table}");
    }
}
