//! Runs a point in a process of its own, which the device may end.

use super::ending::Ending;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fmt};

/// The environment variable that names the point of a process.
const POINT: &str = "HOTMEM_CONFORMANCE_POINT";
/// What the line begins with by which the process says how the point has ended.
const MARK: &str = "hotmem-conformance: ";
const PASSED: &str = "passed";
const SKIPPED: &str = "skipped ";
const FAILED: &str = "failed ";

/// The time that a process has in addition to the limit of its point.
const GRACE: Duration = Duration::from_secs(10);

/// Why a process has not said how its point has ended.
#[derive(Debug)]
pub(super) enum NoEnding {
    /// It has ended before.
    Ended(ExitStatus),
    /// It has taken too long.
    Hangs,
    /// It could not be run.
    Io(io::Error),
}

/// Returns the name of the point that this process runs, if it was started by [`run`].
pub(super) fn point_of_this_process() -> Option<String> {
    env::var(POINT).ok()
}

/// Says how the point of this process has ended.
pub(super) fn say(ending: &Ending) -> io::Result<()> {
    let text = match ending {
        Ending::Passed => PASSED.to_owned(),
        Ending::Skipped(reason) => format!("{SKIPPED}{reason}"),
        Ending::Failed(message) => format!("{FAILED}{message}"),
    };
    // The device may have written a part of a line.
    let mut out = io::stdout().lock();
    writeln!(out, "\n{MARK}{}", text.replace('\n', " "))?;
    out.flush()
}

/// Runs a point in a process, which is this program again. The process is killed when the point has ended or
/// after the limit.
pub(super) fn run(point: &str, limit: Duration) -> Result<Ending, NoEnding> {
    let program = env::current_exe().map_err(NoEnding::Io)?;
    let mut command = Command::new(program);
    command.env(POINT, point).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(NoEnding::Io)?;
    let deadline = Instant::now() + limit + GRACE;
    let ending = match child.stdout.take().map(lines_of) {
        Some(lines) => ending(&lines, deadline),
        None => Ok(None),
    };
    let ending = match ending {
        Ok(Some(ending)) => Ok(ending),
        Ok(None) => Err(end(&mut child, deadline)),
        Err(error) => Err(error),
    };
    // Both fail only if the process has ended already.
    let _ = child.kill();
    let _ = child.wait();
    ending
}

/// Reads lines on a thread, because another process that the device has started may keep the pipe open.
fn lines_of(output: impl io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    lines
}

/// Waits for the line that says how the point has ended. Returns `None` if the output ends before.
fn ending(lines: &Receiver<String>, deadline: Instant) -> Result<Option<Ending>, NoEnding> {
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(ending) = line.strip_prefix(MARK).and_then(parse) {
                    return Ok(Some(ending));
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => return Err(NoEnding::Hangs),
        }
    }
}

fn parse(text: &str) -> Option<Ending> {
    let skipped = |text: &str| text.strip_prefix(SKIPPED).map(|it| Ending::Skipped(it.to_owned()));
    let failed = |text: &str| text.strip_prefix(FAILED).map(|it| Ending::Failed(it.to_owned()));
    if text == PASSED { Some(Ending::Passed) } else { skipped(text).or_else(|| failed(text)) }
}

/// Waits until a process that has closed its output ends.
fn end(child: &mut Child, deadline: Instant) -> NoEnding {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return NoEnding::Ended(status),
            Ok(None) if Instant::now() >= deadline => return NoEnding::Hangs,
            Ok(None) => thread::sleep(Duration::from_millis(1)),
            Err(error) => return NoEnding::Io(error),
        }
    }
}

impl fmt::Display for NoEnding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoEnding::Ended(status) => write!(f, "the device ends the process ({status})"),
            NoEnding::Hangs => f.write_str("the process of the point does not end"),
            NoEnding::Io(error) => write!(f, "the process of the point cannot be run: {error}"),
        }
    }
}
