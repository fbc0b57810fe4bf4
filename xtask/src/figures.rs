//! `cargo xtask figures`, which writes the tables of docs/benchmarks.md and README.md.

use crate::{
    ports, setup,
    step::{root, shell},
};
use std::{fs, process::ExitCode};

/// The file of records that `hotmem report` writes.
const MEASURED_RECORDS: &str = "target/report/records.json";
/// The file of records that is checked in.
const CHECKED_IN_RECORDS: &str = "docs/records.json";

/// Writes the tables from the records in docs/records.json.
pub(crate) fn write() -> ExitCode {
    let report = "cargo run --quiet -p hotmem-lab --bin hotmem -- report --docs write";
    ExitCode::from(u8::from(!runs(report)))
}

/// Runs benches, and writes the tables from the new records. `benches` is a list of names with
/// commas between them. Without it, all benches run. The records of benches that do not run stay.
pub(crate) fn measure(benches: Option<&str>) -> ExitCode {
    // Failures are ignored, because the report names the missing programs.
    let _ = setup::run();
    let _ = ports::run("build");
    let only = benches.map(|names| format!("--only '{names}' --replace-in {CHECKED_IN_RECORDS}"));
    let report = "cargo run --release --quiet -p hotmem-lab --bin hotmem -- report";
    if !runs(&format!("{report} {}", only.unwrap_or_default())) {
        return ExitCode::FAILURE;
    }
    match fs::copy(root().join(MEASURED_RECORDS), root().join(CHECKED_IN_RECORDS)) {
        Ok(_) => write(),
        Err(error) => {
            println!("{CHECKED_IN_RECORDS}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether a line of the shell succeeds. Its output is not captured, because the report shows
/// progress in the terminal.
fn runs(line: &str) -> bool {
    shell(line).status().is_ok_and(|status| status.success())
}
