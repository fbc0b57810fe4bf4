//! A step of a task: a line of the shell with its environment and its time limit.

use crate::cpu_time::cpu_seconds;
use hotmem_time_limit::scaled;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    io::{self, PipeReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Returns the workspace's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// A line of the shell, what it needs, and its time limit.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) name: String,
    /// The line that explains the step.
    pub(crate) description: String,
    pub(crate) run: String,
    pub(crate) env: BTreeMap<String, String>,
    /// The tools without which the task fails.
    pub(crate) needs: Vec<String>,
    /// The tools without which the step is skipped.
    pub(crate) wants: Vec<String>,
    /// The tools of which none may be installed, because another step uses them.
    pub(crate) lacks: Vec<String>,
    /// The message with which the step must fail.
    pub(crate) must_fail_with: Option<String>,
    /// The time limit on a host on which only the other lanes of the task run, in seconds.
    pub(crate) time_limit_s: Option<u64>,
    /// Whether the tests run longer than those of a change, with other random choices in each run.
    pub(crate) deep: bool,
}

impl Step {
    /// Returns a step that runs a line of the shell.
    pub(crate) fn new(name: impl Into<String>, run: impl Into<String>) -> Step {
        Step { name: name.into(), run: run.into(), ..Step::default() }
    }

    /// Returns the time limit on this host. The speed of the host is measured before the first step, so the
    /// limit includes the time for which other lanes use the CPUs.
    pub(crate) fn time_limit(&self) -> Duration {
        scaled(Duration::from_secs(self.time_limit_s.unwrap_or(3600)))
    }

    /// Returns the command. If coreutils and util-linux are installed, the command and its children
    /// are ended when the time limit is over or when this program ends.
    pub(crate) fn command(&self) -> Command {
        let seconds = self.time_limit().as_secs().to_string();
        let limit = ["setpriv", "--pdeathsig", "TERM", "timeout", "--kill-after=10", &seconds];
        let mut words = if can_limit_time() { limit.to_vec() } else { Vec::new() };
        words.extend(["sh", "-c", &self.run]);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(root()).stdin(Stdio::null()).envs(&self.env);
        command
    }

    /// Runs the command, and collects what it writes.
    pub(crate) fn output(&self) -> io::Result<Output> {
        let (child, mut pipe) = spawn(self.command())?;
        let mut text = Vec::new();
        pipe.read_to_end(&mut text)?;
        Ok(Output { text, outcome: end(child) })
    }
}

/// What a step has written, and its outcome.
pub(crate) struct Output {
    pub(crate) text: Vec<u8>,
    /// The CPU time in seconds, if it is known.
    pub(crate) outcome: Result<Option<f64>, String>,
}

/// Starts a command. Returns it with the pipe to which it writes its output and its errors. The pipe ends
/// when the command ends.
pub(crate) fn spawn(mut command: Command) -> io::Result<(Child, PipeReader)> {
    let (reader, writer) = io::pipe()?;
    let output = command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    Ok((output.spawn()?, reader))
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
    succeeds("setpriv --pdeathsig TERM timeout 60 true")
}

/// Returns whether a line of the shell succeeds. Its output is discarded.
pub(crate) fn succeeds(line: &str) -> bool {
    let mut shell = shell(line);
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

/// Returns what a line of the shell prints in English. It is empty if the line cannot be run.
pub(crate) fn output_of(line: &str) -> String {
    let output = shell(line).env("LC_ALL", "C").output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Returns the command of a line of the shell, which runs in the workspace's root.
pub(crate) fn shell(line: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(root());
    shell
}
