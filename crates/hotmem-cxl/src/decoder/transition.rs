//! Commits decoders and frees them, as state machines with a time limit.

use super::{
    block::{Decoders, EACH, control, read, register, within},
    setting::{DecoderError, DecoderState, Destination, Role, Setting},
};
use crate::registers::Registers;
use core::{task::Poll, time::Duration};

/// The time within which a component commits a decoder (8.2.4.20.12).
pub const COMMIT_LIMIT: Duration = Duration::from_millis(10);

/// The bit of the global control that lets a device decode by its decoders (8.2.4.20.2). In a bridge it
/// is 0, whatever is written.
const ENABLE: u32 = 1 << 1;

/// A decoder that is being committed or freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the decoder changes only if the transition is polled until it is ready"]
pub struct Transition {
    n: u32,
    /// The offset of the decoder's registers.
    at: u32,
    /// The control that was written, with [`control::COMMIT`] if the decoder is being committed.
    wrote: u32,
    deadline: Duration,
}

impl Decoders {
    /// Returns whether the component decodes by its decoders: a bridge always does. Until then, a device
    /// decodes by its [range registers](crate::config::uses_ranges).
    ///
    /// # Errors
    /// The component is gone.
    pub fn is_enabled(&self, registers: &mut impl Registers) -> Result<bool, DecoderError> {
        within(registers, self.global_control() + 4)?;
        let control = read(registers, self.global_control())?;
        Ok(self.role() == Role::Bridge || control & ENABLE != 0)
    }

    /// Lets the component decode by its decoders. Do this before `Mem_Enable` is set: a device would
    /// decode by its range registers in between.
    ///
    /// # Errors
    /// The component is gone, or does not keep what is written.
    pub fn enable(&self, registers: &mut impl Registers) -> Result<(), DecoderError> {
        if self.is_enabled(registers)? {
            return Ok(());
        }
        let global = read(registers, self.global_control())?;
        write(registers, self.global_control(), global | ENABLE)
    }

    /// Begins to commit decoder `n`, and lets the component decode. `now` is the time since any start.
    /// Poll the result until it is ready.
    ///
    /// # Errors
    /// The setting is impossible or the decoders are not free in this order; then nothing is changed.
    /// The component is gone, or does not keep what is written: then the decoder stays free.
    pub fn commit(
        &self,
        registers: &mut impl Registers,
        n: u32,
        setting: &Setting,
        now: Duration,
    ) -> Result<Transition, DecoderError> {
        let at = self.decoder(registers, n)?;
        setting.check(self.role(), &self.capability())?;
        if self.state(registers, n)? != DecoderState::Free {
            return Err(DecoderError::Committed { n });
        }
        if let Some(other) = n.checked_sub(1) {
            match self.state(registers, other)? {
                DecoderState::Free => return Err(DecoderError::Order { other }),
                DecoderState::Committed { setting: Setting { range: before, .. }, .. } => {
                    let range = setting.range;
                    if before.end() > range.start() {
                        return Err(DecoderError::NotAscending { range, before });
                    }
                }
            }
        }
        self.enable(registers)?;
        let destination = match setting.destination {
            Destination::Ports(ports) => u64::from_le_bytes(ports),
            Destination::Memory { skip } => skip,
        };
        let (start, len) = (setting.range.start().phys_addr(), setting.range.bytes().0);
        let values =
            [(register::BASE, start), (register::SIZE, len), (register::DESTINATION, destination)];
        for (offset, value) in values {
            let [low, high] = halves(value);
            write(registers, at + offset, low)?;
            write(registers, at + offset + 4, high)?;
        }
        let fields =
            u32::from(setting.granularity.encoding()) | u32::from(setting.ways.encoding()) << 4;
        let wrote = fields | control::HOST_ONLY | control::COMMIT;
        registers.write_u32(at + register::CONTROL, wrote);
        Ok(Transition { n, at, wrote, deadline: now.saturating_add(COMMIT_LIMIT) })
    }

    /// Begins to free decoder `n`. Nothing may access its addresses any more: what is written to them is
    /// lost. Poll the result until it is ready.
    ///
    /// # Errors
    /// The decoder is free, locked, or a decoder after it is committed; the component is gone. Nothing
    /// is changed.
    pub fn uncommit(
        &self,
        registers: &mut impl Registers,
        n: u32,
        now: Duration,
    ) -> Result<Transition, DecoderError> {
        let at = self.decoder(registers, n)?;
        let control = read(registers, at + register::CONTROL)?;
        if control & control::COMMITTED == 0 {
            return Err(DecoderError::Free { n });
        }
        if control & control::LOCKED != 0 {
            return Err(DecoderError::Locked { n });
        }
        if let Ok(after) = self.decoder(registers, n + 1)
            && read(registers, after + register::CONTROL)? & control::COMMITTED != 0
        {
            return Err(DecoderError::Order { other: n + 1 });
        }
        let wrote = control & !(control::COMMIT | control::COMMITTED | control::ERROR);
        registers.write_u32(at + register::CONTROL, wrote);
        Ok(Transition { n, at, wrote, deadline: now.saturating_add(COMMIT_LIMIT) })
    }
}

impl Transition {
    /// Examines whether the component has changed the decoder, by one read. `registers` are those that
    /// the transition was begun with. Do not poll it again when it is ready.
    ///
    /// A decoder that is refused, or not committed in time, is told to stay free.
    ///
    /// # Errors
    /// The component is gone, refuses the setting, has altered it, or has not answered in time.
    pub fn poll(
        &mut self,
        registers: &mut impl Registers,
        now: Duration,
    ) -> Poll<Result<(), DecoderError>> {
        within(registers, self.at + EACH)?;
        if self.wrote & control::COMMIT != 0 {
            let polled = self.poll_commit(registers, now);
            if matches!(polled, Poll::Ready(Err(_))) {
                registers.write_u32(self.at + register::CONTROL, self.wrote & !control::COMMIT);
            }
            polled
        } else {
            self.poll_uncommit(registers, now)
        }
    }

    fn poll_commit(
        &self,
        registers: &mut impl Registers,
        now: Duration,
    ) -> Poll<Result<(), DecoderError>> {
        const FIELDS: u32 = 0xff;
        let offset = self.at + register::CONTROL;
        let control = read(registers, offset)?;
        if control & control::ERROR != 0 {
            return Poll::Ready(Err(DecoderError::Refused { n: self.n }));
        }
        if control & control::COMMITTED != 0 {
            let is_kept = control & FIELDS == self.wrote & FIELDS;
            let altered = DecoderError::Altered { offset, wrote: self.wrote, read: control };
            return Poll::Ready(if is_kept { Ok(()) } else { Err(altered) });
        }
        self.wait(now)
    }

    fn poll_uncommit(
        &self,
        registers: &mut impl Registers,
        now: Duration,
    ) -> Poll<Result<(), DecoderError>> {
        if read(registers, self.at + register::CONTROL)? & control::COMMITTED != 0 {
            return self.wait(now);
        }
        for offset in [register::SIZE, register::BASE, register::DESTINATION] {
            registers.write_u32(self.at + offset, 0);
            registers.write_u32(self.at + offset + 4, 0);
        }
        Poll::Ready(Ok(()))
    }

    fn wait(&self, now: Duration) -> Poll<Result<(), DecoderError>> {
        if now > self.deadline {
            Poll::Ready(Err(DecoderError::TimedOut { n: self.n }))
        } else {
            Poll::Pending
        }
    }
}

/// Writes a register that keeps its value.
fn write(registers: &mut impl Registers, offset: u32, value: u32) -> Result<(), DecoderError> {
    registers.write_u32(offset, value);
    match registers.read_u32(offset) {
        read if read == value => Ok(()),
        crate::registers::GONE => Err(DecoderError::Gone),
        read => Err(DecoderError::Altered { offset, wrote: value, read }),
    }
}

fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes)
}
