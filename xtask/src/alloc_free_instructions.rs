//! `cargo xtask pair`, which prints the number of instructions for allocating and freeing one frame
//! by the C interface, without and with a function for CPU numbers, and by the Rust interface; and
//! those for runs by the Rust interface, and by other allocators.

use crate::{level_table, step::root, steps::Steps, table};
use std::{io, process::Command, process::ExitCode};

const PROGRAM: &str = "target/pair/pair";
/// The number of pairs of an allocation and a free in the shorter of two compared runs. The other
/// run makes twice as many.
const PAIRS: u64 = 10_000;
/// The numbers of frames that the Rust interface allocates, with the most instructions of a pair at
/// opt-level 3, if there are limits: for each kind of request, 2 % more than were counted last. The
/// program has these numbers as constants.
const LENGTHS: [(u64, Option<[f64; 3]>); 14] = [
    (1, Some([92.0, 110.0, 118.0])),
    (2, Some([119.0, 152.0, 167.0])),
    (3, None),
    (5, None),
    (8, None),
    (12, None),
    (32, Some([129.0, 161.0, 176.0])),
    (33, Some([294.0, 333.0, 276.0])),
    (64, Some([217.0, 255.0, 276.0])),
    (65, None),
    (128, Some([266.0, 304.0, 325.0])),
    (200, None),
    (256, Some([364.0, 402.0, 423.0])),
    (512, Some([132.0, 155.0, 165.0])),
];
/// The arguments of the cases of each length, and the kind of request: a constant number of frames, a
/// number that the compiler does not know, or an order that it does not know.
const CASES: [(&[&str], usize); 5] = [
    (&["constant", "divided"], 0),
    (&["constant", "empty"], 0),
    (&["hidden", "divided"], 1),
    (&["hidden", "empty"], 1),
    (&["aligned", "empty"], 2),
];

/// The most instructions that a pair takes more if its caller asks whether the frames are zero.
const MAX_FOR_ASKING: f64 = 15.0;

/// Builds the program at both optimisation levels and prints the table, and that of other allocators.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    if ["target", "cc", "valgrind"].iter().all(|tool| steps.needs(tool)) {
        let header = format!(
            "{:32}{:>8}{:>12}{:>8}{:>8}",
            "instructions, alloc and free", "C", "C with cpu", "Rust", "C/Rust"
        );
        level_table::print(&mut steps, &header, instructions_lines);
    }
    steps.run_group("pair-peers");
    steps.conclude()
}

/// Builds the program at opt-level 3. Fails if a pair executes more instructions than its limit.
pub(crate) fn check(steps: &mut Steps) {
    if !["target", "cc"].iter().all(|tool| steps.needs(tool)) || !steps.wants("valgrind") {
        return;
    }
    table::steps("pair", &[("level", "3")]).iter().for_each(|step| steps.run(step));
    for (frames, limits) in LENGTHS {
        for (case, kind) in CASES {
            let Some(max) = limits.map(|limits| limits[kind]) else { continue };
            match instructions_of(frames, case) {
                Ok(count) if count <= max => {}
                Ok(count) => steps.fail(format!(
                    "a pair of {frames} frames, {}: {count:.0} instructions, more than {max}",
                    case.join(", ")
                )),
                Err(error) => steps.fail(error.to_string()),
            }
        }
        check_asking(steps, frames);
    }
}

/// Fails if a pair of `frames` frames takes too many instructions more because its caller asks whether
/// the frames are zero.
fn check_asking(steps: &mut Steps, frames: u64) {
    match asking(frames) {
        Ok(counts) => {
            if let Some(message) = too_much_for_asking(frames, counts) {
                steps.fail(message);
            }
        }
        Err(error) => steps.fail(error.to_string()),
    }
}

/// Says that a pair with these counts, in the order of [`asking`], takes too many instructions more
/// because its caller asks, if it does.
fn too_much_for_asking(frames: u64, [without, with, among_zero]: [f64; 3]) -> Option<String> {
    let more = (with.max(among_zero) - without).round();
    (more > MAX_FOR_ASKING).then(|| {
        format!(
            "a pair of {frames} frames whose caller asks whether they are zero: {more} instructions \
             more than one whose caller does not ask, more than {MAX_FOR_ASKING}"
        )
    })
}

/// Builds the program at an optimisation level. Returns its lines of the table.
fn instructions_lines(steps: &mut Steps, level: &str) -> io::Result<String> {
    table::steps("pair", &[("level", level)]).iter().for_each(|step| steps.run(step));
    let name = format!("opt-level {level}");
    let per_pair = |interface| instructions_per_pair(interface, &[]);
    let (c, c_with_cpu, rust) = (per_pair("c")?, per_pair("ccpu")?, per_pair("rust")?);
    let mut lines = format!("{name:32}{c:>8.0}{c_with_cpu:>12.0}{rust:>8.0}{:>8.2}\n", c / rust);
    lines += "\n  runs, in Rust: the number of frames is a constant, or hidden from the compiler, or an\n";
    lines +=
        "  order is hidden, and the frames are aligned; pageblocks are divided already, or all\n";
    lines += "  memory is free\n    ";
    for (case, _) in CASES {
        lines += &format!("{:>18}", case.join(", "));
    }
    lines += "\n";
    for (frames, _) in LENGTHS {
        lines += &format!("{frames:>4}");
        for (case, _) in CASES {
            lines += &format!("{:>18.0}", instructions_of(frames, case)?);
        }
        lines += "\n";
    }
    lines += "\n  a constant number of frames; the caller asks whether they are zero, while no memory is\n";
    lines += "  known to be zero, and while all unused memory is\n";
    lines += "            not asked             asked      asked, among zero memory\n";
    for (frames, _) in LENGTHS {
        let [without, with, among_zero] = asking(frames)?;
        lines += &format!("{frames:>4}{without:>17.0}{with:>18.0}{among_zero:>18.0}\n");
    }
    Ok(lines)
}

/// Returns the instructions of a pair of `frames` frames that does not ask whether they are zero, of one
/// that does, and of one that does while other memory is known to be zero.
fn asking(frames: u64) -> io::Result<[f64; 3]> {
    let of = |question| instructions_of(frames, &["constant", question, "divided"]);
    Ok([of("")?, of("asking")?, of("asking-among-zero")?])
}

/// Returns the number of instructions of a pair of `frames` frames by the Rust interface.
fn instructions_of(frames: u64, case: &[&str]) -> io::Result<f64> {
    instructions_per_pair("rust", &[&[frames.to_string().as_str()], case].concat())
}

/// Returns the number of instructions of a pair of an allocation and a free.
fn instructions_per_pair(interface: &str, arguments: &[&str]) -> io::Result<f64> {
    let of = |pairs| instructions(interface, pairs, arguments);
    Ok((of(2 * PAIRS)? - of(PAIRS)?) / PAIRS as f64)
}

/// Runs the program under valgrind's callgrind. Returns the number of executed instructions.
fn instructions(interface: &str, pairs: u64, arguments: &[&str]) -> io::Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(root().join(PROGRAM))
        .args([interface, &pairs.to_string()])
        .args(arguments)
        .output()?;
    let report = String::from_utf8_lossy(&output.stderr);
    let count = report.lines().find_map(|line| line.split_once("Collected : "));
    match count.and_then(|(_, count)| count.trim().parse::<f64>().ok()) {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(io::Error::other(format!("{}: {report}", output.status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_asks_may_take_15_instructions_more() {
        assert_eq!(too_much_for_asking(1, [80.0, 95.0, 95.01]), None);
        for counts in [[80.0, 96.0, 91.0], [80.0, 91.0, 96.0]] {
            let message = too_much_for_asking(33, counts).unwrap();
            assert!(message.contains("33 frames") && message.contains(" 16 instr"), "{message}");
        }
    }
}
