//! The steps of `hotmem vm`, as the rows of a table and as JSON.

use crate::{
    out::OutputError,
    qemu::{Resize, Zone},
    size,
    table::{table, time},
};
use hotmem::Bytes;
use serde::Serialize;
use std::time::Duration;

/// A row of the table.
pub(super) struct Row {
    /// The step's name.
    pub(super) step: &'static str,
    /// The size of the memory that was plugged, unplugged, written to or reported.
    pub(super) memory: Bytes,
    /// The time of the step.
    pub(super) time: StepTime,
}

/// The time of a step.
pub(super) enum StepTime {
    /// A change of the guest's memory.
    Resize(Resize),
    /// DIMMs were inserted or removed, or the memory of CXL devices was changed.
    Dimms {
        /// The time until the guest reported the change.
        recognised: Duration,
        /// The time that the guest measured, except for a removal of DIMMs.
        in_guest: Option<Duration>,
    },
    /// A time that only the guest measured.
    InGuest(Duration),
    /// The step did not end within the limit. The value is the size that the device had plugged at
    /// the end of the limit.
    NotDone(Bytes),
}

/// A row for JSON. Sizes are in bytes, times in seconds. Keys without a value are left out.
#[derive(Serialize, Default)]
pub(super) struct Json {
    step: &'static str,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_done: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recognised: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_guest: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    contiguous: Option<Contiguous>,
    /// What the device had plugged at the time limit, if the step did not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    reached: Option<u64>,
}

/// How often the zone of the device's memory was found contiguous, for JSON.
#[derive(Serialize)]
struct Contiguous {
    zone: String,
    queries: u64,
    yes: u64,
}

impl Row {
    /// Returns whether the step has added memory.
    pub(super) fn is_plug(&self) -> bool {
        self.step.starts_with("plug") || self.step.starts_with("insert")
    }

    /// Returns the size of the step's memory in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.memory.0
    }
}

impl From<&Row> for Json {
    fn from(row: &Row) -> Json {
        let json = Json { step: row.step, size: row.bytes(), ..Json::default() };
        let seconds = |time: Duration| Some(time.as_secs_f64());
        match &row.time {
            StepTime::Resize(resize) => Json {
                device_done: seconds(resize.device_done),
                recognised: seconds(resize.recognised),
                in_guest: seconds(resize.in_guest),
                requests: requests(resize),
                contiguous: resize.zone.as_ref().map(Contiguous::from),
                ..json
            },
            StepTime::Dimms { recognised, in_guest } => Json {
                recognised: seconds(*recognised),
                in_guest: in_guest.and_then(seconds),
                ..json
            },
            StepTime::InGuest(time) => Json { in_guest: seconds(*time), ..json },
            StepTime::NotDone(size) => Json { reached: Some(size.0), ..json },
        }
    }
}

impl From<&Zone> for Contiguous {
    fn from(zone: &Zone) -> Contiguous {
        let (queries, yes) = (zone.queries, zone.contiguous_answers);
        Contiguous { zone: zone.name.to_string(), queries, yes }
    }
}

/// Returns the number of requests that the guest made to the device. Linux does not report it.
fn requests(resize: &Resize) -> Option<u64> {
    Some(resize.requests).filter(|&requests| requests > 0)
}

/// Prints the table, which has at most 80 columns. `limit_s` is the time limit of a step of Linux, in
/// seconds.
///
/// # Errors
/// Standard output cannot be written to.
pub(super) fn print(rows: &[Row], limit_s: u32) -> Result<(), OutputError> {
    let header =
        ["step", "memory", "device\ndone", "recognised", "in the\nguest", "requests", "contiguous"];
    let mut table = table(&header, 1);
    for row in rows {
        let [device_done, recognised, in_guest, requests, contiguous] = cells(row, limit_s);
        let memory = size::short(row.memory);
        table.add_row([
            row.step,
            &memory,
            &device_done,
            &recognised,
            &in_guest,
            &requests,
            &contiguous,
        ]);
    }
    say!("{table}")?;
    for row in rows {
        if let StepTime::NotDone(size) = row.time {
            say!("{}: the device had {} at the limit", row.step, size::approximate(size))?;
        }
    }
    Ok(())
}

/// Returns the cells of a row after its size.
fn cells(row: &Row, limit_s: u32) -> [String; 5] {
    let empty = String::new;
    let optional = |duration: &Option<Duration>| duration.map_or_else(empty, time);
    match &row.time {
        StepTime::Resize(resize) => [
            time(resize.device_done),
            time(resize.recognised),
            time(resize.in_guest),
            requests(resize).map_or_else(empty, |number| number.to_string()),
            resize.zone.map_or_else(empty, |zone| zone.to_string()),
        ],
        StepTime::Dimms { recognised, in_guest } => {
            [empty(), time(*recognised), optional(in_guest), empty(), empty()]
        }
        StepTime::InGuest(duration) => [empty(), empty(), time(*duration), empty(), empty()],
        StepTime::NotDone(_) => [empty(), format!("> {limit_s} s"), empty(), empty(), empty()],
    }
}
