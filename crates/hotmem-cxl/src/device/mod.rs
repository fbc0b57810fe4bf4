//! The registers of a memory device: its state, its event logs, and the mailbox (8.2.8).

mod block;
mod error;
mod mailbox;

pub use block::{DeviceRegisters, EventLog, MemoryState, READY_LIMIT};
pub use error::{DeviceError, MailboxError};
pub use mailbox::{COMMAND_LIMIT, Mailbox};
