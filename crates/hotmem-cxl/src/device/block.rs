//! Finds the registers of a memory device (8.2.8), and reads its state.

use super::{error::DeviceError, mailbox::Mailbox};
use crate::registers::{GONE, Registers};
use core::{task::Poll, time::Duration};

/// How long a device may take to get ready. The specification has no limit for all of it; Linux waits as
/// long.
pub const READY_LIMIT: Duration = Duration::from_secs(60);

/// The identities of device capabilities.
const STATUS: u16 = 1;
const MAILBOX: u16 = 2;
const MEMORY: u16 = 0x4000;
/// The size of the header of the array, and of each of its entries.
const ENTRY: u32 = 0x10;
/// Where the payload begins in a mailbox, and the smallest size of a mailbox.
const MAILBOX_HEADER: u32 = 0x20;
const SMALLEST_PAYLOAD: u32 = 256;

/// The registers of a memory device, except its mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceRegisters {
    status: u32,
    memory: u32,
}

/// The state of the memory of a device (8.2.8.5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryState {
    /// The memory is not ready, or the mailbox is not.
    NotReady,
    /// The memory can be used, and the mailbox takes commands.
    Ready,
    /// The memory cannot be used. The device must be reset or replaced.
    Failed,
}

/// A log of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EventLog {
    /// Information.
    Information = 0,
    /// Warnings.
    Warning = 1,
    /// Failures.
    Failure = 2,
    /// Fatal failures.
    Fatal = 3,
    /// Requests that concern dynamic capacity.
    DynamicCapacity = 4,
}

impl DeviceRegisters {
    /// Finds the registers and the mailbox. Payloads are limited to what is within the block.
    ///
    /// # Errors
    /// The device is gone, its registers are malformed, or one of them is missing.
    pub fn find(registers: &mut impl Registers) -> Result<(Self, Mailbox), DeviceError> {
        let size = registers.size();
        let within = |end: u64| {
            if end > u64::from(size) { Err(DeviceError::Beyond { end, size }) } else { Ok(()) }
        };
        within(ENTRY.into())?;
        let header = read_u64(registers, 0)?;
        if header & 0xffff != 0 {
            return Err(DeviceError::Header(header));
        }
        let count =
            u32::from(u16::from_le_bytes([header.to_le_bytes()[4], header.to_le_bytes()[5]]));
        within(u64::from(ENTRY * (1 + count)))?;
        let mut find = |id: u16, len: u32| -> Result<u32, DeviceError> {
            for at in (1..=count).map(|n| ENTRY * n) {
                if read_u32(registers, at)? & 0xffff != id.into() {
                    continue;
                }
                let offset = read_u32(registers, at + 4)?;
                if !offset.is_multiple_of(8) {
                    return Err(DeviceError::Unaligned { id, offset });
                }
                within(u64::from(offset) + u64::from(len))?;
                return Ok(offset);
            }
            Err(DeviceError::Missing { id })
        };
        let (status, memory) = (find(STATUS, 8)?, find(MEMORY, 8)?);
        let mailbox = find(MAILBOX, MAILBOX_HEADER + SMALLEST_PAYLOAD)?;
        let exponent = read_u32(registers, mailbox)?.to_le_bytes()[0] & 0x1f;
        if !(8..=20).contains(&exponent) {
            return Err(DeviceError::PayloadSize { exponent });
        }
        let payload_len = (1 << exponent).min(size - mailbox - MAILBOX_HEADER);
        Ok((DeviceRegisters { status, memory }, Mailbox::new(mailbox, payload_len)))
    }

    /// Reads whether the memory can be used and the mailbox takes commands.
    ///
    /// # Errors
    /// The device is gone.
    pub fn memory_state(&self, registers: &mut impl Registers) -> Result<MemoryState, DeviceError> {
        let status = self.read(registers, self.memory)?;
        let (is_fatal, media, has_mailbox) =
            (status & 3 != 0, status >> 2 & 3, status >> 4 & 1 != 0);
        Ok(match media {
            _ if is_fatal => MemoryState::Failed,
            0 => MemoryState::NotReady,
            1 if has_mailbox => MemoryState::Ready,
            1 => MemoryState::NotReady,
            _ => MemoryState::Failed,
        })
    }

    /// Waits until the memory can be used, or can never be used, by one read of a register. `since` is
    /// when the wait began. Returns [`MemoryState::NotReady`] after [`READY_LIMIT`].
    ///
    /// # Errors
    /// The device is gone.
    pub fn poll_ready(
        &self,
        registers: &mut impl Registers,
        since: Duration,
        now: Duration,
    ) -> Poll<Result<MemoryState, DeviceError>> {
        match self.memory_state(registers) {
            Ok(MemoryState::NotReady) if now.saturating_sub(since) < READY_LIMIT => Poll::Pending,
            state => Poll::Ready(state),
        }
    }

    /// Reads whether a log has events.
    ///
    /// # Errors
    /// The device is gone.
    pub fn has_events(
        &self,
        registers: &mut impl Registers,
        log: EventLog,
    ) -> Result<bool, DeviceError> {
        Ok(self.read(registers, self.status)? >> log as u8 & 1 != 0)
    }

    fn read(&self, registers: &mut impl Registers, at: u32) -> Result<u64, DeviceError> {
        let (end, size) = (u64::from(at) + 8, registers.size());
        if end > u64::from(size) {
            return Err(DeviceError::Beyond { end, size });
        }
        read_u64(registers, at)
    }
}

fn read_u32(registers: &mut impl Registers, at: u32) -> Result<u32, DeviceError> {
    match registers.read_u32(at) {
        GONE => Err(DeviceError::Gone),
        value => Ok(value),
    }
}

fn read_u64(registers: &mut impl Registers, at: u32) -> Result<u64, DeviceError> {
    match registers.read_u64(at) {
        u64::MAX => Err(DeviceError::Gone),
        value => Ok(value),
    }
}
