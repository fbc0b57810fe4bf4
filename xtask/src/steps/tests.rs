//! Tests of the steps.

use super::*;
use crate::step;
use std::path::Path;

#[test]
fn test_results_are_parsed_from_cargos_output() {
    let ok = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";
    assert_eq!(test_result(ok), Some([12, 0, 1]));
    let bad = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
    assert_eq!(test_result(bad), Some([3, 2, 0]));
    assert_eq!(test_result("test result: confused"), None);
    assert_eq!(test_result("test frames ... ok"), None);
    assert_eq!(failed_test("test frames ... ok"), None);
}

#[test]
fn test_results_add_up_and_failed_commands_are_errors() {
    let mut steps = Steps::default();
    let line = "test one::two ... FAILED\ntest result: ok. 2 passed; 1 failed; 0 ignored";
    let mut shown = Vec::new();
    let mut printf = Command::new("printf");
    steps.stream(printf.arg(format!("{line}\n{line}\n")), &mut shown).unwrap();
    assert_eq!((steps.passed_test_count, steps.failed_test_count), (4, 2));
    assert_eq!(shown, format!("{line}\n{line}\n").as_bytes());
    assert_eq!(steps.problems_text(), "FAILED: one::two\nFAILED: one::two\n");
    assert!(steps.stream(&mut Command::new("false"), &mut shown).is_err());
    assert!(steps.stream(&mut Command::new("/nowhere/program"), &mut shown).is_err());
}

#[test]
fn the_longest_steps_come_first() {
    let times = [("short", 0.4, None), ("long", 12.0, None), ("longer", 345.2, Some(500.7))];
    let times = times.map(|(name, seconds, cpu_seconds)| StepTime {
        name: name.to_owned(),
        seconds,
        cpu_seconds,
    });
    let steps = Steps { times: times.into(), ..Steps::default() };
    assert_eq!(
        steps.times_text(),
        "  345 s,   501 s of CPU time  longer\n   12 s                       long\n"
    );
}

#[test]
fn skipped_steps_are_named_at_the_end_and_counted_on_the_last_line() {
    let mut steps = Steps::default();
    assert_eq!(
        (steps.problems_text().as_str(), steps.counts_text().as_str()),
        ("", "0 passed, 0 failed")
    );
    let line = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured";
    steps.stream(Command::new("echo").arg(line), &mut Vec::new()).unwrap();
    steps.skip("Xen: install it");
    assert_eq!(
        steps.problems_text(),
        "skipped: Xen: install it\nskipped: 1 tests that are marked `#[ignore]`\n"
    );
    assert_eq!(steps.counts_text(), "2 passed, 0 failed, 2 skipped");
    assert_eq!(steps.exit_code(), ExitCode::SUCCESS);
    steps.missing("QEMU: install it");
    assert!(steps.problems_text().starts_with("NOT RUN: QEMU: install it\n"));
    assert_eq!(steps.exit_code(), ExitCode::FAILURE);
}

#[test]
fn a_step_that_must_fail_must_print_the_message() {
    let step = |line| Step {
        must_fail_with: Some("too narrow".to_owned()),
        ..Step::new("a step that must fail", line)
    };
    let mut steps = Steps::default();
    steps.run(&step("echo too narrow >&2; false"));
    assert!(steps.failures.is_empty());
    steps.run(&step("echo too wide >&2; false"));
    steps.run(&step("echo too narrow >&2"));
    assert_eq!(steps.failures.len(), 2);
}

#[test]
fn lanes_and_the_foreground_run_at_the_same_time_and_their_results_add_up() {
    let dir = std::env::temp_dir().join(format!("hotmem-steps-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    // Each step waits for the file of another step.
    let line = |mine, other| {
        format!(
            "cd {}; touch {mine}; while ! test -e {other}; do sleep 0.01; done; \
             echo 'test result: ok. 2 passed; 1 failed; 0 ignored'; test {mine} != third",
            dir.display()
        )
    };
    let shell = |line: &str| Step { time_limit_s: Some(60), ..Step::new("a line", line) };
    let lines =
        [("first", "second"), ("second", "first"), ("third", "fourth"), ("fourth", "third")]
            .map(|(mine, other)| line(mine, other));
    let [first, second, third, fourth] = lines.each_ref().map(|line| shell(line));
    let mut steps = Steps::default();
    // `cargo xtask test` must not read these results as those of tests.
    let mut shown = Vec::new();
    let lanes = [&[first, third][..], &[second]];
    steps.run_lanes(&lanes, &mut shown, |steps| {
        let mut shown = Vec::new();
        let outcome = steps.stream(&mut fourth.command(), &mut shown);
        steps.record(&fourth, Duration::ZERO, outcome);
    });
    assert_eq!(String::from_utf8(shown).unwrap().lines().count(), 3);
    std::fs::remove_dir_all(dir).unwrap();
    assert_eq!((steps.passed_test_count, steps.failed_test_count, steps.times.len()), (8, 4, 4));
    assert_eq!(steps.failures.len(), 1);
}

/// Returns a line of the shell that appends a word to the file `order` in this directory.
fn note(dir: &Path, word: &str) -> String {
    format!("echo {word} >> {}/order; echo {word} 1; sleep 0.01; echo {word} 2", dir.display())
}

#[test]
fn a_lane_runs_in_order_after_a_failure_and_each_output_is_whole() {
    let dir = std::env::temp_dir().join(format!("hotmem-lanes-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let lane = |words: [&str; 3]| {
        words.map(|word| Step::new(word, format!("{}; test {word} != second", note(&dir, word))))
    };
    let (one, other) = (lane(["first", "second", "third"]), lane(["a", "b", "c"]));
    let mut steps = Steps::default();
    let mut shown = Vec::new();
    steps.run_lanes(&[&one, &other], &mut shown, |_| ());
    let order = std::fs::read_to_string(dir.join("order")).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    let of_lane = |lane: &[Step; 3]| -> Vec<String> {
        let is_of_lane = |word: &&str| lane.iter().any(|step| step.name == *word);
        order.lines().filter(is_of_lane).map(str::to_owned).collect()
    };
    assert_eq!(of_lane(&one), ["first", "second", "third"]);
    assert_eq!(of_lane(&other), ["a", "b", "c"]);
    assert_eq!(steps.failures, ["second: exit status: 1"]);
    let shown = String::from_utf8(shown).unwrap();
    for step in one.iter().chain(&other) {
        let output = format!("{} 1\n{} 2\n", step.name, step.name);
        assert!(shown.contains(&output), "{shown}");
    }
}

#[test]
fn only_timed_steps_have_times() {
    assert!(Steps::timed("a task of a test").task_times.is_some());
    assert!(Steps::default().task_times.is_none());
}

#[test]
fn a_step_is_ended_after_its_time_limit() {
    let mut steps = Steps::default();
    let step = Step { time_limit_s: Some(1), ..Step::new("sleep", "sleep 60") };
    steps.run(&step);
    // If the host cannot limit the time of a command, the step succeeds.
    assert_eq!(steps.failures.len(), usize::from(step::can_limit_time()));
}

#[test]
fn a_step_runs_if_its_tools_are_installed_and_each_missing_tool_is_named_once() {
    let mut steps = Steps::default();
    let installed = [("qemu", true), ("xen", false), ("cc", false)];
    steps.tools = installed.map(|(tool, is_installed)| (tool.to_owned(), is_installed)).into();
    let list = |tools: &[&str]| tools.iter().map(|&tool| tool.to_owned()).collect();
    let mut runs = |needs: &[&str], wants: &[&str], lacks: &[&str]| {
        let step = Step::new("a step", "true");
        let (needs, wants, lacks) = (list(needs), list(wants), list(lacks));
        steps.has_tools(&Step { needs, wants, lacks, ..step })
    };
    assert!(runs(&["qemu"], &["qemu"], &["xen", "cc"]));
    assert!(!runs(&["qemu"], &["xen"], &[]) && !runs(&[], &["qemu", "xen"], &[]));
    assert!(!runs(&["cc"], &["qemu"], &[]) && !runs(&["qemu", "cc"], &[], &[]));
    assert!(!runs(&[], &[], &["qemu"]));
    assert_eq!(steps.skipped_parts, [table::tool("xen").wanted.as_str()]);
    assert_eq!(steps.missing_parts, [table::tool("cc").wanted.as_str()]);
}
