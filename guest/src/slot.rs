//! A hot-plug slot of a PCIe port: what its registers say, and what to write to them.
//! (PCI Express Base Specification 5.0, 6.7.1 and 7.5.3.10 to 11)
//!
//! Slot Control and Slot Status are one word of configuration space here, as they are read.

/// A slot, with what is known of its occupant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Empty,
    /// Powered, and nobody has looked at what is there.
    New,
    Known,
    /// The attention button was pressed for what is there.
    Leaving,
}

/// What is to be done about the slot's occupant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Nothing.
    Nothing,
    /// Look at it, and tell by [`Slot::known`] once it has answered.
    Look,
    /// Stop using it, then write [`Slot::power_off`]; again and again until then.
    Release,
    /// It has gone without asking.
    Forget,
}

/// Slot Control: indicators and power controller.
const POWER_INDICATOR: u32 = 0b11 << 8;
const POWER_INDICATOR_ON: u32 = 0b01 << 8;
const POWER_INDICATOR_OFF: u32 = 0b11 << 8;
const POWER_OFF: u32 = 1 << 10;
/// Slot Status, from here on up.
const STATUS: u32 = 16;
const BUTTON_PRESSED: u32 = 1 << STATUS;
const PRESENCE_CHANGED: u32 = 1 << (STATUS + 3);
const PRESENT: u32 = 1 << (STATUS + 6);
/// All that is cleared by writing it back: button, power fault, latch, presence, command, link.
const EVENTS: u32 = 0x011f << STATUS;

impl Slot {
    /// Returns a slot whose occupant, if it has one, has been there from the start and is in use.
    #[must_use]
    pub const fn at_boot(register: u32, found: bool) -> Slot {
        let known = found && register & PRESENT != 0;
        Slot { state: if known { State::Known } else { State::Empty } }
    }

    /// Follows the registers: what to do, and what to write, if anything.
    pub fn step(&mut self, register: u32) -> (Wanted, Option<u32>) {
        let present = register & PRESENT != 0;
        let exchanged = !present || register & PRESENCE_CHANGED != 0;
        let acknowledged = (register & EVENTS != 0).then_some(register);
        match self.state {
            State::Empty if present => {
                self.state = State::New;
                let powered = register & !(POWER_INDICATOR | POWER_OFF) | POWER_INDICATOR_ON;
                (Wanted::Look, Some(powered))
            }
            State::Empty => (Wanted::Nothing, acknowledged),
            State::New if !exchanged => (Wanted::Look, acknowledged),
            _ if exchanged => {
                self.state = State::Empty;
                (Wanted::Forget, acknowledged)
            }
            State::Known if register & BUTTON_PRESSED == 0 => (Wanted::Nothing, acknowledged),
            _ => {
                self.state = State::Leaving;
                (Wanted::Release, acknowledged)
            }
        }
    }

    /// Somebody has looked at what is there.
    pub fn known(&mut self) {
        if self.state == State::New {
            self.state = State::Known;
        }
    }

    /// Returns what to write to let the occupant go.
    pub fn power_off(&mut self, register: u32) -> u32 {
        self.state = State::Empty;
        (register & !EVENTS) | POWER_INDICATOR_OFF | POWER_OFF
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: u32 = POWER_INDICATOR_OFF | POWER_OFF;
    const ON: u32 = POWER_INDICATOR_ON;

    #[test]
    fn a_device_comes_and_is_asked_to_leave() {
        let mut slot = Slot::at_boot(OFF, false);
        assert_eq!(slot.step(OFF), (Wanted::Nothing, None));
        let came = OFF | PRESENT | PRESENCE_CHANGED | BUTTON_PRESSED;
        let (wanted, write) = slot.step(came);
        assert_eq!(wanted, Wanted::Look);
        // On, and both events acknowledged.
        assert_eq!(write, Some(ON | PRESENT | PRESENCE_CHANGED | BUTTON_PRESSED));
        assert_eq!(slot.step(ON | PRESENT), (Wanted::Look, None));
        slot.known();
        assert_eq!(slot.step(ON | PRESENT), (Wanted::Nothing, None));

        let pressed = ON | PRESENT | BUTTON_PRESSED;
        assert_eq!(slot.step(pressed), (Wanted::Release, Some(pressed)));
        assert_eq!(slot.step(ON | PRESENT), (Wanted::Release, None));
        assert_eq!(slot.power_off(pressed), OFF | PRESENT);
        let left = OFF | PRESENCE_CHANGED;
        assert_eq!(slot.step(left), (Wanted::Nothing, Some(left)));
    }

    #[test]
    fn a_device_that_goes_without_asking_is_forgotten() {
        let mut slot = Slot::at_boot(ON | PRESENT, true);
        assert_eq!(slot.step(ON | PRESENCE_CHANGED).0, Wanted::Forget);
        assert_eq!(slot.step(ON).0, Wanted::Nothing);
    }

    #[test]
    fn another_device_in_its_place_is_a_new_one() {
        let mut slot = Slot::at_boot(ON | PRESENT, true);
        assert_eq!(slot.step(ON | PRESENT | PRESENCE_CHANGED).0, Wanted::Forget);
        assert_eq!(slot.step(ON | PRESENT).0, Wanted::Look);
    }

    #[test]
    fn what_boot_did_not_see_is_new() {
        let mut slot = Slot::at_boot(OFF | PRESENT, false);
        assert_eq!(slot.step(OFF | PRESENT), (Wanted::Look, Some(ON | PRESENT)));
    }
}
