//! Counts the instructions of this program by valgrind's callgrind. The count is exact and does not
//! depend on the load of the host.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns whether valgrind is installed.
pub(super) fn is_installed() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Returns the number of instructions that this program executes with these arguments.
pub(super) fn count(arguments: &[String]) -> Result<f64> {
    let program = std::env::current_exe()?;
    run(&program, arguments, &["--callgrind-out-file=/dev/null".into()])
}

/// Returns the number of instructions that a program executes with these arguments between the
/// requests [`start`](super::valgrind::start) and [`stop`](super::valgrind::stop).
pub(super) fn count_requested(program: &Path, arguments: &[String]) -> Result<f64> {
    let options = ["--instr-atstart=no", "--callgrind-out-file=/dev/null"];
    run(program, arguments, &options.map(String::from))
}

/// Returns the numbers of instructions that a program executes up to each request
/// [`end_part`](super::valgrind::end_part).
pub(super) fn count_parts(program: &Path, arguments: &[String]) -> Result<Vec<f64>> {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: each file only needs another number.
    let nth = FILES.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("hotmem-counts-{}-{nth}", std::process::id()));
    let out = format!("--callgrind-out-file={}", file.display());
    let options = ["--instr-atstart=no".into(), "--combine-dumps=yes".into(), out];
    let result = run(program, arguments, &options);
    let report = fs::read_to_string(&file);
    _ = fs::remove_file(&file);
    result?;
    let report = report.context("reading the counts of valgrind")?;
    // The last part lasts until the program ends.
    let parts = report.split("\ndesc: Trigger: Client Request").skip(1);
    let total = |part: &str| {
        let line = part.lines().find_map(|line| line.strip_prefix("totals: "));
        line.and_then(|count| count.trim().parse().ok()).context("valgrind's file has no totals")
    };
    parts.map(total).collect()
}

/// Runs a program under callgrind. Returns the number of instructions that callgrind has counted.
fn run(program: &Path, arguments: &[String], options: &[String]) -> Result<f64> {
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .args(options)
        .arg(program)
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
