//! Records the interrupt lines that were raised. The interrupt controller masks a raised line until it is
//! answered, because a device asserts its line until its status is read.

use core::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

/// The number of consecutive stray interrupts, which no device of this kernel has raised, after which the
/// line stays masked, so that another device on a shared line cannot keep the CPU busy.
const MAX_STRAY: u16 = 16;
/// The most passes over the devices in an answer, so that a device that always says that it has
/// interrupted cannot keep the CPU busy.
const MAX_PASSES: u32 = 16;

/// The lines that were raised since the last answer, of 32 × `WORDS` lines.
pub struct RaisedLines<const WORDS: usize> {
    /// A bit for each line. The handler sets it and [`Self::answer`] clears it on the same CPU.
    raised: [AtomicU32; WORDS],
    /// Whether any bit is set. The Release of the handler pairs with the Acquire of the answer.
    is_any: AtomicBool,
    /// The number of consecutive stray interrupts.
    stray_count: AtomicU16,
}

impl<const WORDS: usize> RaisedLines<WORDS> {
    /// No line was raised.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is static")]
    pub const fn new() -> Self {
        RaisedLines {
            raised: [const { AtomicU32::new(0) }; WORDS],
            is_any: AtomicBool::new(false),
            stray_count: AtomicU16::new(0),
        }
    }

    /// Records that a line was raised. The handler calls this when the controller has masked the line. A
    /// line beyond the last one is not recorded, and stays masked.
    pub fn raise(&self, line: u32) {
        if let Some(word) = self.raised.get(line as usize / 32) {
            word.fetch_or(1 << (line % 32), Relaxed);
            self.is_any.store(true, Release);
        }
    }

    /// Returns whether a line was raised since the last answer.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.is_any.load(Relaxed)
    }

    /// Handles the lines that were raised since the last answer. `acknowledge_devices` reads each device's
    /// interrupt status, and returns whether any device had interrupted. `unmask` unmasks a line.
    ///
    /// The devices are asked until none has interrupted, so that a shared line was low in between: the
    /// PLIC of QEMU does not interrupt again for a line that a second device has kept high.
    pub fn answer(&self, mut acknowledge_devices: impl FnMut() -> bool, unmask: impl Fn(u32)) {
        if !self.is_any.swap(false, Acquire) {
            return;
        }
        let raised = self.raised.each_ref().map(|word| word.swap(0, Relaxed));
        let is_stray = (0..MAX_PASSES).take_while(|_| acknowledge_devices()).count() == 0;
        let stray = if is_stray { self.stray_count.load(Relaxed).saturating_add(1) } else { 0 };
        self.stray_count.store(stray, Relaxed);
        if stray >= MAX_STRAY {
            return;
        }
        for (first, mut word) in (0..).step_by(32).zip(raised) {
            while word != 0 {
                unmask(first + word.trailing_zeros());
                word &= word - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    const LINE: u32 = 40;

    /// Two devices on a line, and a controller that notices only a line that rises, as QEMU's PLIC does.
    struct Machine {
        lines: RaisedLines<2>,
        interrupting: [Cell<bool>; 2],
        is_masked: Cell<bool>,
        is_pending: Cell<bool>,
    }

    impl Machine {
        fn new() -> Self {
            Machine {
                lines: RaisedLines::new(),
                interrupting: Default::default(),
                is_masked: Cell::default(),
                is_pending: Cell::default(),
            }
        }

        fn interrupt(&self, device: usize) {
            let was_high = self.interrupting.iter().any(Cell::get);
            self.interrupting[device].set(true);
            self.is_pending.set(self.is_pending.get() || !was_high);
            self.deliver();
        }

        fn deliver(&self) {
            if self.is_pending.get() && !self.is_masked.replace(true) {
                self.is_pending.set(false);
                self.lines.raise(LINE);
            }
        }

        /// Answers the line. `meanwhile` runs after the status of each device was read.
        fn answer(&self, mut meanwhile: impl FnMut(usize)) {
            let acknowledge = || {
                let mut read = |device: usize| {
                    let was_interrupting = self.interrupting[device].take();
                    meanwhile(device);
                    was_interrupting
                };
                read(0) | read(1)
            };
            self.lines.answer(acknowledge, |line| {
                assert_eq!(line, LINE);
                self.is_masked.set(false);
                self.deliver();
            });
        }
    }

    #[test]
    fn a_device_that_interrupts_while_another_one_keeps_the_line_high_is_served() {
        let machine = Machine::new();
        machine.interrupt(1);
        let mut is_first = true;
        machine.answer(|device| {
            if device == 0 && std::mem::take(&mut is_first) {
                machine.interrupt(0);
            }
        });
        machine.answer(|_| ());
        assert!(!machine.interrupting[0].get(), "device 0 was forgotten");
        assert!(!machine.lines.is_any());
        machine.interrupt(0);
        assert!(machine.lines.is_any());
    }

    #[test]
    fn a_line_stays_masked_after_many_stray_interrupts_and_a_device_is_asked_a_limited_number_of_times()
     {
        let (lines, unmasked) = (RaisedLines::<1>::new(), RefCell::new(Vec::new()));
        let unmask = |line| unmasked.borrow_mut().push(line);
        for _ in 0..2 * MAX_STRAY {
            lines.raise(7);
            lines.raise(32);
            lines.answer(|| false, unmask);
        }
        assert_eq!(*unmasked.borrow(), vec![7; usize::from(MAX_STRAY) - 1]);
        let mut passes = 0;
        lines.raise(3);
        lines.answer(
            || {
                passes += 1;
                true
            },
            unmask,
        );
        assert_eq!((passes, unmasked.borrow().last()), (MAX_PASSES, Some(&3)));
    }
}
