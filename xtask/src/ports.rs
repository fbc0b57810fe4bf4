//! `cargo xtask ports`, which builds and boots the ports: other kernels with Hotmem as their frame
//! allocator.

use crate::{step::Step, steps::Steps, table};
use std::process::ExitCode;

const PORTS: [&str; 3] = ["arceos", "ostd", "c-kernel"];
/// The port that is built from 178 crates, which takes five minutes. `cargo xtask deep` builds and checks it.
const LARGE_PORT: &str = "tgoskits";

/// Builds the kernels of the port with this name and runs their tests, or builds those of all ports
/// if the name is `build`.
pub(crate) fn run(port: &str) -> ExitCode {
    let mut steps = Steps::default();
    if port == "build" {
        run_parts(&mut steps, &PORTS, &["first", "others"]);
        return steps.conclude();
    }
    run_parts(&mut steps, &[port], &["first", "others", "tests"]);
    steps.conclude_tests()
}

/// Returns the steps that build the first kernel of each port and boot it.
pub(crate) fn first_kernels() -> Vec<Step> {
    steps_of(&PORTS, &["first", "smoke"])
}

/// Builds all kernels of all ports and runs all their tests.
pub(crate) fn check_all(steps: &mut Steps) {
    run_parts(steps, &PORTS, &["first", "others", "tests"]);
    run_parts(steps, &[LARGE_PORT], &["lint", "first", "tests"]);
}

/// Checks the formatting of Hotmem's own code in the ports, and runs clippy on it.
pub(crate) fn lint(steps: &mut Steps) {
    run_parts(steps, &PORTS, &["lint"]);
}

/// Runs these parts of the steps of each port.
fn run_parts(steps: &mut Steps, ports: &[&str], parts: &[&str]) {
    steps_of(ports, parts).iter().for_each(|step| steps.run(step));
}

/// Returns these parts of the steps of each port. A port need not have all parts.
fn steps_of(ports: &[&str], parts: &[&str]) -> Vec<Step> {
    let groups =
        ports.iter().flat_map(|port| parts.iter().map(move |part| format!("{port}-{part}")));
    groups
        .filter(|group| table::has_steps(group))
        .flat_map(|group| table::steps(&group, &[]))
        .collect()
}

#[cfg(test)]
mod tests;
