//! `cargo xtask figures`, which writes the tables of docs/benchmarks.md and README.md.

use crate::{ports, setup, step::root};
use std::{
    fs,
    process::{Command, ExitCode},
};

/// The file of records that `hotmem report` writes.
const MEASURED_RECORDS: &str = "target/report/records.json";
/// The file of records that is checked in.
const CHECKED_IN_RECORDS: &str = "docs/records.json";

/// Writes the tables from the records in docs/records.json.
pub(crate) fn write() -> ExitCode {
    let status = Command::new("cargo")
        .args("run --quiet -p hotmem-lab --bin hotmem -- report --docs write".split(' '))
        .current_dir(root())
        .status();
    exit_code(status.is_ok_and(|status| status.success()))
}

/// Runs benches, and writes the tables from the new records. `benches` is a list of names with
/// commas between them. Without it, all benches run. The records of benches that do not run stay.
pub(crate) fn measure(benches: Option<&str>) -> ExitCode {
    // Failures are ignored, because the report names the missing programs.
    let _ = setup::run();
    let _ = ports::run("build");
    // The output of the report is not captured, because the report shows progress in the terminal.
    let mut report = Command::new("cargo");
    report.args("run --release --quiet -p hotmem-lab --bin hotmem -- report".split(' '));
    if let Some(benches) = benches {
        report.args(["--only", benches, "--replace-in", CHECKED_IN_RECORDS]);
    }
    let status = report.current_dir(root()).status();
    if !status.is_ok_and(|status| status.success()) {
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

fn exit_code(is_success: bool) -> ExitCode {
    if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
