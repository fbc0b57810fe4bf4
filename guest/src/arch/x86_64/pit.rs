//! Drives the 8254 timer: channel 0 produces ticks, channel 2 measures time.

use x86_64::instructions::port::Port;

/// The IRQ of channel 0.
pub(crate) const IRQ: u8 = 0;
/// The frequency at which all channels count down.
pub(crate) const HZ: u32 = 1_193_182;

const CHANNEL_0: u16 = 0x40;
const CHANNEL_2: u16 = 0x42;
const COMMAND: u16 = 0x43;
/// The port of a register: bit 0 is channel 2's gate, bit 1 enables the loudspeaker, bit 5 is
/// channel 2's output.
const GATE: u16 = 0x61;

/// Makes channel 0 interrupt `per_second` times a second, which must be at least 19. Returns
/// whether there is an 8254.
pub(crate) fn tick_at(per_second: u32) -> bool {
    let [low, high] = u16::try_from(counts_per_tick(per_second)).unwrap_or(0).to_le_bytes();
    write(COMMAND, 0x34);
    write(CHANNEL_0, low);
    write(CHANNEL_0, high);
    // A port that does not exist always reads as all ones or as zero, whereas the count of a timer
    // changes.
    (0..4).any(|_| !matches!(counts_left(), 0 | 0xffff))
}

/// Returns the number of counts of channel 0 between two ticks.
pub(crate) fn counts_per_tick(per_second: u32) -> u32 {
    HZ / per_second
}

/// Returns the number of counts of channel 0 until its next tick.
pub(crate) fn counts_left() -> u32 {
    write(COMMAND, 0);
    u16::from_le_bytes([read(CHANNEL_0), read(CHANNEL_0)]).into()
}

/// Returns whether channel 2 works, after [`start_countdown`]. It does not on machines without the
/// register of its gate.
pub(crate) fn has_countdown() -> bool {
    // The gate is open and the loudspeaker off, as `start_countdown` has set them. A port that does
    // not exist reads as all ones or as zero.
    read(GATE) & 3 == 1
}

/// Starts a countdown of channel 2 from [`u16::MAX`].
pub(crate) fn start_countdown() {
    write(GATE, (read(GATE) & !2) | 1);
    write(COMMAND, 0xb0);
    write(CHANNEL_2, 0xff);
    write(CHANNEL_2, 0xff);
}

/// Returns the number of counts since channel 2 was started, or `None` if the countdown has
/// ended.
pub(crate) fn counts_elapsed() -> Option<u32> {
    write(COMMAND, 0x80);
    let count = u16::from_le_bytes([read(CHANNEL_2), read(CHANNEL_2)]);
    (read(GATE) & 0x20 == 0).then_some(u32::from(u16::MAX - count))
}

fn read(port: u16) -> u8 {
    // SAFETY: the ports belong to the timer on every PC, and reading them affects only the timer.
    unsafe { Port::new(port).read() }
}

fn write(port: u16, value: u8) {
    // SAFETY: the ports belong to the timer on every PC, and the timer's interrupt has a handler.
    unsafe { Port::new(port).write(value) }
}
