//! `cargo xtask pair`, which prints the number of instructions for allocating and freeing one frame
//! by the C interface, without and with a function for CPU numbers, and by the Rust interface.

use crate::{level_table, step::root, steps::Steps, table};
use std::{io, process::Command, process::ExitCode};

const PROGRAM: &str = "target/pair/pair";
/// The number of pairs of an allocation and a free in the shorter of two compared runs. The other
/// run makes twice as many.
const PAIRS: u64 = 10_000;

/// Builds the program at both optimisation levels and prints the table.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    if ["target", "cc", "valgrind"].iter().all(|tool| steps.needs(tool)) {
        let header = format!(
            "{:32}{:>8}{:>12}{:>8}{:>8}",
            "instructions, alloc and free", "C", "C with cpu", "Rust", "C/Rust"
        );
        level_table::print(&mut steps, &header, instructions_line);
    }
    steps.conclude()
}

/// Builds the program at an optimisation level. Returns its line of the table.
fn instructions_line(steps: &mut Steps, level: &str) -> io::Result<String> {
    table::steps("pair", &[("level", level)]).iter().for_each(|step| steps.run(step));
    let per_pair = |interface| -> io::Result<f64> {
        let (fewer, more) = (instructions(interface, PAIRS)?, instructions(interface, 2 * PAIRS)?);
        Ok((more - fewer) / PAIRS as f64)
    };
    let name = format!("opt-level {level}");
    let (c, c_with_cpu, rust) = (per_pair("c")?, per_pair("ccpu")?, per_pair("rust")?);
    Ok(format!("{name:32}{c:>8.0}{c_with_cpu:>12.0}{rust:>8.0}{:>8.2}\n", c / rust))
}

/// Runs the program under valgrind's callgrind. Returns the number of executed instructions.
fn instructions(interface: &str, pairs: u64) -> io::Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(root().join(PROGRAM))
        .args([interface, &pairs.to_string()])
        .output()?;
    let report = String::from_utf8_lossy(&output.stderr);
    let count = report.lines().find_map(|line| line.split_once("Collected : "));
    match count.and_then(|(_, count)| count.trim().parse::<f64>().ok()) {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(io::Error::other(format!("{}: {report}", output.status))),
    }
}
