//! Instructions of allocating and freeing, counted by valgrind's callgrind in the thread that does
//! it; the reporter's own are another thread's.

use super::page_fault::{self, operations_a_round};
use super::{INSTRUCTIONS, Subject};
use crate::bench::{frames, record::Sample};
use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Rounds of the shorter of two runs.
const ROUNDS: u64 = 8;

/// Counts for each number of threads, if valgrind is installed.
pub(super) fn count(threads: &[u16], sample: &mut Sample, progress: &ProgressBar) -> Result<()> {
    if !frames::instructions::can_count() {
        progress.suspend(|| eprintln!("valgrind is not installed: instructions are not counted"));
        return Ok(());
    }
    for &threads in threads {
        for subject in [Subject::Before, Subject::Hotmem] {
            progress.set_message(format!("{}: instructions", page_fault::name(threads)));
            let fewer = of_first_thread(subject, threads, ROUNDS)?;
            let more = of_first_thread(subject, threads, 2 * ROUNDS)?;
            #[allow(clippy::cast_precision_loss, reason = "for people")]
            let count = (more - fewer) as f64 / (ROUNDS * operations_a_round()) as f64;
            sample.add(&page_fault::name(threads), &subject.to_string(), INSTRUCTIONS, count);
        }
    }
    Ok(())
}

/// Instructions of a whole run's first thread.
fn of_first_thread(subject: Subject, threads: u16, rounds: u64) -> Result<u64> {
    let directory = Scratch::new()?;
    let file = directory.0.join("count");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--separate-threads=yes"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe()?)
        .args(["bench", "reporting-case", "--subject", &subject.to_string()])
        .args(["--threads", &threads.to_string(), "--rounds", &rounds.to_string()])
        .stdout(Stdio::null())
        .output()
        .context("starting valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind failed: {}\n{said}", output.status);
    total(&directory.0.join("count-01"))
}

/// The sum that callgrind writes at the end of a thread's file.
fn total(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total.context("no total in callgrind's file")?.trim().parse().context("callgrind's total")
}

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("hotmem-reporting-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
