//! The file of records. It has the measurements, their commands and the machine.
//!
//! It is JSON with one record on a line. A checksum over the rest of the file reveals damage and
//! figures that were changed by hand.

use super::machine::Machine;
use crate::bench::record::Record;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The version of the format. Files of another version are refused.
pub(super) const FORMAT: u32 = 2;

/// All measurements of one run of the report.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Records {
    /// The version of the `hotmem` command.
    pub(super) version: String,
    /// A number that identifies the build of its executable.
    pub(super) build: String,
    pub(super) machine: Machine,
    /// The set of steps: `standard` or `quick`, and the names given to `--only`.
    pub(super) set: String,
    /// The time when the run began, such as `2026-11-23 12:00 UTC`.
    pub(super) date: String,
    /// Later runs, which measured some of the steps again.
    #[serde(default, rename = "later", skip_serializing_if = "Vec::is_empty")]
    pub(super) later_runs: Vec<LaterRun>,
    pub(super) steps: Vec<BenchRun>,
    /// The subjects that could not be measured.
    pub(super) missing: Vec<Missing>,
}

/// A step that was run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BenchRun {
    pub(super) step: String,
    /// The command line after `hotmem`.
    pub(super) command: String,
    /// The number of visits: how many times the report ran the step. A record covers the runs of
    /// all visits.
    pub(super) visits: u32,
    /// The total time of all visits.
    pub(super) seconds: f64,
    pub(super) records: Vec<Record>,
}

/// A run that measured some steps of an earlier run again, on a machine like that of the earlier
/// run if the steps measure times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LaterRun {
    /// The time when the run began.
    pub(super) date: String,
    /// A number that identifies the build of its executable.
    pub(super) build: String,
    /// The steps that it measured.
    pub(super) steps: Vec<String>,
}

/// A subject that could not be measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Missing {
    pub(super) step: String,
    pub(super) subject: String,
    #[serde(rename = "why")]
    pub(super) reason: String,
}

/// The reason why a file of records cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{}: cannot be read", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    #[error("{}: damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{}: records of format {found}, and this command reads format {FORMAT}", path.display())]
    OtherFormat { path: PathBuf, found: u32 },
    #[error("{}: records of another machine ({found}; this is {here})", path.display())]
    OtherMachine { path: PathBuf, found: String, here: String },
}

/// The outermost object of the file. The checksum covers `records`.
#[derive(Deserialize)]
struct FileContents {
    format: u32,
    checksum: Option<String>,
    records: Option<serde_json::Value>,
}

impl Records {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ReadError`]: unreadable, damaged, or of another format.
    pub(super) fn read(path: &Path) -> Result<Records, ReadError> {
        let damaged = |reason: String| ReadError::Damaged { path: path.to_owned(), reason };
        let text = fs::read_to_string(path)
            .map_err(|error| ReadError::Unreadable(path.to_owned(), error))?;
        let contents: FileContents =
            serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        if contents.format != FORMAT {
            return Err(ReadError::OtherFormat { path: path.to_owned(), found: contents.format });
        }
        let records = contents.records.ok_or_else(|| damaged("it has no records".into()))?;
        let records: Records =
            serde_json::from_value(records).map_err(|e| damaged(e.to_string()))?;
        if contents.checksum.as_deref() != Some(&records.checksum()) {
            return Err(damaged("its checksum is not that of its records".into()));
        }
        Ok(records)
    }

    /// Reads a file of a machine like this one.
    ///
    /// # Errors
    /// As for [`Records::read`], and [`ReadError::OtherMachine`].
    pub(super) fn read_from(path: &Path, machine: &Machine) -> Result<Records, ReadError> {
        let records = Records::read(path)?;
        if records.machine.is_like(machine) {
            return Ok(records);
        }
        let (found, here) = (records.machine.hardware(), machine.hardware());
        Err(ReadError::OtherMachine { path: path.to_owned(), found, here })
    }

    /// Writes the file atomically: after a crash it has either the old records or the new ones.
    ///
    /// # Errors
    /// The file system's error.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        write_atomically(path, self.text().as_bytes())
    }

    /// Returns the file's text.
    pub(super) fn text(&self) -> String {
        let steps = self.steps.iter().map(|bench_run| {
            let records: Vec<_> = bench_run.records.iter().map(|r| format!("    {}", json(r))).collect();
            format!(
                "  {{\"step\":{},\"command\":{},\"visits\":{},\"seconds\":{},\"records\":[\n{}\n  ]}}",
                json(&bench_run.step),
                json(&bench_run.command),
                json(&bench_run.visits),
                json(&bench_run.seconds),
                records.join(",\n")
            )
        });
        let steps: Vec<_> = steps.collect();
        format!(
            "{{\"format\":{FORMAT},\n\"checksum\":{},\n\"records\":{{\n\"version\":{},\n\"build\":{},\n\
             \"machine\":{},\n\"set\":{},\n\"date\":{},\n\"later\":{},\n\"steps\":[\n{}\n],\n\"missing\":{}\n}}}}\n",
            json(&self.checksum()),
            json(&self.version),
            json(&self.build),
            json(&self.machine),
            json(&self.set),
            json(&self.date),
            json(&self.later_runs),
            steps.join(",\n"),
            json(&self.missing)
        )
    }

    fn checksum(&self) -> String {
        format!("{:016x}", fnv(json(self).as_bytes()))
    }

    /// Removes the records of `steps`, which the run `new` will measure again.
    pub(super) fn replace(&mut self, steps: &BTreeSet<&str>, new: &Records) {
        let is_replaced = |name: &String| steps.contains(&&**name);
        self.steps.retain(|bench_run| !is_replaced(&bench_run.step));
        self.missing.retain(|missing| !is_replaced(&missing.step));
        self.later_runs.iter_mut().for_each(|run| run.steps.retain(|step| !is_replaced(step)));
        self.later_runs.retain(|run| !run.steps.is_empty());
        self.later_runs.push(LaterRun {
            date: new.date.clone(),
            build: new.build.clone(),
            steps: steps.iter().map(|&step| step.to_owned()).collect(),
        });
    }

    /// Returns all records of all benches.
    pub(super) fn all(&self) -> impl Iterator<Item = &Record> {
        self.steps.iter().flat_map(|bench_run| &bench_run.records)
    }
}

/// Returns a value as compact JSON.
fn json(value: &impl Serialize) -> String {
    // Serialization fails only for maps without string keys and for implementations that return
    // errors.
    serde_json::to_string(value).expect("records are plain data")
}

/// Returns the 64-bit FNV-1a hash.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Replaces a file atomically: writes a new file beside it, syncs that to the disk, and renames it.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written.and_then(|()| fs::rename(&new, path)) {
        // An incomplete file is of no use.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

impl BenchRun {
    /// Adds the measurements of a later visit. The merged median is the mean of the medians of the
    /// visits, weighted by the number of runs of each. The merged minimum and maximum are those of
    /// all runs.
    pub(super) fn add(&mut self, later: BenchRun) {
        self.visits += later.visits;
        self.seconds += later.seconds;
        for record in later.records {
            match self.records.iter_mut().find(|known| known.has_same_key(&record)) {
                Some(known) => merge(known, &record),
                None => self.records.push(record),
            }
        }
    }
}

fn merge(known: &mut Record, later: &Record) {
    let runs = known.runs + later.runs;
    let sum = known.median * known.runs as f64 + later.median * later.runs as f64;
    known.median = sum / runs as f64;
    known.min = known.min.min(later.min);
    known.max = known.max.max(later.max);
    known.runs = runs;
    *known = rounded(known.clone());
}

/// Rounds to six significant digits, which are more than the precision of any bench.
pub(super) fn rounded(mut record: Record) -> Record {
    for value in [&mut record.median, &mut record.min, &mut record.max] {
        *value = format!("{value:.5e}").parse().unwrap_or(*value);
    }
    record
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::record::{RanOn, Sample};

    /// Returns records of the step `vm`, from cases, subjects and times in seconds.
    pub(in super::super) fn records(values: &[(&str, &str, f64)]) -> Records {
        let mut sample = Sample::new("vm");
        sample.set_executor(RanOn::Tcg);
        for &(case, subject, value) in values {
            sample.add(case, subject, ("time", "s"), value);
        }
        let records = sample.records().into_iter().map(rounded).collect();
        let command = "bench vm --sizes 1G".into();
        Records {
            version: "0.1.0".into(),
            build: "1".into(),
            machine: Machine::of_this_host(),
            set: "standard".into(),
            date: "2026-11-23 12:00".into(),
            later_runs: vec![],
            steps: vec![BenchRun { step: "vm".into(), command, visits: 1, seconds: 1.5, records }],
            missing: vec![],
        }
    }

    /// A temporary directory, which is removed when it is dropped.
    pub(in super::super) struct Scratch(pub(in super::super) PathBuf);

    impl Scratch {
        pub(in super::super) fn new(name: &str) -> Scratch {
            let name = format!("hotmem-report-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn replaced_steps_name_the_run_that_measured_them_last() {
        let mut all = records(&[("a", "x", 1.0)]);
        let frames = BenchRun { step: "frames".into(), ..all.steps[0].clone() };
        let reason = "QEMU is missing".to_owned();
        all.missing.push(Missing { step: "vm".into(), subject: "linux".into(), reason });
        all.steps.push(frames.clone());
        let run = |date: &str| Records { date: date.into(), ..records(&[]) };
        all.replace(&["vm"].into(), &run("2026-11-24 12:00"));
        assert_eq!((&all.steps, &all.missing), (&vec![frames], &vec![]));
        all.replace(&["vm", "frames"].into(), &run("2026-11-25 12:00"));
        assert!(all.steps.is_empty());
        let [later] = &all.later_runs[..] else { panic!("{:?}", all.later_runs) };
        assert_eq!((&*later.date, later.steps.join(",")), ("2026-11-25 12:00", "frames,vm".into()));
        let scratch = Scratch::new("later");
        let path = scratch.0.join("records.json");
        all.write(&path).unwrap();
        assert_eq!(Records::read(&path).unwrap(), all);
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let scratch = Scratch::new("round");
        let path = scratch.0.join("records.json");
        let written = records(&[("1G/plug", "hotmem", 0.1 + 0.2), ("1G/plug", "linux", 1.0 / 3.0)]);
        written.write(&path).unwrap();
        assert_eq!(Records::read(&path).unwrap(), written);
        assert_eq!(Records::read_from(&path, &Machine::of_this_host()).unwrap(), written);
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "nothing is left beside it");
        let first = written.all().next().unwrap();
        assert_eq!((first.median, first.ran_on), (0.3, RanOn::Tcg));
    }

    #[test]
    fn the_runs_of_two_visits_are_in_one_record() {
        let visit = |values: &[(&str, &str, f64)]| records(values).steps.remove(0);
        let mut bench_run =
            visit(&[("a", "hotmem", 1.0), ("a", "hotmem", 3.0), ("a", "linux", 5.0)]);
        bench_run.add(visit(&[("a", "hotmem", 8.0), ("b", "hotmem", 4.0)]));
        assert_eq!((bench_run.visits, bench_run.seconds), (2, 3.0));
        let figures: Vec<_> = bench_run
            .records
            .iter()
            .map(|r| (&*r.case, &*r.subject, [r.min, r.median, r.max], r.runs))
            .collect();
        assert_eq!(
            figures,
            [
                ("a", "hotmem", [1.0, 4.0, 8.0], 3),
                ("a", "linux", [5.0; 3], 1),
                ("b", "hotmem", [4.0; 3], 1)
            ]
        );
    }

    #[test]
    fn the_error_of_damaged_records_names_the_file() {
        let scratch = Scratch::new("damaged");
        let path = scratch.0.join("records.json");
        let text = records(&[("1G/plug", "hotmem", 0.187)]).text();
        let cut = text[..text.len() / 2].to_owned();
        for bad in [cut, text.replace("0.187", "0.087"), text.replace("median", "mean"), "7".into()]
        {
            fs::write(&path, &bad).unwrap();
            let error = Records::read(&path).unwrap_err();
            assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
            assert!(error.to_string().contains("records.json: damaged"), "{error}");
        }
        let error = Records::read(&scratch.0.join("none.json")).unwrap_err();
        assert!(error.to_string().contains("none.json: cannot be read"), "{error}");
    }

    #[test]
    fn the_error_of_records_of_another_format_or_machine_names_it() {
        let scratch = Scratch::new("other");
        let path = scratch.0.join("records.json");
        let ours = records(&[("1G/plug", "hotmem", 0.187)]);
        fs::write(&path, ours.text().replace("\"format\":2,", "\"format\":7,")).unwrap();
        let error = Records::read(&path).unwrap_err().to_string();
        assert!(error.contains("records of format 7"), "{error}");
        // A later format may have different records.
        fs::write(&path, "{\"format\":3,\"figures\":{}}").unwrap();
        let error = Records::read(&path).unwrap_err().to_string();
        assert!(error.contains("records of format 3"), "{error}");

        let machine = Machine { cpu: "Z80".into(), ..Machine::of_this_host() };
        Records { machine, ..ours }.write(&path).unwrap();
        let error = Records::read_from(&path, &Machine::of_this_host()).unwrap_err().to_string();
        assert!(error.contains("another machine") && error.contains("Z80"), "{error}");
    }
}
