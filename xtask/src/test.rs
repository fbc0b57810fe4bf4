//! `cargo xtask test`, `deep` and `busy`, which run the tests.

use crate::{
    embed,
    load::Load,
    packages, ports, stack,
    step::{Step, root},
    steps::Steps,
    table,
};
use std::{
    path::{Path, PathBuf},
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

/// Runs each fuzz target for two minutes.
fn fuzz(steps: &mut Steps) {
    let crates = root().join("crates");
    let guests = ["guest", "guest-pseries"].map(|guest| root().join(guest));
    for dir in entries(&crates).chain(guests).map(|package| package.join("fuzz")) {
        for file in entries(&dir.join("fuzz_targets")) {
            let target = file.file_stem().unwrap_or_default().to_string_lossy();
            let dir = dir.strip_prefix(root()).unwrap_or(&dir).display();
            let run =
                format!("cargo +nightly fuzz run --fuzz-dir {dir} {target} -- -max_total_time=120");
            let wants = vec!["fuzz".to_owned()];
            steps.run(&Step { wants, ..Step::new(format!("fuzzing {target}"), run) });
        }
    }
}

/// Returns the entries of a directory. A missing directory counts as empty.
fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path())
}
