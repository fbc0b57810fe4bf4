//! What a run of `hotmem vm` has found, as text or as JSON.

use super::{
    Args,
    balloon::{self, Resident},
    rows,
    rows::Row,
};
use crate::{out, resident::Sample, size, table::time};
use anyhow::Result;
use hotmem::Bytes;
use serde::Serialize;
use std::time::Duration;

/// What a run has found.
pub(super) struct Outcome {
    pub(super) boot_memory: Bytes,
    /// The time from the VMM's start to the guest's first line.
    pub(super) first_line: Duration,
    /// A sentence about the machine that readers of the table must know.
    pub(super) remark: Option<String>,
    pub(super) rows: Vec<Row>,
    pub(super) resident: Option<Resident>,
    /// The size of the metadata that the guest has written, if it has reported it.
    pub(super) metadata: Option<Bytes>,
    /// Whether the guest has checked itself and passed. Linux does not check itself.
    pub(super) is_checked: bool,
}

/// [`Outcome`] for JSON. Sizes are in bytes, times in seconds.
#[derive(Serialize)]
struct Json<'a> {
    boot_memory: u64,
    first_line: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<&'a str>,
    steps: Vec<rows::Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resident: Option<Vec<JsonSample>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<u64>,
    instructions: bool,
    checked: bool,
}

/// A sample of the memory that the host holds.
#[derive(Serialize)]
struct JsonSample {
    /// The time since the VMM's start.
    seconds: f64,
    size: u64,
}

impl Outcome {
    /// Prints what was found, and writes the plot if a file is named.
    ///
    /// # Errors
    /// Standard output or the file cannot be written to.
    pub(super) fn print(&self, args: &Args) -> Result<()> {
        if let (Some(resident), Some(svg)) = (&self.resident, &args.svg) {
            balloon::write_svg(resident, svg)?;
        }
        if args.json { out::write_json(&self.as_json(args)) } else { self.print_text(args) }
    }

    fn print_text(&self, args: &Args) -> Result<()> {
        let (boot_memory, first_line) = (size::short(self.boot_memory), time(self.first_line));
        say!("guest of {boot_memory}, first line {first_line} after the VMM's start")?;
        if let Some(remark) = &self.remark {
            say!("{remark}")?;
        }
        rows::print(&self.rows, args.limit)?;
        if let Some(resident) = &self.resident {
            balloon::print_plot(resident)?;
        }
        if let Some(written) = self.metadata {
            let plugged: u64 = self.rows.iter().filter(|row| row.is_plug()).map(Row::bytes).sum();
            let percent = written.0 as f64 / plugged as f64 * 100.0;
            let written = size::approximate(written);
            say!("metadata written: {written}, {percent:.6} % of what was plugged")?;
        }
        if args.machine.counts_instructions() {
            say!("in the guest, 1 ns is one instruction")?;
        }
        if self.is_checked {
            say!("the guest's own checks: PASS")?;
        }
        Ok(())
    }

    fn as_json(&self, args: &Args) -> Json<'_> {
        let samples = |resident: &Resident| {
            let since_start =
                |sample: &Sample| sample.time.saturating_duration_since(resident.started);
            let sample = |sample: &Sample| JsonSample {
                seconds: since_start(sample).as_secs_f64(),
                size: sample.resident.0,
            };
            resident.samples.iter().map(sample).collect()
        };
        Json {
            boot_memory: self.boot_memory.0,
            first_line: self.first_line.as_secs_f64(),
            remark: self.remark.as_deref(),
            steps: self.rows.iter().map(rows::Json::from).collect(),
            resident: self.resident.as_ref().map(samples),
            metadata: self.metadata.map(|written| written.0),
            instructions: args.machine.counts_instructions(),
            checked: self.is_checked,
        }
    }
}
