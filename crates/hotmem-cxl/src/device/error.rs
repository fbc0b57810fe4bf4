//! Defines why a device's registers cannot be used, and why a command failed.

use core::fmt;

/// The reason why the registers of a device cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// The device has been removed: its registers read as ones.
    Gone,
    /// The block does not begin with the array of device capabilities.
    Header(u64),
    /// A register lies beyond the block.
    Beyond {
        /// Where the registers would end.
        end: u64,
        /// The size of the block.
        size: u32,
    },
    /// There is no capability with this identity.
    Missing {
        /// The identity (Table 8-24).
        id: u16,
    },
    /// The registers of a capability do not begin at a multiple of 8.
    Unaligned {
        /// The identity of the capability.
        id: u16,
        /// Where they begin.
        offset: u32,
    },
    /// The size of the mailbox is not one that the specification allows: 2 to the power of 8 to 20.
    PayloadSize {
        /// The power.
        exponent: u8,
    },
}

/// The reason why a command was not sent, or has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MailboxError {
    /// The device has been removed: its registers read as ones. It may have carried out the command.
    Gone,
    /// A register lies beyond the block, which is another one than that of the mailbox.
    Beyond {
        /// Where the registers would end.
        end: u32,
        /// The size of the block.
        size: u32,
    },
    /// The payload is longer than the mailbox. Nothing was sent.
    TooLong {
        /// The length of the payload.
        len: usize,
        /// The size of the mailbox.
        max: usize,
    },
    /// The mailbox carries out a command, perhaps one that was given up. Nothing was sent.
    Busy,
    /// No command was sent whose answer is missing.
    Idle,
    /// The device has not answered in time. It may still carry out the command.
    TimedOut {
        /// The command.
        opcode: u16,
    },
    /// The device refuses the command.
    Refused {
        /// The command.
        opcode: u16,
        /// The return code (Table 8-34).
        code: u16,
    },
    /// The device names an answer that is longer than the mailbox.
    LongAnswer {
        /// The length that the device names.
        len: usize,
        /// The size of the mailbox.
        max: usize,
    },
    /// The answer does not fit into the caller's buffer, which is unchanged.
    Buffer {
        /// The length of the answer.
        len: usize,
        /// The size of the buffer.
        room: usize,
    },
}

impl core::error::Error for DeviceError {}
impl core::error::Error for MailboxError {}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Gone => f.write_str("the device has been removed"),
            DeviceError::Header(value) => {
                write!(f, "device registers cannot begin with {value:#x}")
            }
            DeviceError::Beyond { end, size } => {
                write!(f, "registers up to {end:#x} in a block of {size:#x} bytes")
            }
            DeviceError::Missing { id } => write!(f, "the device has no capability {id:#x}"),
            DeviceError::Unaligned { id, offset } => {
                write!(f, "the registers of capability {id:#x} begin at {offset:#x}")
            }
            DeviceError::PayloadSize { exponent } => {
                write!(f, "the mailbox has 2 to the power of {exponent} bytes")
            }
        }
    }
}

impl fmt::Display for MailboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MailboxError::Gone => f.write_str("the device has been removed"),
            MailboxError::Beyond { end, size } => {
                write!(f, "registers up to {end:#x} in a block of {size:#x} bytes")
            }
            MailboxError::TooLong { len, max } => {
                write!(f, "a payload of {len} bytes for a mailbox of {max}")
            }
            MailboxError::Busy => f.write_str("the mailbox is busy"),
            MailboxError::Idle => f.write_str("no command was sent"),
            MailboxError::TimedOut { opcode } => write!(f, "command {opcode:#06x} has no answer"),
            MailboxError::Refused { opcode, code } => {
                write!(f, "command {opcode:#06x} returned code {code:#x}")
            }
            MailboxError::LongAnswer { len, max } => {
                write!(f, "an answer of {len} bytes in a mailbox of {max}")
            }
            MailboxError::Buffer { len, room } => {
                write!(f, "an answer of {len} bytes for a buffer of {room}")
            }
        }
    }
}
