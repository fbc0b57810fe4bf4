//! A step of a task: a command with its environment and its time limit.

use crate::cpu_time::cpu_seconds;
use hotmem_time_limit::scaled;
use std::{
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// Returns the workspace's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The packages and features that all steps for the host use, so that cargo builds each dependency
/// only once. The guest for Xen is excluded because it has no tests.
pub(crate) const HOST: &str = "--workspace --exclude hotmem-guest-xen --all-features";

/// Cargo's arguments that build the guests.
pub(crate) const GUEST: &str =
    "build --release -p hotmem-guest -p hotmem-guest-xen --target x86_64-unknown-none";

/// Returns cargo's arguments that run a test program on the host. `test_args` are the test
/// program's own arguments, such as a filter.
pub(crate) fn tests(program: &str, test_args: &str) -> String {
    format!("test --no-fail-fast {HOST} --test {program} -- {test_args}")
}

/// A command, its environment and its time limit.
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) description: String,
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    pub(crate) time_limit: Duration,
}

impl Step {
    /// Returns a step that runs cargo. `args` are separated by spaces.
    pub(crate) fn cargo(name: impl Into<String>, args: &str) -> Step {
        Step::program(name, "cargo", args)
    }

    /// Returns a step that runs another program. `args` are separated by spaces.
    pub(crate) fn program(name: impl Into<String>, program: &str, args: &str) -> Step {
        Step {
            name: name.into(),
            description: String::new(),
            program: program.to_owned(),
            args: args.split_whitespace().map(str::to_owned).collect(),
            env: Vec::new(),
            time_limit: scaled(Duration::from_secs(1500)),
        }
    }

    /// Returns a step that runs a line of the shell.
    #[cfg(test)]
    pub(crate) fn shell(name: &str, line: &str) -> Step {
        Step { args: vec!["-c".to_owned(), line.to_owned()], ..Step::program(name, "sh", "") }
    }

    /// Sets the line that explains the step.
    pub(crate) fn description(self, description: impl Into<String>) -> Step {
        Step { description: description.into(), ..self }
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Step {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Sets the time limit on an idle host, in seconds. The default is 1500.
    pub(crate) fn time_limit_s(self, seconds: u64) -> Step {
        Step { time_limit: scaled(Duration::from_secs(seconds)), ..self }
    }

    /// Returns the command. If coreutils and util-linux are installed, the command and its children
    /// are ended when the time limit is over or when this program ends.
    pub(crate) fn command(&self) -> Command {
        let seconds = self.time_limit.as_secs().to_string();
        let limit = ["setpriv", "--pdeathsig", "TERM", "timeout", "--kill-after=10", &seconds];
        let mut words = if can_limit_time() { limit.to_vec() } else { Vec::new() };
        words.push(&self.program);
        words.extend(self.args.iter().map(String::as_str));
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(root()).stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the command, and collects what it writes.
    pub(crate) fn output(&self) -> Result<Output, String> {
        let mut command = self.command();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| error.to_string())?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        thread::scope(|scope| {
            // The child would wait if only one of its pipes was read.
            let errors = scope.spawn(|| read_to_end(stderr));
            let text = read_to_end(stdout)?;
            let errors = errors.join().map_err(|_| "a thread panicked".to_owned())??;
            Ok(Output { text, errors, outcome: end(child) })
        })
    }
}

fn read_to_end(pipe: Option<impl Read>) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut text));
    read.map(|_| text).map_err(|error| error.to_string())
}

/// What a step has written, and its outcome.
pub(crate) struct Output {
    pub(crate) text: Vec<u8>,
    pub(crate) errors: Vec<u8>,
    /// The CPU time in seconds, if it is known.
    pub(crate) outcome: Result<Option<f64>, String>,
}

/// Waits for the end of a child that has closed its standard output. Returns the CPU time of the child
/// and its children in seconds, if it is known, or why the child failed.
pub(crate) fn end(mut child: Child) -> Result<Option<f64>, String> {
    // The system forgets the time when the child was waited for.
    let cpu_seconds = cpu_seconds(child.id());
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(cpu_seconds) } else { Err(status.to_string()) }
}

/// Returns whether [`Step::command`] can limit the time of a command.
pub(crate) fn can_limit_time() -> bool {
    runs("setpriv", &["--pdeathsig", "TERM", "timeout", "60", "true"])
}

/// Returns whether the program exists and succeeds. Its output is discarded.
pub(crate) fn runs(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
