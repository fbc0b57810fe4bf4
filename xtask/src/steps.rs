//! Runs steps one after another or together, and adds up the test results in their output.

use crate::{
    step::{Step, end},
    table,
    times::{RecordedTimes, StepTime, rounded},
    tool::Tool,
};
use std::{
    collections::BTreeMap,
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
    /// The tools that were needed, and whether each is installed.
    tools: BTreeMap<String, bool>,
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

    /// Runs the steps of a group of the tables one after another.
    pub(crate) fn run_group(&mut self, group: &str) {
        table::steps(group, &[]).iter().for_each(|step| self.run(step));
    }

    /// Installs the tools of the step, runs it, shows its output and records the result.
    pub(crate) fn run(&mut self, step: &Step) {
        if !self.has_tools(step) {
            return;
        }
        self.announce(step);
        if let Some(message) = &step.must_fail_with {
            return self.must_fail(step, message);
        }
        let start = Instant::now();
        let outcome = self.stream(&mut step.command(), &mut std::io::stdout());
        self.record(step, start.elapsed(), outcome);
    }

    /// Returns whether a step can run, with the tools that it needs and without those that it must lack.
    /// Records why it cannot.
    fn has_tools(&mut self, step: &Step) -> bool {
        step.needs.iter().all(|tool| self.needs(tool))
            && step.wants.iter().all(|tool| self.wants(tool))
            && !step.lacks.iter().any(|tool| self.has(tool))
    }

    /// Installs a tool, unless it is installed. Returns whether it is installed now. If not, the task
    /// fails.
    pub(crate) fn needs(&mut self, tool: &str) -> bool {
        let (is_installed, message) = (self.has(tool), &table::tool(tool).wanted);
        if !is_installed && !self.missing_parts.contains(message) {
            self.missing(message);
        }
        is_installed
    }

    /// Installs a tool, unless it is installed. Returns whether it is installed now. If not, a part of the
    /// task is skipped.
    pub(crate) fn wants(&mut self, tool: &str) -> bool {
        let (is_installed, message) = (self.has(tool), &table::tool(tool).wanted);
        if !is_installed && !self.skipped_parts.contains(message) {
            self.skip(message);
        }
        is_installed
    }

    /// Installs a tool without a question, unless it is installed.
    pub(crate) fn install_unasked(&mut self, tool: &Tool) {
        self.tools.insert(tool.name.clone(), tool.install_unasked());
    }

    /// Installs a tool, unless this was tried before. Returns whether it is installed.
    fn has(&mut self, tool: &str) -> bool {
        *self.tools.entry(tool.to_owned()).or_insert_with(|| table::tool(tool).install())
    }

    /// Runs steps at the same time, for steps that leave CPUs idle. Shows the output of each when it
    /// has ended. Cargo compiles at the same time only for steps with different build directories.
    pub(crate) fn run_together(&mut self, steps: &[Step]) {
        let lanes: Vec<_> = steps.iter().map(std::slice::from_ref).collect();
        self.run_lanes(&lanes, &mut std::io::stdout(), |_| ());
    }

    /// Runs the steps of each lane one after another, and the lanes beside `foreground`, which leaves CPUs
    /// idle. Installs the tools of all lanes first. Shows the output of a lane when `foreground` has
    /// returned.
    pub(crate) fn run_beside(
        &mut self,
        mut lanes: Vec<Vec<Step>>,
        foreground: impl FnOnce(&mut Steps),
    ) {
        for lane in &mut lanes {
            lane.retain(|step| self.has_tools(step));
        }
        let lanes: Vec<_> = lanes.iter().map(Vec::as_slice).collect();
        self.run_lanes(&lanes, &mut std::io::stdout(), foreground);
    }

    /// Runs the steps of each lane one after another, and the lanes and `foreground` at the same time.
    /// Shows the output of a step in `out` when both the step and `foreground` have ended.
    fn run_lanes(
        &mut self,
        lanes: &[&[Step]],
        out: &mut impl Write,
        foreground: impl FnOnce(&mut Steps),
    ) {
        lanes.iter().copied().flatten().for_each(|step| self.announce(step));
        let (sender, ended) = channel();
        let run = |step: &Step| {
            let start = Instant::now();
            (step.output(), start.elapsed())
        };
        thread::scope(|scope| {
            for &lane in lanes {
                let sender = sender.clone();
                // The receiver lives as long as the scope.
                scope
                    .spawn(move || lane.iter().try_for_each(|step| sender.send((step, run(step)))));
            }
            drop(sender);
            foreground(self);
            for (step, (output, time)) in ended {
                println!("\n== {}, output", step.name);
                let outcome = output.map_err(|error| error.to_string()).and_then(|output| {
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
            Err(error) if time >= step.time_limit() => {
                self.fail(format!("{}: not ended after {seconds:.0} s ({error})", step.name));
            }
            Err(error) => self.fail(format!("{}: {error}", step.name)),
        }
        self.times.push(step_time);
    }

    /// Runs a step that must fail with this message.
    fn must_fail(&mut self, step: &Step, message: &str) {
        match step.output() {
            Err(error) => self.fail(format!("{}: {error}", step.name)),
            Ok(output) if output.outcome.is_ok() => {
                self.fail(format!("{}: it did not fail", step.name));
            }
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.text);
                if !text.contains(message) {
                    let name = &step.name;
                    self.fail(format!("{name}: it did not print `{message}`, but\n{text}"));
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
mod tests;
