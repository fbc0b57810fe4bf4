//! Drives the 8259 interrupt controllers, to which firmware routes PCI's INTx lines. (How the lines
//! are routed to the I/O APIC is known only from AML, which this kernel does not interpret.)

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use x86_64::instructions::port::Port;

/// The vector of IRQ 0. IRQ n has the vector n after it.
pub(crate) const FIRST_VECTOR: u8 = 32;
/// The number of IRQ lines.
pub(crate) const LINES: u8 = 16;

const COMMANDS: [u16; 2] = [0x20, 0xa0];
const MASKS: [u16; 2] = [0x21, 0xa1];
const END_OF_INTERRUPT: u8 = 0x20;
/// A mask that differs from the value of a port that does not exist.
const PROBE: u8 = 0xfb;
/// The line of the first controller to which the second is connected.
const CASCADE: u8 = 2;

/// Whether the machine has 8259s. Without them, neither the 8254 nor a device's line can interrupt.
/// All accesses are relaxed, because no other data depend on it.
static EXISTS: AtomicBool = AtomicBool::new(false);

/// Moves the IRQs to [`FIRST_VECTOR`], so that they differ from exceptions, and masks all of them.
/// Does nothing if there are no 8259s.
pub(crate) fn remap() {
    // Write four initialization command words. ICW1: edge-triggered (other registers make PCI's
    // lines level-triggered), cascaded, ICW4 follows. ICW2: the first vector. ICW3: the cascade.
    // ICW4: 8086 mode.
    for (controller, cascade) in [(0u8, 1 << CASCADE), (1, CASCADE)] {
        let index = usize::from(controller);
        write(COMMANDS[index], 0x11);
        for word in [FIRST_VECTOR + 8 * controller, cascade, 1] {
            write(MASKS[index], word);
        }
        // If the controller exists, its mask reads back as it was written.
        write(MASKS[index], PROBE);
        if read(MASKS[index]) != PROBE {
            return;
        }
        write(MASKS[index], 0xff);
    }
    EXISTS.store(true, Relaxed);
}

/// Returns whether the machine has 8259s. [`remap`] finds them.
pub(crate) fn exists() -> bool {
    EXISTS.load(Relaxed)
}

/// The IRQs that a PC does not use for timers, keyboard, cascade or coprocessor.
pub(crate) const FREE_LINES: u16 = !(1 << 0 | 1 << 1 | 1 << CASCADE | 1 << 8 | 1 << 13);

/// Returns a bit for each level-triggered IRQ, which are those of PCI.
pub(crate) fn level_triggered() -> u16 {
    let read = |port| {
        // SAFETY: the ports are the edge/level control registers of every PC with PCI. On other
        // machines they do not exist. Reading them has no effect.
        unsafe { Port::<u8>::new(port).read() }
    };
    match u16::from_le_bytes([read(0x4d0), read(0x4d1)]) {
        // Ports that do not exist read as all ones.
        u16::MAX => 0,
        lines => lines,
    }
}

/// Unmasks IRQs, given a bit for each.
pub(crate) fn unmask_all(lines: u16) {
    (0..LINES).filter(|irq| lines >> irq & 1 != 0).for_each(unmask);
}

/// Unmasks an IRQ.
pub(crate) fn unmask(irq: u8) {
    set_masked(irq, false);
    if irq >= 8 {
        set_masked(CASCADE, false);
    }
}

/// Masks an IRQ.
pub(crate) fn mask(irq: u8) {
    set_masked(irq, true);
}

/// Signals the end of an IRQ's handler to the controllers.
pub(crate) fn end_of_interrupt(irq: u8) {
    if irq >= 8 {
        write(COMMANDS[1], END_OF_INTERRUPT);
    }
    write(COMMANDS[0], END_OF_INTERRUPT);
}

fn set_masked(irq: u8, masked: bool) {
    if !exists() {
        return;
    }
    let port = MASKS[usize::from(irq / 8)];
    let bit = 1 << (irq % 8);
    let mask = read(port);
    write(port, if masked { mask | bit } else { mask & !bit });
}

fn read(port: u16) -> u8 {
    // SAFETY: reading an 8259's mask has no effect.
    unsafe { Port::new(port).read() }
}

fn write(port: u16, value: u8) {
    // SAFETY: the ports belong to the 8259s, and handlers exist for all vectors that the 8259s
    // raise.
    unsafe { Port::new(port).write(value) }
}
