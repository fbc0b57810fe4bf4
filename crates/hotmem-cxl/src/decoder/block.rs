//! Finds the HDM decoders among component registers, and reads them (8.2.4.20).
//!
//! All these registers are accessed in 4 bytes: QEMU reads 0 in 8 bytes.

use super::setting::{Capability, DecoderError, DecoderState, Destination, Role, Setting};
use crate::{
    interleave::{Granularity, UNIT, Ways},
    registers::{GONE, Registers},
};
use hotmem_addr::{Bytes, PfnRange};

/// Where the registers for CXL.cache and CXL.mem are among component registers (Table 8-21).
const CACHE_MEM: u32 = 0x1000;
/// The identity of the header of these registers.
const HEADER: u32 = 1;
/// The identity of the capability of HDM decoders.
const HDM: u32 = 5;
/// The offset of the first decoder in the capability, and the size of each.
const FIRST: u32 = 0x10;
pub(super) const EACH: u32 = 0x20;

/// The registers of a decoder.
pub(super) mod register {
    pub(in crate::decoder) const BASE: u32 = 0;
    pub(in crate::decoder) const SIZE: u32 = 8;
    pub(in crate::decoder) const CONTROL: u32 = 0x10;
    /// The ports of a bridge, or the skip of a device.
    pub(in crate::decoder) const DESTINATION: u32 = 0x14;
}

/// The bits of a decoder's control.
pub(super) mod control {
    pub(in crate::decoder) const LOCKED: u32 = 1 << 8;
    pub(in crate::decoder) const COMMIT: u32 = 1 << 9;
    pub(in crate::decoder) const COMMITTED: u32 = 1 << 10;
    pub(in crate::decoder) const ERROR: u32 = 1 << 11;
    pub(in crate::decoder) const HOST_ONLY: u32 = 1 << 12;
}

/// The HDM decoders of a component, which route addresses of the host to ports or to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decoders {
    role: Role,
    at: u32,
    capability: Capability,
}

impl Decoders {
    /// Finds the decoders among component registers. Returns `None` if there are none: a host bridge
    /// with one port passes all addresses to it.
    ///
    /// # Errors
    /// The component is gone, or its registers are malformed.
    pub fn find(registers: &mut impl Registers, role: Role) -> Result<Option<Self>, DecoderError> {
        within(registers, CACHE_MEM + 4)?;
        let header = read(registers, CACHE_MEM)?;
        if header & 0xffff != HEADER {
            return Err(DecoderError::Header(header));
        }
        let entries = header >> 24;
        within(registers, CACHE_MEM + 4 + 4 * entries)?;
        for n in 1..=entries {
            let entry = read(registers, CACHE_MEM + 4 * n)?;
            if entry & 0xffff != HDM {
                continue;
            }
            // The pointer has 12 bits. Its lowest bits would make accesses unaligned.
            let at = CACHE_MEM + (entry >> 20 & !3);
            within(registers, at + FIRST)?;
            let raw = read(registers, at)?;
            let capability = capability(raw)?;
            within(registers, at + FIRST + EACH * capability.count)?;
            return Ok(Some(Decoders { role, at, capability }));
        }
        Ok(None)
    }

    /// Returns what the decoders can do.
    #[must_use]
    pub fn capability(&self) -> Capability {
        self.capability
    }

    /// Returns which component the decoders belong to.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Reads the state of a decoder.
    ///
    /// # Errors
    /// There is no such decoder, the component is gone, or the decoder is committed to what is
    /// impossible.
    pub fn state(
        &self,
        registers: &mut impl Registers,
        n: u32,
    ) -> Result<DecoderState, DecoderError> {
        let at = self.decoder(registers, n)?;
        let control = read(registers, at + register::CONTROL)?;
        if control & control::COMMITTED == 0 {
            return Ok(DecoderState::Free);
        }
        let reserved = DecoderError::Encoding { n, control };
        let ways = Ways::from_encoding((control >> 4 & 0xf) as u8).ok_or(reserved)?;
        let granularity = Granularity::from_encoding((control & 0xf) as u8).ok_or(reserved)?;
        let mut wide = |offset| {
            let low = u64::from(registers.read_u32(at + offset));
            low | u64::from(registers.read_u32(at + offset + 4)) << 32
        };
        // The bits below 28 of base, size and skip are reserved.
        let mask = !(UNIT - 1);
        let (start, len) = (wide(register::BASE) & mask, wide(register::SIZE) & mask);
        let destination = wide(register::DESTINATION);
        let range = PfnRange::from_bytes(start, Bytes(len))
            .map_err(|error| DecoderError::Range { n, error })?;
        let destination = match self.role {
            Role::Bridge => Destination::Ports(destination.to_le_bytes()),
            Role::Device => Destination::Memory { skip: destination & mask },
        };
        let setting = Setting { range, ways, granularity, destination };
        Ok(DecoderState::Committed { setting, locked: control & control::LOCKED != 0 })
    }

    /// Returns the offset of a decoder's registers, which lie within the block: the caller may pass
    /// other registers than those among which the decoders were found.
    pub(super) fn decoder(&self, registers: &impl Registers, n: u32) -> Result<u32, DecoderError> {
        let count = self.capability.count;
        if n >= count {
            return Err(DecoderError::Number { n, count });
        }
        let at = self.at + FIRST + EACH * n;
        within(registers, at + EACH)?;
        Ok(at)
    }

    /// Returns the offset of the control of all decoders.
    pub(super) fn global_control(&self) -> u32 {
        self.at + 4
    }
}

fn capability(raw: u32) -> Result<Capability, DecoderError> {
    let count = match raw & 0xf {
        0 => 1,
        few @ 1..=8 => 2 * few,
        many @ 9..=12 => 4 * many - 16,
        reserved => return Err(DecoderError::Count(reserved)),
    };
    let targets = ((raw >> 4 & 0xf) as usize).min(super::setting::MAX_PORTS);
    let low = if raw >> 8 & 1 != 0 { 0xf00 } else { 0 };
    let high = if raw >> 9 & 1 != 0 { 0x7000 } else { 0 };
    Ok(Capability { count, targets, bits: low | high })
}

/// Reads a register that is never all ones in a component that is present.
pub(super) fn read(registers: &mut impl Registers, at: u32) -> Result<u32, DecoderError> {
    match registers.read_u32(at) {
        GONE => Err(DecoderError::Gone),
        value => Ok(value),
    }
}

/// Refuses registers that would end beyond the block.
pub(super) fn within(registers: &impl Registers, end: u32) -> Result<(), DecoderError> {
    let size = registers.size();
    if end > size { Err(DecoderError::Beyond { end, size }) } else { Ok(()) }
}
