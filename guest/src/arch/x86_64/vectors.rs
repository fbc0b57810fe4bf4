//! Assigns interrupt vectors to messages of devices, to TLB flushes and to the local APIC's timer.

use super::pic;

/// The number of a message by which a device interrupts. It is below [`MESSAGES`].
pub(crate) type Message = u8;
/// The number of vectors for messages of devices.
pub(crate) const MESSAGES: u8 = 32;

/// The vector of message 0. Message n has the vector n after it.
pub(super) const FIRST_MESSAGE_VECTOR: u8 = pic::FIRST_VECTOR + pic::LINES;
/// The vector by which another CPU makes this one flush its TLB.
pub(super) const FLUSH: u8 = FIRST_MESSAGE_VECTOR + MESSAGES;
/// The vector of the local APIC's timer.
pub(super) const TICK: u8 = FLUSH + 1;

/// Returns the vector of a message.
pub(super) fn message_vector(message: Message) -> u8 {
    FIRST_MESSAGE_VECTOR + message % MESSAGES
}
