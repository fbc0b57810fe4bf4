//! Interprets the registers of a PCIe port's hot-plug slot, and computes the values to write to
//! them. (PCI Express Base Specification 5.0, 6.7.1 and 7.5.3.10 to 11)
//!
//! Slot Control and Slot Status are read as one word of configuration space, so that both values are
//! of the same time, and written apart.

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
    /// Stop using the device, then write the values of [`Slot::power_off`]. [`Slot::step`] returns
    /// this action until they are written.
    Release,
    /// The device was removed without a request, so it must not be accessed any more.
    Forget,
}

/// The values to write to the registers, each by one access of 16 bits. A write of both would write
/// an old value to Slot Control whenever an event of Slot Status is acknowledged, and so cause the
/// next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Writes {
    /// The value for Slot Control, if it must change.
    pub control: Option<u16>,
    /// The value for Slot Status, which clears the events whose bits are set.
    pub status: Option<u16>,
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

impl Writes {
    /// Acknowledges the events of Slot Status.
    #[must_use]
    pub const fn acknowledging(register: u32) -> Writes {
        let (_, status) = halves(register & EVENTS);
        Writes { control: None, status: if status == 0 { None } else { Some(status) } }
    }
}

impl Slot {
    /// Returns the state of a slot at boot. If `found`, the kernel has found a device in the slot
    /// at boot and uses it.
    #[must_use]
    pub const fn at_boot(register: u32, found: bool) -> Slot {
        let is_in_use = found && register & PRESENT != 0;
        Slot { state: if is_in_use { State::InUse } else { State::Empty } }
    }

    /// Interprets the registers. Returns the required action, and the values to write.
    pub fn step(&mut self, register: u32) -> (Action, Writes) {
        let present = register & PRESENT != 0;
        let device_changed = !present || register & PRESENCE_CHANGED != 0;
        let mut writes = Writes::acknowledging(register);
        let action = match self.state {
            State::Empty if present => {
                self.state = State::New;
                let (control, _) = halves(register);
                let (powered, _) =
                    halves(register & !(POWER_INDICATOR | POWER_OFF) | POWER_INDICATOR_ON);
                // QEMU itself powers a slot whose device is added by ACPI hot-plug.
                writes.control = (powered != control).then_some(powered);
                Action::Examine
            }
            State::Empty => Action::Nothing,
            State::New if !device_changed => Action::Examine,
            _ if device_changed => {
                self.state = State::Empty;
                Action::Forget
            }
            State::InUse if register & BUTTON_PRESSED == 0 => Action::Nothing,
            _ => {
                self.state = State::RemovalRequested;
                Action::Release
            }
        };
        (action, writes)
    }

    /// Records that the new device was examined.
    pub fn mark_examined(&mut self) {
        if self.state == State::New {
            self.state = State::InUse;
        }
    }

    /// Returns the values to write to power the slot off.
    pub fn power_off(&mut self, register: u32) -> Writes {
        self.state = State::Empty;
        let (control, _) = halves(register | POWER_INDICATOR_OFF | POWER_OFF);
        Writes { control: Some(control), status: None }
    }
}

/// Returns Slot Control and Slot Status.
const fn halves(register: u32) -> (u16, u16) {
    let [a, b, c, d] = register.to_le_bytes();
    (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POWERED_OFF: u32 = POWER_INDICATOR_OFF | POWER_OFF;
    const POWERED_ON: u32 = POWER_INDICATOR_ON;
    const COMMAND_COMPLETED: u32 = 1 << (STATUS + 4);
    const NO_WRITES: Writes = Writes { control: None, status: None };

    fn control(register: u32) -> Writes {
        Writes { control: Some(halves(register).0), status: None }
    }

    fn status(events: u32) -> Writes {
        Writes { control: None, status: Some(halves(events).1) }
    }

    #[test]
    fn a_device_is_examined_when_it_is_added_and_released_when_removal_is_requested() {
        let mut slot = Slot::at_boot(POWERED_OFF, false);
        assert_eq!(slot.step(POWERED_OFF), (Action::Nothing, NO_WRITES));
        let events = PRESENCE_CHANGED | BUTTON_PRESSED;
        let (action, writes) = slot.step(POWERED_OFF | PRESENT | events);
        assert_eq!(action, Action::Examine);
        // The slot is on, and both events are acknowledged.
        assert_eq!(writes, Writes { status: status(events).status, ..control(POWERED_ON) });
        assert_eq!(slot.step(POWERED_ON | PRESENT), (Action::Examine, NO_WRITES));
        slot.mark_examined();
        assert_eq!(slot.step(POWERED_ON | PRESENT), (Action::Nothing, NO_WRITES));

        let pressed = POWERED_ON | PRESENT | BUTTON_PRESSED;
        assert_eq!(slot.step(pressed), (Action::Release, status(BUTTON_PRESSED)));
        assert_eq!(slot.step(POWERED_ON | PRESENT), (Action::Release, NO_WRITES));
        assert_eq!(slot.power_off(pressed), control(POWERED_OFF));
        let removed = POWERED_OFF | PRESENCE_CHANGED;
        assert_eq!(slot.step(removed), (Action::Nothing, status(PRESENCE_CHANGED)));
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
        assert_eq!(slot.step(POWERED_OFF | PRESENT), (Action::Examine, control(POWERED_ON)));
    }

    /// A port sets Command Completed at each write of Slot Control. QEMU adds the device between a
    /// read of the registers and the writes that follow it, and powers the slot.
    #[test]
    fn writes_that_come_late_neither_power_a_slot_off_nor_cause_more_writes() {
        let mut slot = Slot::at_boot(POWERED_OFF, false);
        let before = POWERED_OFF | COMMAND_COMPLETED;
        assert_eq!(slot.step(before), (Action::Nothing, status(COMMAND_COMPLETED)));
        // The device is there, and only the event is gone.
        let added = POWERED_ON | PRESENT;
        assert_eq!(slot.step(added), (Action::Examine, NO_WRITES));
        slot.mark_examined();
        assert_eq!(slot.step(added), (Action::Nothing, NO_WRITES));
    }
}
