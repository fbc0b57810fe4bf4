//! Counts the instructions of an operation by valgrind's callgrind. The count is exact and does not
//! depend on the load of the host.

use super::access::Access;
use super::case::Case;
use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Returns whether valgrind is installed.
pub(in crate::bench) fn can_count() -> bool {
    let quiet = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// Makes two runs with different numbers of operations. The difference of their counts is the cost
/// of the additional operations.
pub(super) fn per_operation(case: &Case) -> Result<f64> {
    // A count has no noise, so that a part of the operations is enough. Bulk traffic needs more of
    // them, because its rounds are long.
    let part = if case.access == Access::Bulk { 2 } else { 6 };
    let operations = case.operations() >> part;
    let (fewer, more) = (count(case, operations)?, count(case, 2 * operations)?);
    Ok((more - fewer) / operations as f64)
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
