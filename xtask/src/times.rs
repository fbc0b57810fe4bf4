//! Records the times of the last runs of each step on this machine, in a file below `target/`.

use crate::step::root;
use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

/// The largest number of runs that are recorded for each step.
const MAX_RUNS: usize = 5;

/// The recorded times in seconds. The last run of a step is the last in its list.
pub(crate) struct RecordedTimes {
    path: PathBuf,
    steps: BTreeMap<String, Vec<f64>>,
}

impl RecordedTimes {
    /// Reads the times of this machine.
    pub(crate) fn of_this_machine() -> RecordedTimes {
        RecordedTimes::read(root().join("target/xtask-times"))
    }

    /// Reads the times from the file at `path`. A missing file counts as empty.
    pub(crate) fn read(path: PathBuf) -> RecordedTimes {
        let steps = parse(&fs::read_to_string(&path).unwrap_or_default());
        RecordedTimes { path, steps }
    }

    /// Returns the median time of a step, in seconds.
    pub(crate) fn median(&self, step: &str) -> Option<f64> {
        let mut seconds = self.steps.get(step)?.clone();
        seconds.sort_unstable_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    /// Records the time of a step.
    pub(crate) fn record(&mut self, step: &str, seconds: f64) {
        let runs = self.steps.entry(step.to_owned()).or_default();
        runs.push(seconds);
        runs.drain(..runs.len().saturating_sub(MAX_RUNS));
        let line = |(step, seconds): (&String, &Vec<f64>)| {
            let seconds: String = seconds.iter().map(|seconds| format!(" {seconds:.1}")).collect();
            format!("{step}\t{}\n", seconds.trim_start())
        };
        let lines: String = self.steps.iter().map(line).collect();
        // If the file cannot be written, the next run prints no usual time.
        let _ = fs::create_dir_all(self.path.parent().unwrap_or(Path::new(".")));
        let _ = fs::write(&self.path, lines);
    }
}

fn parse(text: &str) -> BTreeMap<String, Vec<f64>> {
    let line = |line: &str| {
        let (step, seconds) = line.split_once('\t')?;
        let seconds: Vec<f64> = seconds.split(' ').filter_map(|text| text.parse().ok()).collect();
        Some((step.to_owned(), seconds)).filter(|(_, seconds)| !seconds.is_empty())
    };
    text.lines().filter_map(line).collect()
}

/// The time that a step took.
pub(crate) struct StepTime {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// The CPU time of the step's processes, if it is known. Unlike `seconds`, it depends little on how
    /// busy the host is.
    pub(crate) cpu_seconds: Option<f64>,
}

impl StepTime {
    /// Returns a line of the table of all steps.
    pub(crate) fn table_line(&self) -> String {
        let cpu = self.cpu_seconds.map(|seconds| format!(", {seconds:5.0} s of CPU time"));
        format!("{:5.0} s{:21}  {}\n", self.seconds, cpu.unwrap_or_default(), self.name)
    }
}

impl fmt::Display for StepTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.0} s", self.name, self.seconds)?;
        match self.cpu_seconds {
            Some(seconds) => write!(f, ", {seconds:.0} s of CPU time"),
            None => Ok(()),
        }
    }
}

/// Formats a time in seconds or minutes, such as `45 s` or `3 min`.
pub(crate) fn rounded(seconds: f64) -> String {
    if seconds < 100.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_last_runs_is_returned() {
        let path = std::env::temp_dir().join(format!("hotmem-times-{}", std::process::id()));
        let mut times = RecordedTimes::read(path.clone());
        assert_eq!(times.median("Miri"), None);
        for seconds in [900.0, 800.0, 10.0, 12.0, 11.0, 300.0] {
            times.record("Miri", seconds);
        }
        times.record("guest", 3.0);
        let recorded = RecordedTimes::read(path.clone());
        fs::remove_file(path).unwrap();
        assert_eq!((recorded.median("Miri"), recorded.median("guest")), (Some(12.0), Some(3.0)));
        assert_eq!(recorded.steps["Miri"].len(), MAX_RUNS);
    }

    #[test]
    fn malformed_lines_are_ignored() {
        assert_eq!(parse("no tab\nempty\t\nwords\tno number\n"), BTreeMap::new());
    }

    #[test]
    fn times_are_rounded_to_seconds_or_minutes() {
        assert_eq!((rounded(99.4), rounded(150.1)), ("99 s".to_owned(), "3 min".to_owned()));
    }
}
