//! Commands run one after another: each with a time budget, their test results added up.

use crate::times::{Times, human};
use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// Returns the workspace's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// What the steps of a task came to.
#[derive(Default)]
pub(crate) struct Steps {
    timed: Option<Timed>,
    passed: u64,
    failed: u64,
    /// Tests that their own binary leaves out.
    ignored: u64,
    failures: Vec<String>,
    missing: Vec<String>,
    skipped: Vec<String>,
}

/// A task that says how long it and its steps usually take.
struct Timed {
    task: &'static str,
    start: Instant,
    times: Times,
}

/// A command line, its environment and how long it may take.
pub(crate) struct Step<'a> {
    name: &'a str,
    about: &'a str,
    program: &'a str,
    args: Vec<&'a str>,
    env: Vec<(&'a str, String)>,
    budget: Duration,
}

impl<'a> Step<'a> {
    /// Returns a call of cargo; `args` are separated by spaces.
    pub(crate) fn cargo(name: &'a str, args: &'a str) -> Step<'a> {
        let budget = Duration::from_secs(1500);
        let args = args.split(' ').collect();
        Step { name, about: "", program: "cargo", args, env: Vec::new(), budget }
    }

    /// Returns what it does, in a line for whoever waits.
    pub(crate) fn about(self, about: &'a str) -> Step<'a> {
        Step { about, ..self }
    }

    /// Returns an environment variable of it.
    pub(crate) fn env(mut self, name: &'a str, value: impl Into<String>) -> Step<'a> {
        self.env.push((name, value.into()));
        self
    }

    /// Returns how many seconds it may take, 1500 unless said.
    pub(crate) fn seconds(self, seconds: u64) -> Step<'a> {
        Step { budget: Duration::from_secs(seconds), ..self }
    }

    /// Returns where coreutils and util-linux are at hand they see to it that nothing is left
    /// running, neither after the budget nor after this program's own end.
    fn command(&self) -> Command {
        let seconds = self.budget.as_secs().to_string();
        let guard = ["setpriv", "--pdeathsig", "TERM", "timeout", "--kill-after=10", &seconds];
        let mut words = if can_guard() { guard.to_vec() } else { Vec::new() };
        words.push(self.program);
        words.extend(&self.args);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(root()).stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Returns whether [`Step::command`]'s guards are at hand.
fn can_guard() -> bool {
    runs("setpriv", &["--pdeathsig", "TERM", "timeout", "60", "true"])
}

/// Returns whether the program is there and succeeds; nothing is shown of it.
pub(crate) fn runs(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Steps {
    /// Steps of a task, which say how long they usually take.
    pub(crate) fn timed(task: &'static str) -> Steps {
        let times = Times::at(root().join("target/xtask-times"));
        println!("== {task}{}", usually(&times, task));
        let timed = Timed { task, start: Instant::now(), times };
        Steps { timed: Some(timed), ..Steps::default() }
    }

    /// Says what the step does, and how long that usually takes on this machine.
    fn announce(&self, step: &Step<'_>) {
        let usual = self.timed.as_ref().map(|timed| usually(&timed.times, step.name));
        println!("\n== {}{}", step.name, usual.unwrap_or_default());
        if !step.about.is_empty() {
            println!("   {}", step.about);
        }
    }

    /// Runs the step, shows what it says and notes what came of it.
    pub(crate) fn run(&mut self, step: &Step<'_>) {
        self.announce(step);
        let start = Instant::now();
        let outcome = self.stream(&mut step.command(), &mut std::io::stdout());
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                println!("== {}: {seconds:.0} s", step.name);
                if let Some(timed) = &mut self.timed {
                    timed.times.keep(step.name, seconds);
                }
            }
            Err(why) if start.elapsed() >= step.budget => {
                self.fail(format!("{}: not done after {seconds:.0} s ({why})", step.name));
            }
            Err(why) => self.fail(format!("{}: {why}", step.name)),
        }
    }

    /// Runs a step that must fail, and say so.
    pub(crate) fn must_fail(&mut self, step: &Step<'_>, says: &str) {
        println!("\n== {}", step.name);
        match step.command().output() {
            Err(why) => self.fail(format!("{}: {why}", step.name)),
            Ok(output) if output.status.success() => {
                self.fail(format!("{}: it did not fail", step.name));
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                if !said.contains(says) {
                    self.fail(format!("{}: it did not say `{says}`, but\n{said}", step.name));
                }
            }
        }
    }

    /// Shows the output line by line and adds up the results in it.
    fn stream(&mut self, command: &mut Command, out: &mut impl Write) -> Result<(), String> {
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
        for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
            let line = line.map_err(|e| e.to_string())?;
            let [passed, failed, ignored] = test_result(&line).unwrap_or_default();
            self.passed += passed;
            self.failed += failed;
            self.ignored += ignored;
            // Whoever reads this may have gone; the tests go on.
            let _ = writeln!(out, "{line}");
        }
        let status = child.wait().map_err(|e| e.to_string())?;
        if status.success() { Ok(()) } else { Err(status.to_string()) }
    }

    /// A step that failed, or a check that does not hold.
    pub(crate) fn fail(&mut self, what: String) {
        println!("== FAILED: {what}");
        self.failures.push(what);
    }

    /// Something that belongs to the task and could not be run: the task does not succeed.
    pub(crate) fn missing(&mut self, what: impl Into<String>) {
        let what = what.into();
        println!("\n== NOT RUN: {what}");
        self.missing.push(what);
    }

    /// Something that is extra and could not be run.
    pub(crate) fn skip(&mut self, what: impl Into<String>) {
        let what = what.into();
        println!("\n== skipped: {what}");
        self.skipped.push(what);
    }

    /// Sums up, the counts of tests on the last line.
    pub(crate) fn conclude_tests(mut self) -> ExitCode {
        if let Some(Timed { task, start, mut times }) = self.timed.take() {
            let seconds = start.elapsed().as_secs_f64();
            times.keep(task, seconds);
            println!("\n== {task}: {}", human(seconds));
        }
        println!("\n{}{}", self.names(), self.counts());
        self.exit_code()
    }

    /// Sums up.
    pub(crate) fn conclude(self) -> ExitCode {
        print!("\n{}", self.names());
        self.exit_code()
    }

    /// Returns what went wrong and what was left out, each on a line of its own.
    fn names(&self) -> String {
        let ignored = format!("{} of the tests, by their own mark", self.ignored);
        let ignored = (self.ignored > 0).then_some(&ignored);
        let lines = |word: &'static str, names: &mut dyn Iterator<Item = &String>| -> String {
            names.map(|name| format!("{word}: {name}\n")).collect()
        };
        lines("FAILED", &mut self.failures.iter())
            + &lines("NOT RUN", &mut self.missing.iter())
            + &lines("skipped", &mut self.skipped.iter().chain(ignored))
    }

    /// Returns how many tests passed and failed; and how many steps and tests were skipped, if any.
    fn counts(&self) -> String {
        let skipped = match self.skipped.len() as u64 + self.ignored {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        format!("{} passed, {} failed{skipped}", self.passed, self.failed)
    }

    fn exit_code(&self) -> ExitCode {
        let good = self.failures.is_empty() && self.missing.is_empty() && self.failed == 0;
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Returns what to say of how long something takes.
fn usually(times: &Times, what: &str) -> String {
    let usual = times.usual(what).map(|seconds| format!(": usually {}", human(seconds)));
    usual.unwrap_or_else(|| ": for the first time here".to_owned())
}

/// Returns the tests that passed, failed and were ignored, of `test result: ok. 12 passed; 0
/// failed; …`.
fn test_result(line: &str) -> Option<[u64; 3]> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |what: &str| -> Option<u64> {
        counts.split("; ").find_map(|part| part.strip_suffix(what))?.trim().parse().ok()
    };
    Some([count("passed")?, count("failed")?, count("ignored")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_off_cargos_lines() {
        let ok = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(test_result(ok), Some([12, 0, 1]));
        let bad = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(test_result(bad), Some([3, 2, 0]));
        assert_eq!(test_result("test result: confused"), None);
        assert_eq!(test_result("test frames ... ok"), None);
    }

    #[test]
    fn steps_add_up_and_failures_stay() {
        let mut steps = Steps::default();
        let line = "test result: ok. 2 passed; 1 failed; 0 ignored";
        let mut shown = Vec::new();
        let mut printf = Command::new("printf");
        steps.stream(printf.arg(format!("{line}\n{line}\n")), &mut shown).unwrap();
        assert_eq!((steps.passed, steps.failed), (4, 2));
        assert_eq!(shown, format!("{line}\n{line}\n").as_bytes());
        assert!(steps.stream(&mut Command::new("false"), &mut shown).is_err());
        assert!(steps.stream(&mut Command::new("/nowhere/program"), &mut shown).is_err());
    }

    #[test]
    fn what_is_skipped_is_named_at_the_end_and_counted_on_the_last_line() {
        let mut steps = Steps::default();
        assert_eq!((steps.names().as_str(), steps.counts().as_str()), ("", "0 passed, 0 failed"));
        let line = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured";
        steps.stream(Command::new("echo").arg(line), &mut Vec::new()).unwrap();
        steps.skip("Xen: install it");
        assert_eq!(
            steps.names(),
            "skipped: Xen: install it\nskipped: 1 of the tests, by their own mark\n"
        );
        assert_eq!(steps.counts(), "2 passed, 0 failed, 2 skipped");
        assert_eq!(steps.exit_code(), ExitCode::SUCCESS);
        steps.missing("QEMU: install it");
        assert!(steps.names().starts_with("NOT RUN: QEMU: install it\n"));
        assert_eq!(steps.exit_code(), ExitCode::FAILURE);
    }

    #[test]
    fn a_step_that_must_fail_fails_for_the_reason_given() {
        let shell = |line| Step { program: "sh", args: vec!["-c", line], ..Step::cargo("sh", "") };
        let mut steps = Steps::default();
        steps.must_fail(&shell("echo too narrow >&2; false"), "too narrow");
        assert!(steps.failures.is_empty());
        steps.must_fail(&shell("echo no room >&2; false"), "too narrow");
        steps.must_fail(&shell("echo too narrow >&2"), "too narrow");
        assert_eq!(steps.failures.len(), 2);
    }

    #[test]
    fn only_tasks_that_want_it_are_timed() {
        assert!(Steps::timed("a task of a test").timed.is_some());
        assert!(Steps::default().timed.is_none());
    }

    #[test]
    fn a_step_ends_with_its_budget() {
        let mut steps = Steps::default();
        let mut step = Step::cargo("sleep", "60").seconds(1);
        step.program = "sleep";
        steps.run(&step);
        // By itself it ends well.
        assert_eq!(steps.failures.len(), usize::from(can_guard()));
    }
}
