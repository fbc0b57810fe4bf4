//! Interrupt vectors.

use super::pic;

/// A message by which a device interrupts: a number below [`MESSAGES`].
pub(crate) type Message = u8;
/// The number of messages.
pub(crate) const MESSAGES: u8 = 32;

/// The vector of message 0; the others follow.
pub(crate) const FIRST_MESSAGE: u8 = pic::FIRST_VECTOR + pic::LINES;
/// The vector by which another CPU makes this one flush its TLB.
pub(crate) const FLUSH: u8 = FIRST_MESSAGE + MESSAGES;

/// Returns the vector of a message.
pub(crate) fn message_vector(message: Message) -> u8 {
    FIRST_MESSAGE + message % MESSAGES
}
