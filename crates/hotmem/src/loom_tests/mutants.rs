//! Checks the scenarios: if a mutant makes one step of the engine faulty, its scenario must fail.

use std::num::NonZero;
use std::process::Command;
use std::string::{String, ToString};
use std::sync::Mutex;
use std::vec::Vec;
use std::{env, eprintln, format, thread};

/// Runs each mutant of `mutants.txt` against its scenario, in a process of its own. As many run at the
/// same time as there are CPUs.
#[test]
fn every_mutant_is_killed() {
    let tests = env::current_exe().unwrap();
    let survives = |mutant: &str, scenario: &str| {
        let mut run = Command::new(&tests);
        run.args(["--exact", &format!("loom_tests::{scenario}")]).env("HOTMEM_MUTANT", mutant);
        let run = run.output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(
            text.contains("running 1 test"),
            "mutants.txt names the scenario {scenario}, which does not exist"
        );
        assert!(
            !text.contains("sync/mutants.rs"),
            "the engine has no function or statement {mutant}: {text}"
        );
        eprintln!("{mutant}: {scenario} says {}", verdict(&text));
        run.status.success()
    };
    let (mutants, survivors) = (Mutex::new(mutants()), Mutex::new(Vec::new()));
    let check_some = || {
        // The lock is released before the check.
        while let Some((mutant, scenario)) = { mutants.lock().unwrap().next() } {
            if survives(mutant, scenario) {
                survivors.lock().unwrap().push((mutant, scenario));
            }
        }
    };
    // A scenario runs on one CPU.
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| (0..cpus).for_each(|_| drop(scope.spawn(check_some))));
    assert_eq!(survivors.into_inner().unwrap(), []);
}

/// Returns the line of the output that says why the scenario failed.
fn verdict(text: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
    lines.nth(1).unwrap_or("nothing").to_string()
}

/// Iterates over the lines of `mutants.txt`, as pairs of a mutant and its scenario.
fn mutants() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("mutants.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(" -> "))
}
