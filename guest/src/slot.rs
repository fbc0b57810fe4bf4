//! Interprets the registers of a PCIe port's hot-plug slot, and computes the values to write to
//! them. (PCI Express Base Specification 5.0, 6.7.1 and 7.5.3.10 to 11)
//!
//! Slot Control and Slot Status are treated as one word of configuration space.

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Empty,
    /// Powered, with a device that has not been examined yet.
    New,
    InUse,
    /// The attention button was pressed to remove the device.
    RemovalRequested,
}

/// The action that a slot requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// No action.
    Nothing,
    /// Examine the new device, and call [`Slot::mark_examined`] after the device has answered.
    Examine,
    /// Stop using the device, then write the value of [`Slot::power_off`]. [`Slot::step`] returns
    /// this action until that value is written.
    Release,
    /// The device was removed without a request, so it must not be accessed any more.
    Forget,
}

/// Bits of Slot Control: the power indicator and the power controller.
const POWER_INDICATOR: u32 = 0b11 << 8;
const POWER_INDICATOR_ON: u32 = 0b01 << 8;
const POWER_INDICATOR_OFF: u32 = 0b11 << 8;
const POWER_OFF: u32 = 1 << 10;
/// The position of Slot Status in the word.
const STATUS: u32 = 16;
const BUTTON_PRESSED: u32 = 1 << STATUS;
const PRESENCE_CHANGED: u32 = 1 << (STATUS + 3);
const PRESENT: u32 = 1 << (STATUS + 6);
/// The events of Slot Status: button, power fault, latch, presence, command, link. Writing a one
/// clears an event.
const EVENTS: u32 = 0x011f << STATUS;

impl Slot {
    /// Returns the state of a slot at boot. If `found`, the kernel has found a device in the slot
    /// at boot and uses it.
    #[must_use]
    pub const fn at_boot(register: u32, found: bool) -> Slot {
        let is_in_use = found && register & PRESENT != 0;
        Slot { state: if is_in_use { State::InUse } else { State::Empty } }
    }

    /// Interprets the registers. Returns the required action, and the value to write to the
    /// registers, if any.
    pub fn step(&mut self, register: u32) -> (Action, Option<u32>) {
        let present = register & PRESENT != 0;
        let device_changed = !present || register & PRESENCE_CHANGED != 0;
        let acknowledged = (register & EVENTS != 0).then_some(register);
        match self.state {
            State::Empty if present => {
                self.state = State::New;
                let powered = register & !(POWER_INDICATOR | POWER_OFF) | POWER_INDICATOR_ON;
                (Action::Examine, Some(powered))
            }
            State::Empty => (Action::Nothing, acknowledged),
            State::New if !device_changed => (Action::Examine, acknowledged),
            _ if device_changed => {
                self.state = State::Empty;
                (Action::Forget, acknowledged)
            }
            State::InUse if register & BUTTON_PRESSED == 0 => (Action::Nothing, acknowledged),
            _ => {
                self.state = State::RemovalRequested;
                (Action::Release, acknowledged)
            }
        }
    }

    /// Records that the new device was examined.
    pub fn mark_examined(&mut self) {
        if self.state == State::New {
            self.state = State::InUse;
        }
    }

    /// Returns the value to write to power the slot off.
    pub fn power_off(&mut self, register: u32) -> u32 {
        self.state = State::Empty;
        (register & !EVENTS) | POWER_INDICATOR_OFF | POWER_OFF
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POWERED_OFF: u32 = POWER_INDICATOR_OFF | POWER_OFF;
    const POWERED_ON: u32 = POWER_INDICATOR_ON;

    #[test]
    fn a_device_is_examined_when_it_is_added_and_released_when_removal_is_requested() {
        let mut slot = Slot::at_boot(POWERED_OFF, false);
        assert_eq!(slot.step(POWERED_OFF), (Action::Nothing, None));
        let added = POWERED_OFF | PRESENT | PRESENCE_CHANGED | BUTTON_PRESSED;
        let (action, new_value) = slot.step(added);
        assert_eq!(action, Action::Examine);
        // The slot is on, and both events are acknowledged.
        assert_eq!(new_value, Some(POWERED_ON | PRESENT | PRESENCE_CHANGED | BUTTON_PRESSED));
        assert_eq!(slot.step(POWERED_ON | PRESENT), (Action::Examine, None));
        slot.mark_examined();
        assert_eq!(slot.step(POWERED_ON | PRESENT), (Action::Nothing, None));

        let pressed = POWERED_ON | PRESENT | BUTTON_PRESSED;
        assert_eq!(slot.step(pressed), (Action::Release, Some(pressed)));
        assert_eq!(slot.step(POWERED_ON | PRESENT), (Action::Release, None));
        assert_eq!(slot.power_off(pressed), POWERED_OFF | PRESENT);
        let removed = POWERED_OFF | PRESENCE_CHANGED;
        assert_eq!(slot.step(removed), (Action::Nothing, Some(removed)));
    }

    #[test]
    fn a_device_removed_without_a_request_is_forgotten() {
        let mut slot = Slot::at_boot(POWERED_ON | PRESENT, true);
        assert_eq!(slot.step(POWERED_ON | PRESENCE_CHANGED).0, Action::Forget);
        assert_eq!(slot.step(POWERED_ON).0, Action::Nothing);
    }

    #[test]
    fn a_replaced_device_is_new() {
        let mut slot = Slot::at_boot(POWERED_ON | PRESENT, true);
        assert_eq!(slot.step(POWERED_ON | PRESENT | PRESENCE_CHANGED).0, Action::Forget);
        assert_eq!(slot.step(POWERED_ON | PRESENT).0, Action::Examine);
    }

    #[test]
    fn a_device_that_boot_did_not_find_is_new() {
        let mut slot = Slot::at_boot(POWERED_OFF | PRESENT, false);
        assert_eq!(slot.step(POWERED_OFF | PRESENT), (Action::Examine, Some(POWERED_ON | PRESENT)));
    }
}
