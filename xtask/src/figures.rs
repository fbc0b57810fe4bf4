//! `cargo xtask figures`: writes the tables of docs/benchmarks.md and README.md.

use crate::{ports, setup, step::root};
use std::{
    fs,
    process::{Command, ExitCode},
};

/// The file that `hotmem report` writes, and the file of records that is checked in.
const MEASURED: &str = "target/report/records.json";
const CHECKED_IN: &str = "docs/records.json";

/// Writes the tables from the records that are checked in.
pub(crate) fn write() -> ExitCode {
    let status = Command::new("cargo")
        .args("run --quiet -p hotmem-lab --bin hotmem -- report --docs write".split(' '))
        .current_dir(root())
        .status();
    exit_code(status.is_ok_and(|status| status.success()))
}

/// Measures everything anew and writes the tables from the new records.
pub(crate) fn take() -> ExitCode {
    // The report names the programs that are still missing.
    let _ = setup::everything(ports::prepare);
    let _ = ports::build();
    // Its output is not captured, because it shows progress on the terminal.
    let status = Command::new("cargo")
        .args("run --release --quiet -p hotmem-lab --bin hotmem -- report".split(' '))
        .current_dir(root())
        .status();
    if !status.is_ok_and(|status| status.success()) {
        return ExitCode::FAILURE;
    }
    match fs::copy(root().join(MEASURED), root().join(CHECKED_IN)) {
        Ok(_) => write(),
        Err(error) => {
            println!("{CHECKED_IN}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn exit_code(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
