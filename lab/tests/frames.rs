//! Tests of the number of instructions of an allocation and a free, which valgrind counts.

use std::process::{Command, Stdio};

const OPERATIONS: u32 = 1 << 8;

/// Returns the number of instructions for allocating and freeing one frame in a case of `hotmem bench
/// frames`, or `None` if valgrind is not installed.
fn per_pair(size: &str, place: &str, state: &str) -> Option<f64> {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        eprintln!("skipped: valgrind is not installed");
        return None;
    }
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--instr-atstart=no"])
        .arg(env!("CARGO_BIN_EXE_hotmem"))
        .args(["bench", "frames-case", "--subject", "hotmem", "--size", size])
        .args(["--length", "order0", "--threads", "1", "--place", place])
        .args(["--state", state, "--access", "pair"])
        .args(["--counts-instructions", "--operations", &OPERATIONS.to_string()])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    let count = report.lines().find_map(|line| line.split_once("Collected : "));
    let (_, count) = count.expect("valgrind's output has no count");
    let count: f64 = count.trim().parse().unwrap();
    assert!(count > 0.0, "the bench did not ask valgrind to count");
    Some(count / f64::from(OPERATIONS))
}

#[test]
fn a_movable_frame_from_kernel_memory_takes_as_many_instructions_with_64_cpus_as_with_1() {
    let per_pair = |state| per_pair("1G", "anywhere", state);
    let Some(one_cpu) = per_pair("without-movable") else { return };
    let Some(many_cpus) = per_pair("without-movable-64-cpus") else { return };
    println!("{one_cpu:.1} instructions with one CPU, {many_cpus:.1} with 64");
    // If each of the 63 other CPUs took one instruction more, the difference would be 63.
    assert!((one_cpu - many_cpus).abs() < 32.0, "{one_cpu:.1} and {many_cpus:.1}");
    let Some(movable) = per_pair("empty") else { return };
    assert!(movable < one_cpu, "{movable:.1} with movable memory, {one_cpu:.1} without");
}

#[test]
fn the_last_free_frame_of_low_memory_is_found_without_reading_each_pageblock_above() {
    let per_pair = |state| per_pair("5G", "low", state);
    let Some(half_free) = per_pair("low-half-used") else { return };
    let Some(one_free) = per_pair("low-one-free") else { return };
    println!(
        "{half_free:.1} instructions with half of low memory free, {one_free:.1} with a frame"
    );
    // The sections of the CPU's hints lie above low memory, and have 64 free pageblocks each.
    assert!(one_free < 4.0 * half_free, "{one_free:.1} and {half_free:.1}");
}
