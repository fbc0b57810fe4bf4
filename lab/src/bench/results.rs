//! Runs the measurements of a bench, and prints and writes the figures, also if a measurement fails.

use super::record::{self, Record, Sample};
use crate::out;
use anyhow::Result;
use std::path::Path;

/// Calls `measure`, which adds runs to a sample, then prints the figures by `print` and writes them to
/// `json`. If `measure` fails, the figures that it has added before are printed and written too.
///
/// # Errors
/// `json` cannot be written, which is checked before the measurements; or the first error of
/// `measure`, of writing the figures, and of printing them.
pub(super) fn collect(
    bench: &'static str,
    json: Option<&Path>,
    measure: impl FnOnce(&mut Sample) -> Result<()>,
    print: impl FnOnce(&[Record]) -> Result<()>,
) -> Result<()> {
    json.map_or(Ok(()), out::ensure_writable)?;
    let mut sample = Sample::new(bench);
    let measured = measure(&mut sample);
    let records = sample.records();
    if records.is_empty() && measured.is_err() {
        return measured;
    }
    let printed = print(&records);
    let written = json.map_or(Ok(()), |path| record::write_json(&records, path));
    measured.and(written).and(printed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::{cell::Cell, fs, path::PathBuf};

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("hotmem-{name}-{}.json", std::process::id()))
    }

    #[test]
    fn figures_measured_before_a_failure_are_printed_and_written() {
        let (path, printed) = (file("failure"), Cell::new(0));
        let result = collect(
            "frames",
            Some(&path),
            |sample| {
                sample.add("case", "hotmem", ("time", "s"), 1.0);
                bail!("the second case failed")
            },
            |records| {
                printed.set(records.len());
                Ok(())
            },
        );
        let records: Vec<Record> =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(result.unwrap_err().to_string(), "the second case failed");
        assert_eq!((records.len(), printed.get()), (1, 1));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_refused_before_the_measurements() {
        let never = |_: &mut Sample| -> Result<()> { panic!("measured") };
        let refused = collect("frames", Some(Path::new("/nowhere/file")), never, |_| Ok(()));
        assert!(format!("{:#}", refused.unwrap_err()).contains("/nowhere/file"));
    }

    #[test]
    fn a_failure_without_figures_leaves_the_file_as_it_was() {
        let path = file("old");
        let fail = || collect("frames", Some(&path), |_| bail!("no host"), |_| panic!("printed"));
        assert!(fail().is_err() && !path.exists());
        fs::write(&path, "old").unwrap();
        assert!(fail().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        fs::remove_file(&path).unwrap();
    }
}
