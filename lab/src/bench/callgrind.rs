//! Counts the instructions of this program by valgrind's callgrind. The count is exact and does not
//! depend on the load of the host.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Returns whether valgrind is installed.
pub(super) fn is_installed() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Returns the number of instructions that this program executes with these arguments.
pub(super) fn count(arguments: &[String]) -> Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(arguments)
        .stdout(Stdio::null())
        .output()
        .context("starting valgrind")?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind failed: {}\n{messages}", output.status);
    }
    let count = messages.lines().find_map(|line| line.split_once("Collected : "));
    let count = count.with_context(|| format!("valgrind's output has no count:\n{messages}"))?.1;
    count.trim().parse().with_context(|| format!("valgrind counted `{count}`"))
}
