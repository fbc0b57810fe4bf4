//! Prints tables with lines for each optimisation level.

use crate::steps::Steps;
use std::io;

/// The optimisation levels for small code and for fast code.
const LEVELS: [&str; 2] = ["s", "3"];

/// Prints a table: `header`, and the lines that `lines` returns for each level.
pub(crate) fn print(
    steps: &mut Steps,
    header: &str,
    mut lines: impl FnMut(&mut Steps, &str) -> io::Result<String>,
) {
    let mut table = format!("{header}\n");
    for level in LEVELS {
        match lines(steps, level) {
            Ok(lines) => table += &lines,
            Err(error) => steps.fail(format!("opt-level {level}: {error}")),
        }
    }
    println!("\n{table}");
}
