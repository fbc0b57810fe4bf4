//! Reads RTAS event logs of version 6 (PAPR 10.3), which `check-exception` writes and which contain
//! the host's requests.
//!
//! A log may be truncated, of another version or about another resource. None of these panics, and
//! each is an error of its own.

use core::fmt;
use hotmem_dlpar::{Change, DrcIndex, Request, Which};

/// The fixed part of a log.
const SUMMARY: usize = 8;
/// The size of the header of an extended log.
const EXTENDED: usize = 16;
/// The size of the header of a section.
const SECTION: usize = 8;
/// The identifier of a hotplug section: "HP".
const HOTPLUG: u16 = 0x4850;
const VERSION: u8 = 6;
/// Summary, byte 1: an extended log follows.
const HAS_EXTENDED: u8 = 0x04;
/// Extended log, byte 0: it is valid.
const VALID: u8 = 0x80;
/// Extended log, byte 2: its format, of which 14 has sections.
const FORMAT: u8 = 0x0f;
const SECTIONS: u8 = 14;

/// The event in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A hotplug event: the host adds a resource or asks for its removal.
    Hotplug(Hotplug),
    /// Another event, of this type (byte 3 of the summary).
    Other(u8),
}

/// A hotplug event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hotplug {
    /// The kind of resource.
    pub resource: Resource,
    /// Whether it is added or removed.
    pub change: Change,
    /// The resource.
    pub identifier: Identifier,
}

/// The kind of resource that is added or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// A processor.
    Cpu,
    /// LMBs.
    Memory,
    /// A PCI slot.
    Slot,
    /// A PCI host bridge.
    Bridge,
    /// A PCI device.
    Pci,
    /// Persistent memory.
    Pmem,
}

/// How a hotplug event names a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identifier {
    /// By the connector's name, which is not read.
    Name,
    /// The connector with this index.
    Index(DrcIndex),
    /// A number of resources, without a choice.
    Count(u32),
    /// A number of resources from a connector on.
    CountIndexed {
        /// How many.
        count: u32,
        /// The first connector.
        first: DrcIndex,
    },
}

/// The reason why a log is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogError {
    /// It is truncated.
    Short {
        /// The number of bytes that it would need.
        needs: usize,
    },
    /// It is of another version than 6.
    Version(u8),
    /// It has no extended part, or one that is not valid.
    NotExtended,
    /// Its extended part has another format than 14.
    Format(u8),
    /// The section at this byte is shorter than its header or its contents, or longer than what is
    /// left.
    Section {
        /// Where it begins.
        at: usize,
        /// The length that it claims.
        len: u16,
    },
    /// No hotplug section of a hotplug event.
    NoHotplug,
    /// An unknown kind of resource.
    Resource(u8),
    /// An unknown action.
    Action(u8),
    /// An unknown kind of identifier.
    Identifier(u8),
}

/// The type of hotplug events, byte 3 of the summary.
const TYPE_HOTPLUG: u8 = 0xe5;

impl Event {
    /// Reads a log; what follows it in the buffer is ignored.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`LogError`].
    pub fn parse(log: &[u8]) -> Result<Event, LogError> {
        let &[version, flags, _, kind, ..] = bytes::<SUMMARY>(log, 0)?;
        if version != VERSION {
            return Err(LogError::Version(version));
        }
        if kind != TYPE_HOTPLUG {
            return Ok(Event::Other(kind));
        }
        let extended = usize::try_from(word(log, 4)?).unwrap_or(usize::MAX);
        if flags & HAS_EXTENDED == 0 || extended == 0 {
            return Err(LogError::NotExtended);
        }
        let end = SUMMARY.saturating_add(extended);
        let log = log.get(..end).ok_or(LogError::Short { needs: end })?;
        let &[valid, _, format, ..] = bytes::<EXTENDED>(log, SUMMARY)?;
        if valid & VALID == 0 {
            return Err(LogError::NotExtended);
        }
        if format & FORMAT != SECTIONS {
            return Err(LogError::Format(format & FORMAT));
        }
        let mut at = SUMMARY + EXTENDED;
        while at < log.len() {
            let &[id_high, id_low, len_high, len_low, ..] = bytes::<SECTION>(log, at)?;
            let len = u16::from_be_bytes([len_high, len_low]);
            let end = at + usize::from(len);
            let section = log.get(at..end).filter(|section| section.len() >= SECTION);
            let section = section.ok_or(LogError::Section { at, len })?;
            if u16::from_be_bytes([id_high, id_low]) == HOTPLUG {
                let hotplug = Hotplug::parse(section).map_err(|error| match error {
                    LogError::Short { .. } => LogError::Section { at, len },
                    other => other,
                });
                return hotplug.map(Event::Hotplug);
            }
            at = end;
        }
        Err(LogError::NoHotplug)
    }
}

impl Hotplug {
    /// Reads a hotplug section.
    fn parse(section: &[u8]) -> Result<Hotplug, LogError> {
        let &[resource, action, identifier, _] = bytes(section, SECTION)?;
        let word = |offset| word(section, offset);
        Ok(Hotplug {
            resource: match resource {
                1 => Resource::Cpu,
                2 => Resource::Memory,
                3 => Resource::Slot,
                4 => Resource::Bridge,
                5 => Resource::Pci,
                6 => Resource::Pmem,
                other => return Err(LogError::Resource(other)),
            },
            change: match action {
                1 => Change::Add,
                2 => Change::Remove,
                other => return Err(LogError::Action(other)),
            },
            identifier: match identifier {
                1 => Identifier::Name,
                2 => Identifier::Index(DrcIndex(word(SECTION + 4)?)),
                3 => Identifier::Count(word(SECTION + 4)?),
                4 => Identifier::CountIndexed {
                    count: word(SECTION + 4)?,
                    first: DrcIndex(word(SECTION + 8)?),
                },
                other => return Err(LogError::Identifier(other)),
            },
        })
    }

    /// Converts the event to a request for LMBs. Returns `None` if it is about another resource, or
    /// does not identify LMBs.
    #[must_use]
    pub fn request(&self) -> Option<Request> {
        let which = match (self.resource, self.identifier) {
            (Resource::Memory, Identifier::Index(index)) => Which::Index(index),
            (Resource::Memory, Identifier::Count(count)) => Which::Count(count),
            (Resource::Memory, Identifier::CountIndexed { count, first }) => {
                Which::Range { first, count }
            }
            _ => return None,
        };
        Some(Request::new(self.change, which))
    }
}

/// Returns `N` bytes at an offset.
fn bytes<const N: usize>(log: &[u8], at: usize) -> Result<&[u8; N], LogError> {
    let needs = at.saturating_add(N);
    let bytes = log.get(at..).and_then(|rest| rest.first_chunk());
    bytes.ok_or(LogError::Short { needs })
}

/// Returns a big-endian word at an offset.
fn word(log: &[u8], at: usize) -> Result<u32, LogError> {
    bytes(log, at).map(|&bytes| u32::from_be_bytes(bytes))
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Short { needs } => write!(f, "event log: shorter than {needs} bytes"),
            LogError::Version(version) => write!(f, "event log: version {version} is not 6"),
            LogError::NotExtended => f.write_str("event log: no valid extended part"),
            LogError::Format(format) => write!(f, "event log: format {format} is not 14"),
            LogError::Section { at, len } => {
                write!(f, "event log: the section at byte {at} claims {len} bytes")
            }
            LogError::NoHotplug => f.write_str("event log: a hotplug event without its section"),
            LogError::Resource(kind) => write!(f, "event log: unknown resource {kind}"),
            LogError::Action(action) => write!(f, "event log: unknown action {action}"),
            LogError::Identifier(kind) => write!(f, "event log: unknown identifier {kind}"),
        }
    }
}

impl core::error::Error for LogError {}

#[cfg(test)]
#[path = "event_log/tests.rs"]
pub(crate) mod tests;
