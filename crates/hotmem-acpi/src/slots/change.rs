//! Defines what happens to the memory of slots, and what can be wrong with it.

use core::fmt;
use hotmem_addr::{AddrError, PfnRange};

/// The memory in a slot, for example a DIMM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dimm {
    /// The frames.
    pub range: PfnRange,
    /// The proximity domain: the number of the node.
    pub proximity: u32,
}

/// A change of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Memory is present that was not there before. Answer by [`accept`](crate::MemorySlots::accept) or
    /// [`reject`](crate::MemorySlots::reject).
    Inserted {
        /// The slot.
        slot: u32,
        /// Its memory.
        dimm: Dimm,
    },
    /// The host asks for the memory of the slot. Answer by [`eject`](crate::MemorySlots::eject) or
    /// [`refuse`](crate::MemorySlots::refuse). The host may ask again before it has an answer.
    RemovalRequested {
        /// The slot.
        slot: u32,
        /// Its memory.
        dimm: Dimm,
    },
    /// The memory has gone although the kernel has not ejected it. Whatever lay in it is lost.
    Vanished {
        /// The slot.
        slot: u32,
        /// The memory that was in it.
        dimm: Dimm,
    },
    /// What the registers say of the slot is impossible. The memory is rejected, and must not be used.
    /// When the host asks for it, it is ejected.
    Unusable {
        /// The slot.
        slot: u32,
        /// What is wrong.
        fault: Fault,
    },
}

/// The reason why the memory of a slot cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The address and the size are not a range of frames.
    Range(AddrError),
    /// The slot is said to have memory of size 0.
    Empty,
    /// The range overlaps with the memory of another slot.
    Overlaps {
        /// The range of this slot.
        range: PfnRange,
        /// The other slot.
        other: u32,
    },
    /// The registers changed between two reads.
    Unsteady,
}

/// The reason why memory was not ejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EjectError {
    /// The slot has no memory.
    Empty {
        /// The slot.
        slot: u32,
    },
    /// The host has failed to take the memory, which is still present.
    StillPresent {
        /// The slot.
        slot: u32,
    },
}

/// There are more slots than a [`MemorySlots`](crate::MemorySlots) has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManySlots {
    /// The number of slots, or a lower bound of it.
    pub count: u32,
    /// The number that would fit.
    pub capacity: usize,
}

impl core::error::Error for Fault {}
impl core::error::Error for EjectError {}
impl core::error::Error for TooManySlots {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Range(error) => error.fmt(f),
            Fault::Empty => f.write_str("the memory has no bytes"),
            Fault::Overlaps { range, other } => {
                write!(f, "{range} overlaps with the memory of slot {other}")
            }
            Fault::Unsteady => f.write_str("the registers changed between two reads"),
        }
    }
}

impl fmt::Display for EjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EjectError::Empty { slot } => write!(f, "slot {slot} has no memory to eject"),
            EjectError::StillPresent { slot } => {
                write!(f, "the host has not taken the memory of slot {slot}")
            }
        }
    }
}

impl fmt::Display for TooManySlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} memory slots, of which {} fit", self.count, self.capacity)
    }
}
