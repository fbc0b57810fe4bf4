//! Prints the figures of several guests side by side, and notes which guests do less work.

use super::record::{Metric, Record};
use crate::out::OutputError;
use crate::{
    linux::DESCRIPTOR,
    table::{Groups, figures},
};

const NOTE: &str = "Linux and the guest hotmem-64B write a descriptor of 64 bytes for each plugged\n\
     frame. The guest hotmem writes none, so it does less work.";

const LINUX: &str = "linux";

/// The guests, each with the number of bytes that it writes to describe one frame. The guests that
/// do the same work come first.
const SUBJECTS: [(&str, u64); 3] =
    [("hotmem-64B", DESCRIPTOR.0), (LINUX, DESCRIPTOR.0), ("hotmem", 0)];

/// Prints the `metric` of each case for each guest, and the ratio to that of the first Hotmem
/// guest. If a guest reached the time limit, `left_metric` is printed too: the memory that was
/// still to be changed.
pub(super) fn print(
    records: &[Record],
    metric: Metric,
    left_metric: Metric,
) -> Result<(), OutputError> {
    let header = ["guest", "written per frame", metric.0, "min", "max", "× hotmem", "left"];
    let mut groups = Groups::new(&header, 1);
    let mut last_case = String::new();
    for [case, cells @ ..] in rows(records, metric, left_metric) {
        if case != last_case {
            groups.begin(&case);
            last_case = case;
        }
        groups.add_row(cells);
    }
    say!("{groups}{NOTE}")?;
    Ok(())
}

/// Returns the table's rows: the cases that several guests have run, in the order of the records.
fn rows(records: &[Record], metric: Metric, left_metric: Metric) -> Vec<[String; 8]> {
    let mut rows = Vec::new();
    let mut printed_cases = Vec::new();
    for case in records.iter().filter(|record| record.has_metric(metric)).map(|record| &record.case)
    {
        if printed_cases.contains(&case) {
            continue;
        }
        printed_cases.push(case);
        let in_case = || records.iter().filter(|record| record.case == *case);
        let figures_of = |subject| {
            in_case()
                .filter(move |record| record.has_metric(metric) && record.subject_name() == subject)
        };
        let guests = SUBJECTS
            .iter()
            .flat_map(|&(subject, bytes)| figures_of(subject).map(move |r| (r, bytes)));
        let guests: Vec<_> = guests.collect();
        let ours = guests.iter().find(|(record, _)| record.subject_name() != LINUX);
        let Some((ours, _)) = ours.filter(|_| guests.len() > 1) else { continue };
        rows.extend(guests.iter().map(|(record, written)| {
            let prefix = if record.is_measured() { "" } else { "> " };
            let ratio = figures(record.median / ours.median);
            let left = in_case()
                .find(|r| {
                    !record.is_measured()
                        && r.has_metric(left_metric)
                        && r.subject_name() == record.subject_name()
                })
                .map_or(String::new(), |left| left.show(left.median));
            [
                case.clone(),
                record.subject_name().into(),
                format!("{written} B"),
                record.show(record.median),
                record.show(record.min),
                record.show(record.max),
                format!("{prefix}{ratio}"),
                left,
            ]
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::{super::record::Sample, *};

    #[test]
    fn guests_that_do_the_same_work_come_first() {
        let mut sample = Sample::new("vm");
        let (time, left_metric) = (("time", "s"), ("left", "MiB"));
        sample.add("16G/plug", "hotmem", time, 0.002);
        sample.add("16G/plug", "hotmem", ("requests", "count"), 1.0);
        sample.add("16G/plug", "linux", time, 2.0);
        sample.add("16G/plug", "linux", time, 3.0);
        sample.add("16G/plug", "linux", time, 4.0);
        sample.add("16G/plug", "hotmem-64B", time, 0.2);
        sample.add("16G/unplug", "hotmem", time, 0.001);
        sample.add_stopped("16G/unplug", "linux", time, 60.0);
        sample.add("16G/unplug", "linux", left_metric, 2.0);
        sample.add("512G/plug", "hotmem", time, 0.003);
        let expected = [
            ["16G/plug", "hotmem-64B", "64 B", "200 ms", "200 ms", "200 ms", "1", ""],
            ["16G/plug", "linux", "64 B", "3 s", "2 s", "4 s", "15", ""],
            ["16G/plug", "hotmem", "0 B", "2 ms", "2 ms", "2 ms", "0.010", ""],
            ["16G/unplug", "linux", "64 B", "> 60 s", "> 60 s", "> 60 s", "> 60000", "2 MiB"],
            ["16G/unplug", "hotmem", "0 B", "1 ms", "1 ms", "1 ms", "1", ""],
        ];
        assert_eq!(rows(&sample.records(), time, left_metric), expected);
        assert_eq!(rows(&sample.records(), ("instructions", "count"), left_metric), [[""; 8]; 0]);
    }
}
