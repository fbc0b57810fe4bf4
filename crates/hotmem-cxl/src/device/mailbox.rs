//! The primary mailbox of a device, by which it takes commands (8.2.8.4).

use super::error::MailboxError;
use crate::registers::{GONE, Registers};
use core::{task::Poll, time::Duration};

/// The time within which a device answers a command (8.2.8.4).
pub const COMMAND_LIMIT: Duration = Duration::from_secs(2);

/// The registers of a mailbox.
mod register {
    pub(super) const CONTROL: u32 = 4;
    pub(super) const COMMAND: u32 = 8;
    pub(super) const STATUS: u32 = 0x10;
    pub(super) const PAYLOAD: u32 = 0x20;
}

/// The control bit that is set until a command is carried out.
const DOORBELL: u32 = 1;

/// A mailbox, which carries out one command at a time.
///
/// ```
/// use core::{task::Poll, time::Duration};
/// use hotmem_cxl::{Mailbox, MailboxError, Registers, command};
///
/// /// Reads the capacity of a device. `now` returns the time since any start.
/// fn identify(
///     mailbox: &mut Mailbox,
///     registers: &mut impl Registers,
///     now: impl Fn() -> Duration,
/// ) -> Result<Option<command::Capacity>, MailboxError> {
///     let mut answer = [0; 256];
///     mailbox.start(registers, command::opcode::IDENTIFY, &[], now())?;
///     loop {
///         if let Poll::Ready(len) = mailbox.poll(registers, &mut answer, now()) {
///             return Ok(command::Capacity::read(&answer[..len?]).ok());
///         }
///     }
/// }
/// ```
#[derive(PartialEq, Eq, Debug)]
pub struct Mailbox {
    at: u32,
    /// A multiple of 8.
    payload_len: u32,
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    opcode: u16,
    deadline: Duration,
}

impl Mailbox {
    /// The registers begin at `at`, and have room for payloads of `payload_len` bytes.
    pub(super) fn new(at: u32, payload_len: u32) -> Self {
        Mailbox { at, payload_len: payload_len & !7, waiting: None }
    }

    /// Returns the length of the longest payload and of the longest answer.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload_len as usize
    }

    /// Sends a command. `now` is the time since any start. Costs a write for each 8 bytes.
    ///
    /// # Errors
    /// The payload is too long, the mailbox is busy, or the device is gone. Nothing was sent.
    pub fn start(
        &mut self,
        registers: &mut impl Registers,
        opcode: u16,
        payload: &[u8],
        now: Duration,
    ) -> Result<(), MailboxError> {
        let (len, max) = (payload.len(), self.payload_len());
        let Some(encoded) = u32::try_from(len).ok().filter(|&len| len <= self.payload_len) else {
            return Err(MailboxError::TooLong { len, max });
        };
        let control = self.control(registers)?;
        if self.waiting.is_some() || control & DOORBELL != 0 {
            return Err(MailboxError::Busy);
        }
        let command = u64::from(opcode) | u64::from(encoded) << 16;
        registers.write_u64(self.at + register::COMMAND, command);
        for (offset, chunk) in self.payload_offsets().zip(payload.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            registers.write_u64(offset, u64::from_le_bytes(bytes));
        }
        registers.write_u32(self.at + register::CONTROL, control | DOORBELL);
        self.waiting = Some(Waiting { opcode, deadline: now.saturating_add(COMMAND_LIMIT) });
        Ok(())
    }

    /// Examines whether the command is carried out, by one read, and then copies its answer. Returns the
    /// length of the answer.
    ///
    /// After an error, the mailbox takes the next command, once the device has ended this one.
    ///
    /// # Errors
    /// The device is gone, refuses the command or has not answered in time; the answer does not fit; no
    /// command was sent.
    pub fn poll(
        &mut self,
        registers: &mut impl Registers,
        answer: &mut [u8],
        now: Duration,
    ) -> Poll<Result<usize, MailboxError>> {
        let Some(Waiting { opcode, deadline }) = self.waiting else {
            return Poll::Ready(Err(MailboxError::Idle));
        };
        let result = match self.control(registers) {
            Ok(control) if control & DOORBELL == 0 => self.answer(registers, opcode, answer),
            Ok(_) if now > deadline => Err(MailboxError::TimedOut { opcode }),
            Ok(_) => return Poll::Pending,
            Err(error) => Err(error),
        };
        self.waiting = None;
        Poll::Ready(result)
    }

    fn answer(
        &self,
        registers: &mut impl Registers,
        opcode: u16,
        answer: &mut [u8],
    ) -> Result<usize, MailboxError> {
        let mut read = |at| match registers.read_u64(self.at + at) {
            u64::MAX => Err(MailboxError::Gone),
            value => Ok(value.to_le_bytes()),
        };
        let [.., low, high, _, _] = read(register::STATUS)?;
        match u16::from_le_bytes([low, high]) {
            0 => {}
            code => return Err(MailboxError::Refused { opcode, code }),
        }
        // 21 bits from bit 16.
        let [_, _, low, middle, high, ..] = read(register::COMMAND)?;
        let (len, max) =
            (u32::from_le_bytes([low, middle, high & 0x1f, 0]) as usize, self.payload_len());
        if len > max {
            return Err(MailboxError::LongAnswer { len, max });
        }
        let room = answer.len();
        let place = answer.get_mut(..len).ok_or(MailboxError::Buffer { len, room })?;
        for (offset, chunk) in self.payload_offsets().zip(place.chunks_mut(8)) {
            let word = registers.read_u64(offset).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        // A device that was removed meanwhile has answered by ones.
        self.control(registers)?;
        Ok(len)
    }

    /// Reads the control of a mailbox that lies within the block.
    fn control(&self, registers: &mut impl Registers) -> Result<u32, MailboxError> {
        let (end, size) = (self.at + register::PAYLOAD + self.payload_len, registers.size());
        if end > size {
            return Err(MailboxError::Beyond { end, size });
        }
        match registers.read_u32(self.at + register::CONTROL) {
            GONE => Err(MailboxError::Gone),
            control => Ok(control),
        }
    }

    fn payload_offsets(&self) -> impl Iterator<Item = u32> + use<> {
        let start = self.at + register::PAYLOAD;
        (start..start + self.payload_len).step_by(8)
    }
}
