//! Checks the scenarios: if a mutant makes one step of the engine faulty, its scenario must fail.

use std::process::Command;
use std::string::{String, ToString};
use std::vec::Vec;
use std::{env, eprintln, format};

/// Runs each mutant of `mutants.txt` against its scenario, in a process of its own.
#[test]
fn every_mutant_is_killed() {
    let tests = env::current_exe().unwrap();
    let survivors = mutants().filter(|(mutant, scenario)| {
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
    });
    assert_eq!(survivors.collect::<Vec<_>>(), []);
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
