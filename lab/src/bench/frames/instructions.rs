//! Instructions of an operation, counted by valgrind's callgrind: exact, and the same whatever
//! else the host does.

use super::case::Case;
use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Returns whether valgrind is there.
pub(in crate::bench) fn can_count() -> bool {
    let quiet = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// Two runs; what one has more than the other is what the operations took.
pub(super) fn per_operation(case: &Case) -> Result<f64> {
    let operations = case.operations();
    let (fewer, more) = (count(case, operations)?, count(case, 2 * operations)?);
    // Warming up is a sixteenth more of the same.
    Ok((more - fewer) / (operations as f64 * 17.0 / 16.0))
}

fn count(case: &Case, operations: u64) -> Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(case.arguments(operations))
        // valgrind leaves a process a few tens of GiB of addresses.
        .arg("--unbacked")
        .stdout(Stdio::null())
        .output()
        .context("starting valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind failed: {}\n{said}", output.status);
    }
    let count = said.lines().find_map(|line| line.split_once("Collected : "));
    let count = count.with_context(|| format!("no count in what valgrind said:\n{said}"))?.1;
    count.trim().parse().with_context(|| format!("valgrind counted `{count}`"))
}
