//! Interrupts the driver (4.2.2).

use super::deviation::Deviation;
use crate::registers::{CONFIG_CHANGE, USED_BUFFER};

/// The interrupts of a device.
#[derive(Default)]
pub(super) struct Interrupts {
    deviation: Option<Deviation>,
    /// The causes that the driver has not acknowledged.
    unacknowledged: u32,
    /// Whether the device has interrupted since the host has looked.
    has_interrupted: bool,
}

impl Interrupts {
    pub(super) fn new(deviation: Option<Deviation>) -> Interrupts {
        Interrupts { deviation, ..Interrupts::default() }
    }

    /// Tells the driver that a buffer was used.
    pub(super) fn buffer_used(&mut self) {
        let is_wrong = self.deviates(Deviation::AnswerIsConfigChange);
        self.unacknowledged |= if is_wrong { CONFIG_CHANGE } else { USED_BUFFER };
        self.has_interrupted |= !self.deviates(Deviation::NoInterruptAfterAnswer);
    }

    /// Tells the driver that the configuration has changed.
    pub(super) fn config_changed(&mut self) {
        let is_wrong = self.deviates(Deviation::EveryInterruptForBuffer);
        self.unacknowledged |= if is_wrong { USED_BUFFER } else { CONFIG_CHANGE };
        self.has_interrupted |= !self.deviates(Deviation::NoInterruptAfterHostChange);
    }

    /// Returns the register `InterruptStatus`.
    pub(super) fn status(&self) -> u32 {
        if self.deviates(Deviation::InterruptStatusZero) { 0 } else { self.unacknowledged }
    }

    pub(super) fn acknowledge(&mut self, causes: u32) {
        if !self.deviates(Deviation::InterruptAckIgnored) {
            self.unacknowledged &= !causes;
        }
    }

    pub(super) fn reset(&mut self) {
        self.unacknowledged = 0;
    }

    /// Returns whether the device has interrupted since the last call.
    pub(super) fn take(&mut self) -> bool {
        core::mem::take(&mut self.has_interrupted)
    }

    fn deviates(&self, deviation: Deviation) -> bool {
        self.deviation == Some(deviation)
    }
}
