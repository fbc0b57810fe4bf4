//! Tests of the instructions of an allocation, which valgrind counts. The count is the same in each
//! run.

use std::process::{Command, Stdio};

/// Returns the instructions that the whole process takes for one case of `hotmem bench frames`.
fn instructions(access: &str, operations: u64) -> f64 {
    let case = ["bench", "frames-case", "--subject", "hotmem", "--size", "1G", "--order", "0"];
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env!("CARGO_BIN_EXE_hotmem"))
        .args(case)
        .args(["--threads", "1", "--access", access, "--unbacked"])
        .args(["--operations", &operations.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let count = said.lines().find_map(|line| line.split_once("Collected : ")).expect("a count");
    count.1.trim().parse().unwrap()
}

/// Returns the instructions for allocating and freeing one frame: the difference of two runs, one
/// of which makes twice as many operations.
fn per_pair(access: &str) -> f64 {
    let operations = 1 << 12;
    let more = instructions(access, 2 * operations) - instructions(access, operations);
    more / operations as f64
}

#[test]
fn a_movable_frame_costs_the_same_however_many_cpus_there_are_without_movable_memory() {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        eprintln!("skipped: valgrind is not installed");
        return;
    }
    let (one, many) = (per_pair("pair-without-movable"), per_pair("pair-without-movable-64-cpus"));
    println!("{one:.1} instructions with one CPU, {many:.1} with 64");
    assert!((one - many).abs() < 2.0, "{one:.1} with one CPU, {many:.1} with 64");
    let movable = per_pair("pair");
    assert!(movable < one, "{movable:.1} where memory is movable, {one:.1} where none is");
}
