//! Defines how a device can fail a point.

use crate::device::Unsupported;
use core::fmt;

/// What a device does that a point does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A value is not the expected one.
    Differs {
        /// What has the value.
        what: &'static str,
        /// The value that the specification requires.
        expected: u64,
        /// The device's value.
        found: u64,
    },
    /// A value is outside of its limits.
    Violates {
        /// What must be true of the value.
        rule: &'static str,
        /// The device's value.
        found: u64,
    },
    /// The device answers a request of virtio-mem wrongly.
    Response {
        /// The request's type.
        request: u16,
        /// The address in the request.
        addr: u64,
        /// The number of blocks in the request.
        blocks: u16,
        /// The response's type that the specification requires.
        expected: u16,
        /// The type in the device's response.
        found: u16,
    },
    /// Blocks have another state than the requests before have left.
    State {
        /// The address of the first block.
        addr: u64,
        /// The number of blocks.
        blocks: u16,
        /// The expected state: 0 for plugged, 1 for unplugged, 2 for mixed.
        expected: u16,
        /// The state in the device's response.
        found: u16,
    },
    /// Memory has not the contents that it must have.
    Contents {
        /// What must be true of the memory.
        rule: &'static str,
        /// The address.
        addr: u64,
    },
    /// The device does not answer within the time limit.
    NoAnswer {
        /// The number of the queue.
        queue: u16,
    },
    /// The device answers although no request is outstanding.
    UnexpectedAnswer {
        /// The number of the queue.
        queue: u16,
    },
    /// The device's used index counts more chains than are outstanding (2.7.8).
    UsedIndex {
        /// The highest index that is possible.
        limit: u16,
        /// The device's index.
        found: u16,
    },
    /// The device uses a chain that is not outstanding (2.7.8).
    UsedId(u32),
    /// The device reports more bytes as written than it may write in the chain (2.7.8.2).
    UsedLength {
        /// The number of bytes that the device may write.
        writable: u32,
        /// The number that it reports.
        found: u32,
    },
    /// The device writes to the descriptors or to the available ring, which only the driver writes
    /// (2.7).
    RingWritten {
        /// The number of the queue.
        queue: u16,
    },
    /// The device writes outside of all buffers.
    WrittenOutside {
        /// The first address.
        addr: u64,
        /// The byte that is there now.
        found: u8,
    },
    /// The device writes to a buffer that it may only read (2.7.5.1).
    ReadableWritten {
        /// The address of the buffer.
        addr: u64,
    },
    /// The guest cannot access memory that it may access.
    Inaccessible {
        /// The address.
        addr: u64,
    },
    /// The status is not the expected one (2.1).
    Status {
        /// The expected bits.
        expected: u32,
        /// The device's bits.
        found: u32,
    },
    /// The device always answers BUSY.
    Busy,
    /// The region of a memory device cannot be divided into blocks of at least 4096 bytes, does not end
    /// within 64 bits, or is smaller than `usable_region_size` or `requested_size`.
    Region,
}

/// Why a point ends before its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The device fails the point.
    Failed(Failure),
    /// The point cannot be checked, and why.
    Skipped(&'static str),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

impl From<Unsupported> for Stop {
    fn from(Unsupported: Unsupported) -> Stop {
        Stop::Skipped(Unsupported::REASON)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Failure::Differs { what, expected, found } => {
                write!(f, "{what} is {found:#x} instead of {expected:#x}")
            }
            Failure::Violates { rule, found } => write!(f, "{rule}, but it is {found:#x}"),
            Failure::Response { request, addr, blocks, expected, found } => {
                let request = Name(request, &["PLUG", "UNPLUG", "UNPLUG ALL", "STATE"]);
                let [expected, found] = [expected, found].map(|kind| Name(kind, RESPONSES));
                write!(f, "{request} at {addr:#x}, blocks: {blocks}, is answered by {found} ")?;
                write!(f, "instead of {expected}")
            }
            Failure::State { addr, blocks, expected, found } => {
                let [expected, found] = [expected, found].map(|state| Name(state, STATES));
                write!(f, "the state at {addr:#x}, blocks: {blocks}, is {found} ")?;
                write!(f, "instead of {expected}")
            }
            Failure::Contents { rule, addr } => write!(f, "{rule} (at {addr:#x})"),
            Failure::NoAnswer { queue } => write!(f, "the device does not answer on queue {queue}"),
            Failure::UnexpectedAnswer { queue } => {
                write!(f, "the device answers on queue {queue} without a request")
            }
            Failure::UsedIndex { limit, found } => {
                write!(f, "the used index is {found}, and can be at most {limit}")
            }
            Failure::UsedId(id) => {
                write!(f, "the device uses chain {id}, which is not outstanding")
            }
            Failure::UsedLength { writable, found } => {
                write!(f, "the device reports {found} bytes as written, and may write {writable}")
            }
            Failure::RingWritten { queue } => {
                write!(f, "the device writes to the driver's part of queue {queue}")
            }
            Failure::WrittenOutside { addr, found } => {
                write!(f, "the device writes {found:#x} outside of its buffers, to {addr:#x}")
            }
            Failure::ReadableWritten { addr } => {
                write!(f, "the device writes to the buffer at {addr:#x}, which it may only read")
            }
            Failure::Inaccessible { addr } => write!(f, "the guest cannot access {addr:#x}"),
            Failure::Status { expected, found } => {
                write!(f, "the status is {found:#x} instead of {expected:#x}")
            }
            Failure::Busy => f.write_str("the device always answers BUSY"),
            Failure::Region => {
                f.write_str("the configuration describes no region that is possible")
            }
        }
    }
}

impl core::error::Error for Failure {}

const RESPONSES: &[&str] = &["ACK", "NACK", "BUSY", "ERROR"];
const STATES: &[&str] = &["PLUGGED", "UNPLUGGED", "MIXED"];

/// Displays a number of virtio-mem's protocol (5.15.6) by its name, if it has one.
struct Name(u16, &'static [&'static str]);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1.get(usize::from(self.0)) {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// Fails a point unless a value is the expected one.
pub(crate) fn expect(
    what: &'static str,
    expected: impl Into<u64>,
    found: impl Into<u64>,
) -> Result<(), Failure> {
    let (expected, found) = (expected.into(), found.into());
    if expected == found { Ok(()) } else { Err(Failure::Differs { what, expected, found }) }
}

/// Fails a point unless `holds`, which is true of memory at `addr`.
pub(crate) fn require_contents(rule: &'static str, holds: bool, addr: u64) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Contents { rule, addr }) }
}

/// Fails a point unless `holds`.
pub(crate) fn require(rule: &'static str, holds: bool, found: u64) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Violates { rule, found }) }
}
