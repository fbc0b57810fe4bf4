//! Runs the steps of a set, each in a process of its own, and saves their records.
//!
//! After each step the file `records.part.json` is replaced atomically, so that an interruption
//! loses only the step that was running. A full disk loses no records either: a bench writes them
//! to memory that it shares with this process, which keeps them until the file can be written.

use super::{
    file::{BenchRun, Missing, Records, rounded},
    plan::PlannedRun,
};
use crate::{bench::record::Record, out, progress};
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use rustix::fs::{MemfdFlags, memfd_create};
use std::{
    fs::File,
    io::{BufRead, BufReader, IsTerminal, Read, Seek},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The name of the file of records while the set is incomplete.
pub(super) const PARTIAL_RECORDS_FILE: &str = "records.part.json";

/// Runs the steps of the plan that `records` does not have yet, and saves the records in `file`.
pub(super) fn run(
    plan: &[PlannedRun],
    records: &mut Records,
    file: &mut PartialFile,
) -> Result<()> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut remaining_time = RemainingTime::new(plan, records);
    let bar = progress::spinner();
    for (nth, planned) in plan.iter().enumerate() {
        let known = records.steps.iter().position(|bench_run| bench_run.step == planned.step);
        match known {
            Some(known) if planned.is_in(&records.steps[known]) => continue,
            Some(_) => {}
            None => {
                records.missing.retain(|missing| missing.step != planned.step);
                records.missing.extend(planned.missing.clone());
            }
        }
        if planned.command.is_empty() {
            continue;
        }
        let title = format!("[{}/{}] {}", nth + 1, plan.len(), planned.step);
        let start = Instant::now();
        remaining_time.show(&bar, &title);
        let outcome = run_bench(&program, &planned.command, || {
            remaining_time.tick(&bar, &title, start);
        });
        let seconds = start.elapsed().as_secs_f64();
        remaining_time.mark_done(planned, start.elapsed());
        let failure = match outcome {
            Ok(BenchResult { records: measured, failure }) => {
                let bench_run = BenchRun {
                    step: planned.step.into(),
                    command: planned.command.clone(),
                    visits: 1,
                    seconds: seconds.round(),
                    records: measured.into_iter().map(rounded).collect(),
                };
                match known {
                    Some(known) => records.steps[known].add(bench_run),
                    None => records.steps.push(bench_run),
                }
                failure.map(|reason| ("a part", reason))
            }
            Err(error) => {
                let subject = if known.is_some() { "a part" } else { "all" };
                Some((subject, format!("{error:#}")))
            }
        };
        if let Some((subject, reason)) = failure {
            bar.suspend(|| out::remark(format_args!("{}: {reason}", planned.step)));
            let (step, subject) = (planned.step.into(), subject.into());
            records.missing.push(Missing { step, subject, reason });
        }
        bar.suspend(|| file.write(records));
    }
    bar.finish_and_clear();
    Ok(())
}

/// The incomplete file of records.
pub(super) struct PartialFile {
    path: PathBuf,
    /// Whether the last write succeeded.
    has_all: bool,
}

impl PartialFile {
    pub(super) fn new(path: PathBuf) -> PartialFile {
        PartialFile { path, has_all: true }
    }

    /// Writes all records. If that fails they stay in memory, and the next call tries again.
    pub(super) fn write(&mut self, records: &Records) {
        let written = records.write(&self.path);
        self.has_all = written.is_ok();
        if let Err(error) = written {
            let path = self.path.display();
            out::remark(format_args!("{path}: {error}; the records are kept in memory"));
        }
    }

    /// Replaces the incomplete file by the complete one. If that cannot be written, prints its
    /// text.
    pub(super) fn finish(&mut self, records: &Records, complete: &Path) -> Result<()> {
        if !self.has_all {
            self.write(records);
        }
        if !self.has_all {
            out::write(format_args!("{}", records.text()))?;
            bail!("{}: cannot be written; its text is on standard output", self.path.display());
        }
        std::fs::rename(&self.path, complete).with_context(|| format!("{}", complete.display()))
    }
}

/// The result of a bench. If one of several subjects fails, the bench writes the records of the
/// others.
struct BenchResult {
    records: Vec<Record>,
    /// The reason why a subject could not be measured.
    failure: Option<String>,
}

/// Runs a bench in a process of its own and returns its records. If the bench failed in part, there
/// is at least one record.
fn run_bench(program: &Path, command: &str, mut tick: impl FnMut()) -> Result<BenchResult> {
    // The flag `CLOEXEC` is not set, so that the bench can open the file by its number.
    let memory = memfd_create("hotmem-records", MemfdFlags::empty()).context("memory")?;
    let mut bench = Command::new(program)
        .args(command.split_whitespace())
        .args(["--json", &format!("/proc/self/fd/{}", memory.as_raw_fd())])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the bench")?;
    let stderr = bench.stderr.take();
    let last_line = thread::spawn(move || {
        let lines = stderr.map(BufReader::new).into_iter().flat_map(BufRead::lines);
        lines.map_while(Result::ok).filter(|line| !line.trim().is_empty()).last()
    });
    let status = loop {
        if let Some(status) = bench.try_wait().context("waiting for the bench")? {
            break status;
        }
        tick();
        thread::sleep(Duration::from_millis(100));
    };
    let last_line = last_line.join().ok().flatten().unwrap_or_default();
    let failure = (!status.success()).then(|| last_line.trim_start_matches("hotmem: ").to_owned());
    let mut text = String::new();
    let mut memory = File::from(memory);
    memory.rewind().and_then(|()| memory.read_to_string(&mut text)).context("its records")?;
    match (serde_json::from_str::<Vec<Record>>(&text), failure) {
        (Ok(records), Some(reason)) if records.is_empty() => bail!("{reason}"),
        (Ok(records), failure) => Ok(BenchResult { records, failure }),
        (Err(_), Some(reason)) => bail!("{reason}"),
        (Err(error), None) => bail!("it wrote no records: {error}"),
    }
}

/// An estimate of the remaining time.
struct RemainingTime {
    /// The seconds that the remaining steps take on the machine of the plan.
    planned_seconds: f64,
    /// The seconds that the finished steps take on the machine of the plan.
    finished_planned_seconds: f64,
    /// The seconds that the finished steps took on this machine.
    finished_seconds: f64,
    /// The seconds that the terminal shows for the running step.
    shown_seconds: u64,
    is_on_terminal: bool,
}

impl RemainingTime {
    fn new(plan: &[PlannedRun], records: &Records) -> RemainingTime {
        let bench_run_of =
            |step: &str| records.steps.iter().find(|bench_run| bench_run.step == step);
        let mut remaining = RemainingTime {
            planned_seconds: 0.0,
            finished_planned_seconds: 0.0,
            finished_seconds: 0.0,
            shown_seconds: u64::MAX,
            is_on_terminal: std::io::stderr().is_terminal(),
        };
        for planned in plan.iter().filter(|planned| !planned.command.is_empty()) {
            match bench_run_of(planned.step).filter(|bench_run| planned.is_in(bench_run)) {
                Some(bench_run) => {
                    remaining.add_finished(planned, bench_run.seconds / f64::from(bench_run.visits))
                }
                None => remaining.planned_seconds += f64::from(planned.seconds),
            }
        }
        remaining
    }

    fn add_finished(&mut self, planned: &PlannedRun, seconds: f64) {
        self.finished_planned_seconds += f64::from(planned.seconds);
        self.finished_seconds += seconds;
    }

    fn mark_done(&mut self, planned: &PlannedRun, took: Duration) {
        self.planned_seconds -= f64::from(planned.seconds);
        self.add_finished(planned, took.as_secs_f64());
    }

    /// Returns the remaining seconds, `running` seconds after a step began. A machine that was
    /// slower so far is expected to be slower for the rest.
    fn seconds(&self, running: f64) -> f64 {
        // The additional minute on both sides keeps the first steps from dominating the ratio.
        let ratio = (self.finished_seconds + 60.0) / (self.finished_planned_seconds + 60.0);
        (self.planned_seconds * ratio - running).max(1.0)
    }

    fn show(&self, bar: &ProgressBar, title: &str) {
        let line = format!("{title}; about {} left", readable_time(self.seconds(0.0)));
        if self.is_on_terminal {
            bar.set_message(line)
        } else {
            out::remark(format_args!("{line}"))
        }
    }

    fn tick(&mut self, bar: &ProgressBar, title: &str, start: Instant) {
        let running = start.elapsed();
        if self.is_on_terminal && running.as_secs() != self.shown_seconds {
            self.shown_seconds = running.as_secs();
            let left = readable_time(self.seconds(running.as_secs_f64()));
            bar.set_message(format!("{title}, {} s; about {left} left", self.shown_seconds));
        }
    }
}

/// Returns a readable time: `40 s`, `12 min`.
fn readable_time(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::{
        super::file::tests::{Scratch, records},
        *,
    };

    fn planned(step: &'static str, command: &str, seconds: u32) -> PlannedRun {
        PlannedRun { step, visit: 1, command: command.into(), seconds, missing: None }
    }

    #[test]
    fn the_remaining_time_grows_if_finished_steps_took_longer_than_planned() {
        let plan = [planned("vm", "bench vm", 60), planned("heap", "bench heap", 120)];
        let mut remaining = RemainingTime::new(&plan, &Records { steps: vec![], ..records(&[]) });
        assert_eq!((remaining.seconds(0.0), remaining.seconds(30.0)), (180.0, 150.0));
        remaining.mark_done(&plan[0], Duration::from_secs(180));
        assert_eq!(remaining.seconds(0.0), 240.0);
        assert_eq!([readable_time(40.2), readable_time(240.0)], ["40 s", "4 min"]);
        // Steps from before an interruption count.
        let remaining = RemainingTime::new(&plan, &records(&[]));
        assert_eq!(remaining.planned_seconds, 120.0);
    }

    /// The program `true` takes the place of the bench: it writes no records and prints nothing.
    #[test]
    fn finished_steps_are_not_repeated_and_failed_steps_are_listed() {
        let scratch = Scratch::new("resume");
        let path = scratch.0.join(PARTIAL_RECORDS_FILE);
        let mut file = PartialFile::new(path.clone());
        let mut all = records(&[("1G/plug", "hotmem", 0.5)]);
        let plan = [planned("vm", "bench vm", 60), planned("lost", "no-such-bench", 1)];
        run(&plan, &mut all, &mut file).unwrap();
        assert_eq!(all.steps.len(), 1);
        assert_eq!((&*all.missing[0].step, &*all.missing[0].subject), ("lost", "all"));
        assert_eq!(Records::read(&path).unwrap(), all);
        file.finish(&all, &scratch.0.join("records.json")).unwrap();
        assert!(!path.exists());
    }

    /// A script takes the place of a bench that writes records and then fails.
    #[test]
    fn a_bench_that_fails_in_part_keeps_its_records_and_its_reason() {
        let scratch = Scratch::new("part");
        let all = records(&[("1G/plug", "hotmem", 0.5)]);
        let (wrote, script) = (scratch.0.join("wrote.json"), scratch.0.join("bench"));
        std::fs::write(&wrote, serde_json::to_string(&all.steps[0].records).unwrap()).unwrap();
        let text =
            format!("cat {} > $2; echo 'hotmem: the guest stopped' >&2; exit 1", wrote.display());
        std::fs::write(&script, text).unwrap();
        let command = script.to_str().unwrap();
        let measured = run_bench(Path::new("/bin/sh"), command, || {}).unwrap();
        assert_eq!(measured.records, all.steps[0].records);
        assert_eq!(measured.failure.as_deref(), Some("the guest stopped"));
        std::fs::write(&wrote, "[]").unwrap();
        let error = run_bench(Path::new("/bin/sh"), command, || {}).err().unwrap();
        assert_eq!(error.to_string(), "the guest stopped");
    }

    /// A run that continues makes the second visit that an interruption prevented, and makes no
    /// visit twice.
    #[test]
    fn a_second_visit_adds_its_runs() {
        let mut all = records(&[("1G/plug", "hotmem", 0.5)]);
        let first = planned("vm", "no-such-bench", 60);
        let second = PlannedRun { visit: 2, ..planned("vm", "no-such-bench", 60) };
        let remaining = RemainingTime::new(&[first, second], &all);
        assert_eq!(remaining.planned_seconds, 60.0);
        assert_eq!((remaining.finished_planned_seconds, remaining.finished_seconds), (60.0, 1.5));
        let further = all.steps[0].clone();
        all.steps[0].add(further);
        assert_eq!((all.steps[0].visits, all.steps[0].records[0].runs), (2, 2));
        let scratch = Scratch::new("visits");
        let before = all.clone();
        let plan = [
            planned("vm", "no-such-bench", 60),
            PlannedRun { visit: 2, ..planned("vm", "no-such-bench", 60) },
        ];
        run(&plan, &mut all, &mut PartialFile::new(scratch.0.join(PARTIAL_RECORDS_FILE))).unwrap();
        assert_eq!(all, before, "all of it is done");
        let plan = [PlannedRun { visit: 3, ..planned("vm", "no-such-bench", 60) }];
        run(&plan, &mut all, &mut PartialFile::new(scratch.0.join(PARTIAL_RECORDS_FILE))).unwrap();
        assert_eq!(all.steps, before.steps);
        assert_eq!((&*all.missing[0].step, &*all.missing[0].subject), ("vm", "a part"));
    }

    #[test]
    fn missing_subjects_are_still_listed_after_an_interruption() {
        let scratch = Scratch::new("lacked");
        let mut all = records(&[("1G/plug", "hotmem", 0.5)]);
        let reason = "the guest stopped".into();
        all.missing.push(Missing { step: "vm".into(), subject: "a part".into(), reason });
        let before = all.clone();
        let mut file = PartialFile::new(scratch.0.join(PARTIAL_RECORDS_FILE));
        run(&[planned("vm", "bench vm", 60)], &mut all, &mut file).unwrap();
        assert_eq!(all, before);
    }

    #[test]
    fn records_that_cannot_be_written_are_kept_until_they_can() {
        let scratch = Scratch::new("full");
        let directory = scratch.0.join("later");
        let mut file = PartialFile::new(directory.join(PARTIAL_RECORDS_FILE));
        let all = records(&[("1G/plug", "hotmem", 0.5)]);
        file.write(&all);
        assert!(!file.has_all);
        std::fs::create_dir(&directory).unwrap();
        let complete = directory.join("records.json");
        file.finish(&all, &complete).unwrap();
        assert_eq!(Records::read(&complete).unwrap(), all);
    }
}
