//! Guests side by side, and where they do not do the same job.

use super::record::{Metric, Record};
use crate::{
    linux::DESCRIPTOR,
    table::{figures, table},
};

const NOTE: &str = "Linux writes a descriptor for each frame that it is given. Hotmem's engine \
     writes none; hotmem-64B is a guest that writes as many.";

/// A row's guest, and what it writes to describe one frame.
const SUBJECTS: [(&str, u64); 3] =
    [("hotmem", 0), ("hotmem-64B", DESCRIPTOR.0), ("linux", DESCRIPTOR.0)];

/// Prints each case's `metric`, guest by guest, also as a multiple of the first guest's; and what
/// was `left` to do where a limit was reached.
pub(super) fn print(records: &[Record], metric: Metric, left: Metric) {
    let header = ["case", "guest", "written per frame", metric.0, "× hotmem", "left"];
    let mut table = table(&header, 2);
    for row in rows(records, metric, left) {
        table.add_row(row);
    }
    println!("{table}\n{NOTE}");
}

/// The cases in which there is somebody to compare with.
fn rows(records: &[Record], metric: Metric, left: Metric) -> Vec<[String; 6]> {
    let mut rows = Vec::new();
    for hotmem in records.iter().filter(|r| r.is(metric) && r.who() == SUBJECTS[0].0) {
        let in_case = || records.iter().filter(|record| record.case == hotmem.case);
        let row = |record: &Record| {
            let who = record.who();
            let (_, written) = SUBJECTS.into_iter().find(|&(name, _)| name == who)?;
            let more = if record.is_done() { "" } else { "> " };
            let left = in_case().find(|r| !record.is_done() && r.is(left) && r.who() == who);
            Some([
                record.case.clone(),
                who.into(),
                format!("{written} B"),
                record.show(record.median),
                format!("{more}{}", figures(record.median / hotmem.median)),
                left.map_or(String::new(), |left| left.show(left.median)),
            ])
        };
        let beside: Vec<_> = in_case().filter(|r| r.is(metric)).filter_map(row).collect();
        if beside.len() > 1 {
            rows.extend(beside);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::{super::record::Sample, *};

    #[test]
    fn guests_beside_hotmem() {
        let mut sample = Sample::new("vm");
        let (time, left) = (("time", "s"), ("left", "MiB"));
        sample.add("16G/plug", "hotmem", time, 0.002);
        sample.add("16G/plug", "hotmem", ("requests", "count"), 1.0);
        sample.add("16G/plug", "hotmem-64B", time, 0.2);
        sample.add("16G/plug", "linux", time, 3.0);
        sample.add("16G/unplug", "hotmem", time, 0.001);
        sample.add_not_done("16G/unplug", "linux", time, 60.0);
        sample.add("16G/unplug", "linux", left, 2.0);
        sample.add("512G/plug", "hotmem", time, 0.003);
        let expected = [
            ["16G/plug", "hotmem", "0 B", "2 ms", "1", ""],
            ["16G/plug", "hotmem-64B", "64 B", "200 ms", "100", ""],
            ["16G/plug", "linux", "64 B", "3 s", "1500", ""],
            ["16G/unplug", "hotmem", "0 B", "1 ms", "1", ""],
            ["16G/unplug", "linux", "64 B", "> 60 s", "> 60000", "2 MiB"],
        ];
        assert_eq!(rows(&sample.records(), time, left), expected);
        assert_eq!(rows(&sample.records(), ("instructions", "count"), left), [[""; 6]; 0]);
    }
}
