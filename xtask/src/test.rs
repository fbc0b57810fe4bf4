//! `cargo xtask test`, `deep` and `busy`, which run the tests.

use crate::{
    alloc_free_instructions, embed,
    files::files,
    load::Load,
    packages, ports, stack,
    step::{Step, root},
    steps::Steps,
    table, text_size,
};
use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

/// Runs all tests that a change must pass.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::timed("cargo xtask test");
    // Without valgrind, tests that count instructions are skipped.
    steps.wants("valgrind");
    steps.run_beside(independent_lanes(), |steps| {
        steps.run_group("test");
        steps.run_beside(vec![table::steps("test-machines", &[])], |steps| {
            steps.run_group("test-many-machines");
            embed::check(steps);
            stack::check(steps);
            text_size::check(steps);
            alloc_free_instructions::check(steps);
        });
    });
    steps.conclude_tests()
}

/// Returns the lanes of steps that need nothing that other lanes build, except the program that boots the
/// ports.
fn independent_lanes() -> Vec<Vec<Step>> {
    let targets = table::steps("test-targets", &[]);
    vec![table::steps("test-builds", &[]), [targets, ports::first_kernels()].concat()]
}

/// Runs longer model checks and random tests, fuzzing, and all tests on a busy host and on one CPU.
pub(crate) fn run_deep() -> ExitCode {
    let mut steps = Steps::timed("cargo xtask deep");
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    println!("PROPTEST_RNG_SEED={seed}");
    let group = |group| table::steps(group, &[("seed", &seed.to_string())]);
    group("deep").iter().for_each(|step| steps.run(step));
    ports::check_all(&mut steps);
    group("deep-after-ports").iter().for_each(|step| steps.run(step));
    packages::test(&mut steps);
    fuzz(&mut steps);
    on_a_busy_host(&mut steps);
    steps.conclude_tests()
}

/// Runs all tests on a busy host and on one CPU.
pub(crate) fn run_busy() -> ExitCode {
    let mut steps = Steps::timed("cargo xtask busy");
    on_a_busy_host(&mut steps);
    steps.conclude_tests()
}

/// Runs all tests of `cargo xtask test` while other processes use all CPUs, and on one CPU. No test
/// may depend on the speed or the load of the host.
fn on_a_busy_host(steps: &mut Steps) {
    for step in table::steps("busy", &[]) {
        let _load = Load::start();
        steps.run(&step);
    }
    steps.run_group("one-cpu");
}

/// Runs each fuzz target of the repository for two minutes.
fn fuzz(steps: &mut Steps) {
    for file in files(root()) {
        let (Some(dir), Some(target)) = (file.parent(), file.file_stem()) else { continue };
        if let (true, Some(dir)) = (dir.ends_with("fuzz/fuzz_targets"), dir.parent()) {
            let (dir, target) = (dir.display(), target.display());
            let run = format!(
                "cargo +nightly fuzz run --fuzz-dir '{dir}' {target} -- -max_total_time=120"
            );
            let wants = vec!["fuzz".to_owned()];
            steps.run(&Step { wants, ..Step::new(format!("fuzzing {target}"), run) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Returns the directory in which a step of cargo builds. The test program that boots the ports is built
    /// in a moment.
    fn build_directory(step: &Step) -> Option<&str> {
        if !step.run.contains("cargo ") || step.run.contains(" --test ports ") {
            return None;
        }
        let directory = step.run.split_once("--target-dir ").map_or("target", |(_, words)| words);
        directory.split_whitespace().next()
    }

    /// Cargo would let a step of one lane wait for a step of another.
    #[test]
    fn lanes_beside_all_other_steps_build_in_directories_of_their_own() {
        let mut directories = BTreeSet::from(["target"]);
        let lanes = independent_lanes();
        for lane in &lanes {
            let own: BTreeSet<_> = lane.iter().filter_map(build_directory).collect();
            assert!(!own.is_empty() && own.is_disjoint(&directories), "{own:?}, {directories:?}");
            directories.extend(own);
        }
    }
}
