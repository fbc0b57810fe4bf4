//! Tests of the number of instructions of an allocation. valgrind counts them, for a whole process,
//! so that the number for one operation differs by up to 3 between runs.

use std::process::{Command, Stdio};

/// Returns the number of instructions of a process that runs one case of `hotmem bench frames`.
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
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    let (_, count) = report
        .lines()
        .find_map(|line| line.split_once("Collected : "))
        .expect("valgrind's output has no count");
    count.trim().parse().unwrap()
}

/// Returns the number of instructions for allocating and freeing one frame. This is the difference
/// of two runs, of which one makes twice as many operations, for each additional operation.
fn per_pair(access: &str) -> f64 {
    let operations = 1 << 12;
    let difference = instructions(access, 2 * operations) - instructions(access, operations);
    difference / operations as f64
}

#[test]
fn a_movable_frame_from_kernel_memory_takes_as_many_instructions_with_64_cpus_as_with_1() {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        eprintln!("skipped: valgrind is not installed");
        return;
    }
    let (one_cpu, many_cpus) =
        (per_pair("pair-without-movable"), per_pair("pair-without-movable-64-cpus"));
    println!("{one_cpu:.1} instructions with one CPU, {many_cpus:.1} with 64");
    // If each of the 63 other CPUs took one instruction more, the difference would be 63.
    assert!((one_cpu - many_cpus).abs() < 32.0, "{one_cpu:.1} and {many_cpus:.1}");
    let movable = per_pair("pair");
    assert!(movable < one_cpu, "{movable:.1} with movable memory, {one_cpu:.1} without");
}
