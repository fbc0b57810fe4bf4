//! Runs steps one after another or together, and adds up the test results in their output.

use crate::{
    step::{Step, end},
    times::{RecordedTimes, StepTime, rounded},
};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, ExitCode, Stdio},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

/// The results of a task's steps.
#[derive(Default)]
pub(crate) struct Steps {
    task_times: Option<TimedTask>,
    /// The steps that were run.
    times: Vec<StepTime>,
    passed_test_count: u64,
    failed_test_count: u64,
    /// Tests that are marked `#[ignore]`.
    ignored_test_count: u64,
    /// The names of tests that failed.
    failed_test_names: Vec<String>,
    /// Messages about steps and checks that failed.
    failures: Vec<String>,
    /// Messages about required parts of the task that could not be run.
    missing_parts: Vec<String>,
    /// Messages about optional parts of the task that could not be run.
    skipped_parts: Vec<String>,
}

/// A task that prints the usual time of the task and of its steps.
struct TimedTask {
    task: &'static str,
    start: Instant,
    times: RecordedTimes,
}

impl Steps {
    /// Returns empty results of a task that prints the usual time of the task and of its steps.
    pub(crate) fn timed(task: &'static str) -> Steps {
        let times = RecordedTimes::of_this_machine();
        println!("== {task}{}", usual_time(&times, task));
        let timed = TimedTask { task, start: Instant::now(), times };
        Steps { task_times: Some(timed), ..Steps::default() }
    }

    /// Prints the step's name, its explanation and its usual time on this machine.
    fn announce(&self, step: &Step) {
        let usual = self.task_times.as_ref().map(|timed| usual_time(&timed.times, &step.name));
        println!("\n== {}{}", step.name, usual.unwrap_or_default());
        if !step.description.is_empty() {
            println!("   {}", step.description);
        }
    }

    /// Runs the step, shows its output and records the result.
    pub(crate) fn run(&mut self, step: &Step) {
        self.announce(step);
        let start = Instant::now();
        let outcome = self.stream(&mut step.command(), &mut std::io::stdout());
        self.record(step, start.elapsed(), outcome);
    }

    /// Runs steps at the same time, for steps that leave CPUs idle. Shows the output of each when it
    /// has ended. Cargo compiles at the same time only for steps with different build directories.
    pub(crate) fn run_together(&mut self, steps: &[Step]) {
        self.run_together_to(steps, &mut std::io::stdout());
    }

    /// Does what [`Steps::run_together`] does, with `out` for the output of the steps.
    fn run_together_to(&mut self, steps: &[Step], out: &mut impl Write) {
        steps.iter().for_each(|step| self.announce(step));
        let start = Instant::now();
        let (sender, ended) = channel();
        let run = |step: &Step| (step.output(), start.elapsed());
        thread::scope(|scope| {
            for step in steps {
                let sender = sender.clone();
                // The receiver lives as long as the scope.
                scope.spawn(move || sender.send((step, run(step))));
            }
            drop(sender);
            for (step, (output, time)) in ended {
                println!("\n== {}, output", step.name);
                let outcome = output.and_then(|output| {
                    print!("{}", String::from_utf8_lossy(&output.errors));
                    self.show(output.text.as_slice(), out)?;
                    output.outcome
                });
                self.record(step, time, outcome);
            }
        });
    }

    /// Records the time and the outcome of a step that has ended: its CPU time, if that is known.
    fn record(&mut self, step: &Step, time: Duration, outcome: Result<Option<f64>, String>) {
        let seconds = time.as_secs_f64();
        let cpu_seconds = outcome.as_ref().ok().copied().flatten();
        let step_time = StepTime { name: step.name.clone(), seconds, cpu_seconds };
        match outcome {
            Ok(_) => {
                println!("== {step_time}");
                if let Some(timed) = &mut self.task_times {
                    timed.times.record(&step.name, seconds);
                }
            }
            Err(error) if time >= step.time_limit => {
                self.fail(format!("{}: not ended after {seconds:.0} s ({error})", step.name));
            }
            Err(error) => self.fail(format!("{}: {error}", step.name)),
        }
        self.times.push(step_time);
    }

    /// Runs a step that must fail with this message.
    pub(crate) fn must_fail(&mut self, step: &Step, message: &str) {
        println!("\n== {}", step.name);
        match step.command().output() {
            Err(error) => self.fail(format!("{}: {error}", step.name)),
            Ok(output) if output.status.success() => {
                self.fail(format!("{}: it did not fail", step.name));
            }
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                if !stderr.contains(message) {
                    self.fail(format!(
                        "{}: it did not print `{message}`, but\n{stderr}",
                        step.name
                    ));
                }
            }
        }
    }

    /// Shows the output line by line and adds up the test results in it. Returns the CPU time of the
    /// command in seconds, if it is known.
    fn stream(
        &mut self,
        command: &mut Command,
        out: &mut impl Write,
    ) -> Result<Option<f64>, String> {
        let mut child =
            command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        if let Some(output) = child.stdout.take() {
            self.show(BufReader::new(output), out)?;
        }
        end(child)
    }

    /// Shows lines of output and adds up the test results in them.
    fn show(&mut self, output: impl BufRead, out: &mut impl Write) -> Result<(), String> {
        for line in output.lines() {
            let line = line.map_err(|error| error.to_string())?;
            let [passed, failed, ignored] = test_result(&line).unwrap_or_default();
            self.passed_test_count += passed;
            self.failed_test_count += failed;
            self.ignored_test_count += ignored;
            self.failed_test_names.extend(failed_test(&line).map(str::to_owned));
            // If the output cannot be shown, the tests continue.
            let _ = writeln!(out, "{line}");
        }
        Ok(())
    }

    /// Records a step or a check that failed.
    pub(crate) fn fail(&mut self, message: String) {
        println!("== FAILED: {message}");
        self.failures.push(message);
    }

    /// Records a required part of the task that could not be run. The task then fails.
    pub(crate) fn missing(&mut self, message: impl Into<String>) {
        let message = message.into();
        println!("\n== NOT RUN: {message}");
        self.missing_parts.push(message);
    }

    /// Records an optional part of the task that could not be run.
    pub(crate) fn skip(&mut self, message: impl Into<String>) {
        let message = message.into();
        println!("\n== skipped: {message}");
        self.skipped_parts.push(message);
    }

    /// Prints the summary of a task with tests. The last line has the number of tests.
    pub(crate) fn conclude_tests(mut self) -> ExitCode {
        if let Some(TimedTask { task, start, .. }) = self.task_times.take() {
            println!("\n== {task}: {}", rounded(start.elapsed().as_secs_f64()));
        }
        println!("\n{}{}{}", self.times_text(), self.problems_text(), self.counts_text());
        self.exit_code()
    }

    /// Prints the summary.
    pub(crate) fn conclude(self) -> ExitCode {
        print!("\n{}{}", self.times_text(), self.problems_text());
        self.exit_code()
    }

    /// Returns the seconds of each step that took at least one and its CPU seconds, one step on each
    /// line, the longest first.
    fn times_text(&self) -> String {
        let mut times: Vec<_> = self.times.iter().filter(|time| time.seconds >= 1.0).collect();
        times.sort_by(|first, second| second.seconds.total_cmp(&first.seconds));
        times.iter().map(|time| time.table_line()).collect()
    }

    /// Returns the names of failed tests and of failed, missing and skipped steps, one on each
    /// line.
    fn problems_text(&self) -> String {
        let ignored = format!("{} tests that are marked `#[ignore]`", self.ignored_test_count);
        let ignored = (self.ignored_test_count > 0).then_some(&ignored);
        let lines = |word: &'static str, names: &mut dyn Iterator<Item = &String>| -> String {
            names.map(|name| format!("{word}: {name}\n")).collect()
        };
        lines("FAILED", &mut self.failed_test_names.iter().chain(&self.failures))
            + &lines("NOT RUN", &mut self.missing_parts.iter())
            + &lines("skipped", &mut self.skipped_parts.iter().chain(ignored))
    }

    /// Returns a text with the number of tests that passed and failed, and the number of steps and
    /// tests that were skipped, if any.
    fn counts_text(&self) -> String {
        let skipped = match self.skipped_parts.len() as u64 + self.ignored_test_count {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        format!("{} passed, {} failed{skipped}", self.passed_test_count, self.failed_test_count)
    }

    fn exit_code(&self) -> ExitCode {
        let is_success = self.failures.is_empty()
            && self.missing_parts.is_empty()
            && self.failed_test_count == 0;
        if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Returns a text with the usual time of a step or task.
fn usual_time(times: &RecordedTimes, name: &str) -> String {
    let usual = times.median(name).map(|seconds| format!(": usually {}", rounded(seconds)));
    usual.unwrap_or_else(|| ": no earlier run on this machine".to_owned())
}

/// Parses a line such as `test result: ok. 12 passed; 0 failed; …`. Returns the number of tests
/// that passed, failed and were ignored.
fn test_result(line: &str) -> Option<[u64; 3]> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |word: &str| -> Option<u64> {
        counts.split("; ").find_map(|part| part.strip_suffix(word))?.trim().parse().ok()
    };
    Some([count("passed")?, count("failed")?, count("ignored")?])
}

/// Parses a line such as `test frames::free ... FAILED`. Returns the test's name.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step;

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
        let shell = |line| Step::shell("sh", line);
        let mut steps = Steps::default();
        steps.must_fail(&shell("echo too narrow >&2; false"), "too narrow");
        assert!(steps.failures.is_empty());
        steps.must_fail(&shell("echo too wide >&2; false"), "too narrow");
        steps.must_fail(&shell("echo too narrow >&2"), "too narrow");
        assert_eq!(steps.failures.len(), 2);
    }

    #[test]
    fn steps_run_at_the_same_time_and_their_results_add_up() {
        let dir = std::env::temp_dir().join(format!("hotmem-steps-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        // Each step waits for the file of the other step.
        let line = |mine, other| {
            format!(
                "cd {}; touch {mine}; while ! test -e {other}; do sleep 0.01; done; \
                 echo 'test result: ok. 2 passed; 1 failed; 0 ignored'; test {mine} = first",
                dir.display()
            )
        };
        let lines = [line("first", "second"), line("second", "first")];
        let shell = |line| Step::shell("sh", line);
        let both = lines.each_ref().map(|line| shell(line).time_limit_s(60));
        let mut steps = Steps::default();
        // `cargo xtask test` must not read these results as those of tests.
        let mut shown = Vec::new();
        steps.run_together_to(&both, &mut shown);
        assert_eq!(String::from_utf8(shown).unwrap().lines().count(), 2);
        std::fs::remove_dir_all(dir).unwrap();
        assert_eq!(
            (steps.passed_test_count, steps.failed_test_count, steps.times.len()),
            (4, 2, 2)
        );
        assert_eq!(steps.failures.len(), 1);
    }

    #[test]
    fn only_timed_steps_have_times() {
        assert!(Steps::timed("a task of a test").task_times.is_some());
        assert!(Steps::default().task_times.is_none());
    }

    #[test]
    fn a_step_is_ended_after_its_time_limit() {
        let mut steps = Steps::default();
        let step = Step::program("sleep", "sleep", "60").time_limit_s(1);
        steps.run(&step);
        // If the host cannot limit the time of a command, the step succeeds.
        assert_eq!(steps.failures.len(), usize::from(step::can_limit_time()));
    }
}
