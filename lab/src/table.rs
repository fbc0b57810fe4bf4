//! Formats tables and numbers.

use comfy_table::{
    Attribute, Cell, CellAlignment, ContentArrangement, LineStyle, Row, Table, presets,
};
use std::{fmt, time::Duration};

/// The number of lines of a table before its rows.
const HEADER_LINES: usize = 2;

/// Returns a table. The first `text_columns` columns are aligned to the left, and the other
/// columns, which contain numbers, to the right.
#[must_use]
pub fn table(header: &[&str], text_columns: usize) -> Table {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table
        .load_style(presets::NOTHING.header_separator(rule))
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
    for column in table.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A table whose rows belong to groups. The name of a group stands in a line of its own above the
/// group's rows, because names of cases are long, and with a column of them the table would not fit into
/// 80 columns.
pub struct Groups {
    table: Table,
    /// The name of each group, and the number of its first row.
    groups: Vec<(String, usize)>,
}

impl Groups {
    /// Returns an empty table, as [`table`] does.
    #[must_use]
    pub fn new(header: &[&str], text_columns: usize) -> Groups {
        Groups { table: table(header, text_columns), groups: Vec::new() }
    }

    /// Begins a group.
    pub fn begin(&mut self, name: impl Into<String>) {
        self.groups.push((name.into(), self.table.row_count()));
    }

    /// Adds a row to the group that was begun last.
    pub fn add_row(&mut self, row: impl Into<Row>) {
        self.table.add_row(row);
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.row_count() == 0
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups = self.groups.iter().peekable();
        for (line, text) in self.table.lines().enumerate() {
            // The rows follow the header and its rule, and each row is one line.
            while let Some((name, _)) =
                groups.next_if(|&&(_, row)| line.checked_sub(HEADER_LINES) == Some(row))
            {
                writeln!(f, "{name}")?;
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Returns a time with three significant figures in s, ms, µs or ns, such as `1.35 ms`.
#[must_use]
pub fn time(time: Duration) -> String {
    seconds(time.as_secs_f64())
}

/// Returns a time of `seconds` seconds, as [`time`] does, also if it is a fraction of a nanosecond.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    format!("{} {unit}", figures(value))
}

/// Returns a number with at most three significant figures: an integer and a number of 100 or more
/// without decimals, any other number with one to three.
#[must_use]
pub fn figures(value: f64) -> String {
    let decimals = match value.abs() {
        v if v == 0.0 || v >= 100.0 || v.fract() == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_names_above_their_rows() {
        let mut groups = Groups::new(&["subject", "time"], 1);
        assert!(groups.is_empty());
        for (case, subjects) in [("a", &["x", "y"][..]), ("b", &["x"])] {
            groups.begin(case);
            subjects.iter().for_each(|&subject| groups.add_row([subject, "1 s"]));
        }
        let text = groups.to_string();
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected: [&[&str]; 5] =
            [&["a"], &["x", "1", "s"], &["y", "1", "s"], &["b"], &["x", "1", "s"]];
        let _: &Vec<Vec<&str>> = &lines;
        assert_eq!(lines[HEADER_LINES..], expected);
    }

    #[test]
    fn a_time_has_at_most_three_significant_figures() {
        assert_eq!(time(Duration::from_micros(1349)), "1.35 ms");
        assert_eq!(time(Duration::from_millis(12)), "12 ms");
        assert_eq!(time(Duration::from_nanos(464_400)), "464 µs");
        assert_eq!(time(Duration::from_nanos(7)), "7 ns");
        assert_eq!(time(Duration::from_secs(75)), "75 s");
        assert_eq!(seconds(6.578e-9), "6.58 ns");
    }
}
