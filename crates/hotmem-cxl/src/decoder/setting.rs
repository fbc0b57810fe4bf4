//! Defines what a decoder is set to, what decoders can do, and why a decoder is not set.

use crate::interleave::{Granularity, UNIT, Ways};
use core::fmt;
use hotmem_addr::{AddrError, PfnRange};

/// What the decoders of a component can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capability {
    /// The number of decoders: 1 to 32.
    pub count: u32,
    /// The largest number of ports between which a bridge's decoder alternates: at most 8.
    pub targets: usize,
    /// The address bits that can select a target.
    pub(crate) bits: u64,
}

impl Capability {
    /// Returns whether addresses can alternate so.
    #[must_use]
    pub const fn supports(&self, ways: Ways, granularity: Granularity) -> bool {
        match ways.bits() {
            Some(bits) => (((1 << bits) - 1) << granularity.shift()) & !self.bits == 0,
            None => false,
        }
    }
}

/// Which component decoders belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A host bridge or a switch, which sends addresses to ports.
    Bridge,
    /// A memory device.
    Device,
}

/// The setting of a decoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The addresses: start and size are multiples of [`UNIT`].
    pub range: PfnRange,
    /// The number of targets: of a bridge, the number of ports; of a device, the number of devices of
    /// which it is one.
    pub ways: Ways,
    /// The number of bytes for each target in turn.
    pub granularity: Granularity,
    /// Where addresses go.
    pub destination: Destination,
}

/// Where a decoder sends addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// To the ports with these numbers. Only the first [`Ways::count`] count.
    Ports([u8; MAX_PORTS]),
    /// To the memory of the device.
    Memory {
        /// The number of bytes of the device that are left out between the memory of the decoder before
        /// this one and the memory of this one.
        skip: u64,
    },
}

/// The largest number of ports of a decoder.
pub const MAX_PORTS: usize = 8;

/// Whether a decoder routes addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecoderState {
    /// The decoder routes nothing.
    Free,
    /// The decoder routes addresses.
    Committed {
        /// How.
        setting: Setting,
        /// Whether it stays so until the component is reset.
        locked: bool,
    },
}

/// The reason why the decoders of a component cannot be used, or why one of them was not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecoderError {
    /// The component has been removed: its registers read as ones.
    Gone,
    /// The block does not begin with the header of component registers.
    Header(u32),
    /// A register lies beyond the block.
    Beyond {
        /// Where the registers would end.
        end: u32,
        /// The size of the block.
        size: u32,
    },
    /// The encoding of the number of decoders is reserved.
    Count(u32),
    /// There is no decoder with this number.
    Number {
        /// The number.
        n: u32,
        /// How many decoders there are.
        count: u32,
    },
    /// A committed decoder has an encoding that is reserved.
    Encoding {
        /// The decoder.
        n: u32,
        /// Its control register.
        control: u32,
    },
    /// A committed decoder has a range that is impossible.
    Range {
        /// The decoder.
        n: u32,
        /// What is wrong.
        error: AddrError,
    },
    /// A committed decoder of a device leaves out more bytes than a device can have.
    Skip {
        /// The decoder.
        n: u32,
        /// The number of bytes.
        skip: u64,
    },
    /// The setting is for the decoders of a bridge, and these are a device's, or the reverse.
    Role,
    /// Start and size of the setting are not whole units for each target.
    Unaligned(PfnRange),
    /// The decoders cannot alternate so.
    Interleave {
        /// The number of targets.
        ways: Ways,
        /// The number of bytes for each.
        granularity: Granularity,
    },
    /// The decoder is committed already.
    Committed {
        /// The decoder.
        n: u32,
    },
    /// The decoder is not committed.
    Free {
        /// The decoder.
        n: u32,
    },
    /// A decoder before this one is free, or, to be freed, one after it is committed. Decoders are
    /// committed in ascending order.
    Order {
        /// The other decoder.
        other: u32,
    },
    /// The addresses of the setting do not lie after those of the decoder before.
    NotAscending {
        /// The addresses of the setting.
        range: PfnRange,
        /// The addresses of the decoder before.
        before: PfnRange,
    },
    /// The decoder cannot be changed until the component is reset.
    Locked {
        /// The decoder.
        n: u32,
    },
    /// A register does not have the value that was written to it.
    Altered {
        /// The offset of the register.
        offset: u32,
        /// What was written.
        wrote: u32,
        /// What was read.
        read: u32,
    },
    /// The component reports that the setting is impossible. The decoder routes nothing.
    Refused {
        /// The decoder.
        n: u32,
    },
    /// The component has not answered in time. After an attempt to free it, the decoder may still route
    /// addresses.
    TimedOut {
        /// The decoder.
        n: u32,
    },
}

impl Setting {
    /// Refuses a setting that no decoder of this kind can have.
    pub(super) fn check(&self, role: Role, capability: &Capability) -> Result<(), DecoderError> {
        let Setting { range, ways, granularity, destination } = *self;
        let is_aligned = range.start().phys_addr() % UNIT == 0
            && range.bytes().0 % (UNIT * ways.count() as u64) == 0;
        if range.is_empty() || !is_aligned {
            return Err(DecoderError::Unaligned(range));
        }
        match (destination, role) {
            (Destination::Ports(_), Role::Bridge) if ways.count() > capability.targets => {
                return Err(DecoderError::Interleave { ways, granularity });
            }
            (Destination::Ports(_), Role::Bridge) | (Destination::Memory { .. }, Role::Device) => {}
            _ => return Err(DecoderError::Role),
        }
        if !capability.supports(ways, granularity) {
            return Err(DecoderError::Interleave { ways, granularity });
        }
        Ok(())
    }
}

impl core::error::Error for DecoderError {}

impl fmt::Display for DecoderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecoderError::Gone => f.write_str("the component has been removed"),
            DecoderError::Header(value) => {
                write!(f, "component registers cannot begin with {value:#x}")
            }
            DecoderError::Beyond { end, size } => {
                write!(f, "registers up to {end:#x} in a block of {size:#x} bytes")
            }
            DecoderError::Count(encoding) => write!(f, "the decoder count {encoding} is reserved"),
            DecoderError::Number { n, count } => write!(f, "decoder {n} of {count}"),
            DecoderError::Encoding { n, control } => {
                write!(f, "decoder {n} is committed with control {control:#x}")
            }
            DecoderError::Range { n, error } => write!(f, "decoder {n}: {error}"),
            DecoderError::Skip { n, skip } => write!(f, "decoder {n} leaves out {skip:#x} bytes"),
            DecoderError::Role => f.write_str("the setting is for another kind of component"),
            DecoderError::Unaligned(range) => {
                write!(f, "{range} is not whole units of 256 MiB for each target")
            }
            DecoderError::Interleave { ways, granularity } => write!(
                f,
                "the decoders cannot alternate between {} targets every {} bytes",
                ways.count(),
                granularity.bytes().0
            ),
            DecoderError::Committed { n } => write!(f, "decoder {n} is committed"),
            DecoderError::Free { n } => write!(f, "decoder {n} is not committed"),
            DecoderError::Order { other } => write!(f, "decoder {other} must change first"),
            DecoderError::NotAscending { range, before } => {
                write!(f, "{range} does not lie after {before}")
            }
            DecoderError::Locked { n } => write!(f, "decoder {n} is locked"),
            DecoderError::Altered { offset, wrote, read } => {
                write!(f, "the register at {offset:#x} became {read:#x} instead of {wrote:#x}")
            }
            DecoderError::Refused { n } => write!(f, "decoder {n} refuses its setting"),
            DecoderError::TimedOut { n } => write!(f, "decoder {n} does not answer"),
        }
    }
}
