//! The table of `hotmem vm`: one row for each step.

use crate::{
    out::OutputError,
    qemu::Resize,
    size,
    table::{table, time},
};
use hotmem::Bytes;
use std::time::Duration;

/// One line of the table.
pub struct Row {
    /// The step's name.
    pub step: &'static str,
    /// The size that was plugged or unplugged.
    pub memory: Bytes,
    /// The duration.
    pub took: Took,
}

/// The duration of a step.
pub enum Took {
    /// A change of the guest's memory.
    Resize(Resize),
    /// A figure that only the guest measures.
    InGuest(Duration),
    /// The step did not end within the limit. The value is what the device had plugged by then.
    NotDone(Bytes),
}

/// Prints the table. `limit` is the time limit of a step of Linux, in seconds.
///
/// # Errors
/// The output cannot be written.
pub fn print(rows: &[Row], limit: u32) -> Result<(), OutputError> {
    let header =
        ["step", "memory", "device done", "recognised", "in the guest", "requests", "contiguous"];
    let mut table = table(&header, 1);
    for row in rows {
        let memory = row.memory.to_string();
        match &row.took {
            Took::Resize(resize) => table.add_row([
                row.step,
                &memory,
                &time(resize.device_done),
                &time(resize.recognised),
                &time(resize.in_guest),
                // Linux does not say.
                &Some(resize.requests).filter(|&n| n > 0).map_or(String::new(), |n| n.to_string()),
                &resize.zone.map_or(String::new(), |zone| zone.to_string()),
            ]),
            Took::InGuest(took) => table.add_row([row.step, &memory, "", "", &time(*took), "", ""]),
            Took::NotDone(size) => {
                let step = format!("{} (the device has {})", row.step, size::about(*size));
                table.add_row([&step, &memory, "", &format!("> {} s", limit), "", "", ""])
            }
        };
    }
    say!("{table}")?;
    Ok(())
}
