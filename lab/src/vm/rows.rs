//! The table of `hotmem vm`, which has a row for each step.

use crate::{
    out::OutputError,
    qemu::Resize,
    size,
    table::{table, time},
};
use hotmem::Bytes;
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

/// Prints the table. `limit_s` is the time limit of a step of Linux, in seconds.
///
/// # Errors
/// Standard output cannot be written to.
pub(super) fn print(rows: &[Row], limit_s: u32) -> Result<(), OutputError> {
    let header =
        ["step", "memory", "device done", "recognised", "in the guest", "requests", "contiguous"];
    let mut table = table(&header, 1);
    for row in rows {
        let memory = row.memory.to_string();
        match &row.time {
            StepTime::Resize(resize) => table.add_row([
                row.step,
                &memory,
                &time(resize.device_done),
                &time(resize.recognised),
                &time(resize.in_guest),
                // Linux does not report the number.
                &Some(resize.requests).filter(|&n| n > 0).map_or(String::new(), |n| n.to_string()),
                &resize.zone.map_or(String::new(), |zone| zone.to_string()),
            ]),
            StepTime::Dimms { recognised, in_guest } => table.add_row([
                row.step,
                &memory,
                "",
                &time(*recognised),
                &in_guest.map_or(String::new(), time),
                "",
                "",
            ]),
            StepTime::InGuest(duration) => {
                table.add_row([row.step, &memory, "", "", &time(*duration), "", ""])
            }
            StepTime::NotDone(size) => {
                let step = format!("{} (the device has {})", row.step, size::approximate(*size));
                table.add_row([&step, &memory, "", &format!("> {limit_s} s"), "", "", ""])
            }
        };
    }
    say!("{table}")?;
    Ok(())
}
