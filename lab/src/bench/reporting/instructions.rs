//! Counts the instructions of allocating and freeing a frame. On a hosted machine, valgrind's
//! callgrind counts those of the first thread. In a guest with one thread, TCG counts those of the
//! whole guest.

use super::page_fault::{
    Machine, Plan, WORKING_SET,
    guest::{self, Clock},
};
use super::{
    args::Args,
    subject::{INSTRUCTIONS, Subject},
};
use crate::bench::{
    callgrind,
    record::{RanOn, Sample},
};
use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The number of bursts of a guest's run, and of the shorter of the two runs under callgrind.
const BURSTS: u32 = 2;

/// Counts the instructions of each plan on each machine. Skips hosted machines if valgrind is not
/// installed, and guests with several threads.
pub(super) fn count(
    args: &Args,
    image: Option<&Path>,
    sample: &mut Sample,
    progress: &ProgressBar,
) -> Result<()> {
    let can_count = callgrind::is_installed();
    if !can_count {
        progress.suspend(|| {
            crate::out::remark(format_args!(
                "valgrind is not installed: instructions are not counted"
            ))
        });
    }
    for plan in args.plans().map(|plan| Plan { bursts: BURSTS, ..plan }) {
        for &machine in &args.machines {
            let case = plan.name(machine);
            for subject in [Subject::NoReporting, Subject::Hotmem] {
                progress.set_message(format!("{case}: instructions of {subject}"));
                let count = match (machine, image) {
                    (Machine::Hosted, _) if can_count => Some(count_per_frame(subject, plan)?),
                    // Several threads need several CPUs. Then the clock of each CPU would count the
                    // instructions of all CPUs.
                    (Machine::Guest, Some(image)) if plan.threads == 1 => {
                        let costs = guest::measure(subject, plan, image, Clock::Instructions)?;
                        #[allow(clippy::cast_precision_loss, reason = "for people")]
                        let count = costs.burst_time.as_nanos() as f64 / costs.frames as f64;
                        Some(count)
                    }
                    _ => None,
                };
                if let Some(count) = count {
                    let in_guest = machine == Machine::Guest;
                    sample.set_executor(if in_guest { RanOn::Tcg } else { RanOn::Process });
                    sample.add(&case, &subject.to_string(), INSTRUCTIONS, count);
                }
            }
        }
    }
    Ok(())
}

/// Returns the first thread's instructions for a frame. They are the difference of two runs, one of
/// which has twice as many bursts, divided by the number of additional frames.
fn count_per_frame(subject: Subject, plan: Plan) -> Result<f64> {
    let fewer = count_run(subject, plan)?;
    let more = count_run(subject, Plan { bursts: 2 * plan.bursts, ..plan })?;
    let frames = u64::from(plan.bursts * plan.rounds) * WORKING_SET.frames();
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let count = more.saturating_sub(fewer) as f64 / frames as f64;
    Ok(count)
}

/// Runs a plan under callgrind, and returns the instructions of the first thread.
fn count_run(subject: Subject, plan: Plan) -> Result<u64> {
    let directory = Scratch::new()?;
    let file = directory.0.join("count");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--separate-threads=yes"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe()?)
        .args(["bench", "reporting-case", "--subject", &subject.to_string()])
        .args(["--threads", &plan.threads.to_string(), "--rounds", &plan.rounds.to_string()])
        .args(["--bursts", &plan.bursts.to_string()])
        .args(["--rest", &plan.rest_time.as_millis().to_string()])
        .stdout(Stdio::null())
        .output()
        .context("starting valgrind")?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind failed: {}\n{messages}", output.status);
    read_total(&directory.0.join("count-01"))
}

/// Reads the number of instructions from callgrind's file of one thread.
fn read_total(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total
        .context("callgrind's file has no total")?
        .trim()
        .parse()
        .context("parsing callgrind's total")
}

/// A temporary directory. Dropping the value removes the directory.
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
