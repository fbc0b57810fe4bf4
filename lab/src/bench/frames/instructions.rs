//! Counts the instructions of an operation by valgrind's callgrind. The count is exact and does not
//! depend on the load of the host.

use super::access_pattern::AccessPattern;
use super::case::Case;
use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Returns whether valgrind is installed.
pub(in crate::bench) fn can_count() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Returns the instructions of an operation. Runs the case with two numbers of operations, and
/// divides the difference of the counts by the number of additional operations.
pub(super) fn per_operation(case: &Case) -> Result<f64> {
    // A count has no noise, so fewer operations than for times are enough. Bulk traffic needs more
    // of them than the other patterns, because its rounds are long.
    let shift = if case.access == AccessPattern::Bulk { 2 } else { 6 };
    let operations = case.operations() >> shift;
    let (fewer, more) = (count(case, operations)?, count(case, 2 * operations)?);
    Ok((more - fewer) / operations as f64)
}

/// Returns the instructions of a run of the case.
fn count(case: &Case, operations: u64) -> Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(case.arguments(operations))
        // Under valgrind a process has too few addresses to reserve those of the plugged memory.
        .arg("--unbacked")
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
