//! Waits while the guest writes to its memory.

use super::rows::{Row, StepTime};
use crate::qemu::{Event, Vm};
use anyhow::Result;
use hotmem::Bytes;

/// Waits until the guest has written to the plugged memory.
pub(super) fn wait_until_touched(vm: &mut Vm) -> Result<Row> {
    let (row, _) = vm.wait("end of the touching", |event| match *event {
        Event::Touched { bytes, time } => {
            Some(Row { step: "touch", memory: Bytes(bytes), time: StepTime::InGuest(time.into()) })
        }
        _ => None,
    })?;
    Ok(row)
}
