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
    steps.run_beside("test-beside", |steps| {
        steps.run_group("test");
        embed::check(steps);
        ports::check(steps);
        stack::check(steps);
        text_size::check(steps);
        alloc_free_instructions::check(steps);
    });
    steps.conclude_tests()
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
