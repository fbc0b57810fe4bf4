//! Reads RTAS event logs of version 6 (PAPR 10.3), which contain the host's requests.
//! `check-exception` writes the logs.
//!
//! A log may be truncated, of another version or invalid. Each case has its own error, and no log
//! makes the reader panic.

use core::fmt;
use hotmem_dlpar::{Change, DrcIndex, LmbSelection, Request};

/// The size of the summary, with which each log begins.
const SUMMARY_BYTES: usize = 8;
/// The size of the header of an extended log.
const EXTENDED_BYTES: usize = 16;
/// The size of the header of a section.
const SECTION_BYTES: usize = 8;
/// The identifier of a hotplug section: "HP".
const HOTPLUG_SECTION: u16 = 0x4850;
const VERSION: u8 = 6;
/// A bit of the summary's byte 1: an extended log follows.
const HAS_EXTENDED: u8 = 0x04;
/// A bit of the extended log's byte 0: the extended log is valid.
const EXTENDED_VALID: u8 = 0x80;
/// The bits of the extended log's byte 2 for the format.
const FORMAT_MASK: u8 = 0x0f;
/// The format that consists of sections.
const FORMAT_SECTIONS: u8 = 14;

/// The event in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A hotplug event: the host adds a resource or requests its removal.
    Hotplug(Hotplug),
    /// Another event. Contains the event's type, which is byte 3 of the summary.
    Other(u8),
}

/// A hotplug event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hotplug {
    /// The kind of resource.
    pub resource: Resource,
    /// Whether the resource is added or removed.
    pub change: Change,
    /// Which resource is added or removed.
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
    /// The resource is named by the name of its connector. This reader does not read the name.
    Name,
    /// The resource of the connector with this index.
    Index(DrcIndex),
    /// This number of resources, which the kernel chooses.
    Count(u32),
    /// The resources of consecutive connectors.
    CountIndexed {
        /// The number of connectors.
        count: u32,
        /// The first connector.
        first: DrcIndex,
    },
}

/// The reason why a log is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogError {
    /// The log is truncated.
    TooShort {
        /// The number of bytes that the log needs at least.
        needs: usize,
    },
    /// The log has this version, not 6.
    Version(u8),
    /// The log has no valid extended part.
    NotExtended,
    /// The log's extended part has this format, not 14.
    Format(u8),
    /// The length of a section is too small for its header or its contents, or reaches beyond the
    /// log.
    Section {
        /// The section's offset.
        offset: usize,
        /// The length that the section declares.
        len: u16,
    },
    /// A hotplug event has no hotplug section.
    NoHotplug,
    /// The kind of resource is unknown.
    Resource(u8),
    /// The action is unknown.
    Action(u8),
    /// The kind of identifier is unknown.
    Identifier(u8),
}

/// The type of hotplug events, byte 3 of the summary.
const TYPE_HOTPLUG: u8 = 0xe5;

impl Event {
    /// Reads the log at the start of `log`. Ignores bytes after the log.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`LogError`] if the log is truncated or invalid.
    pub fn parse(log: &[u8]) -> Result<Event, LogError> {
        let &[version, flags, _, kind, ..] = bytes::<SUMMARY_BYTES>(log, 0)?;
        if version != VERSION {
            return Err(LogError::Version(version));
        }
        if kind != TYPE_HOTPLUG {
            return Ok(Event::Other(kind));
        }
        let extended_len = usize::try_from(word(log, 4)?).unwrap_or(usize::MAX);
        if flags & HAS_EXTENDED == 0 || extended_len == 0 {
            return Err(LogError::NotExtended);
        }
        let end = SUMMARY_BYTES.saturating_add(extended_len);
        let log = log.get(..end).ok_or(LogError::TooShort { needs: end })?;
        let &[validity, _, format, ..] = bytes::<EXTENDED_BYTES>(log, SUMMARY_BYTES)?;
        if validity & EXTENDED_VALID == 0 {
            return Err(LogError::NotExtended);
        }
        if format & FORMAT_MASK != FORMAT_SECTIONS {
            return Err(LogError::Format(format & FORMAT_MASK));
        }
        let mut offset = SUMMARY_BYTES + EXTENDED_BYTES;
        while offset < log.len() {
            let &[id_high, id_low, len_high, len_low, ..] = bytes::<SECTION_BYTES>(log, offset)?;
            let len = u16::from_be_bytes([len_high, len_low]);
            let end = offset + usize::from(len);
            let section = log.get(offset..end).filter(|section| section.len() >= SECTION_BYTES);
            let section = section.ok_or(LogError::Section { offset, len })?;
            if u16::from_be_bytes([id_high, id_low]) == HOTPLUG_SECTION {
                let hotplug = Hotplug::parse(section).map_err(|error| match error {
                    LogError::TooShort { .. } => LogError::Section { offset, len },
                    other => other,
                });
                return hotplug.map(Event::Hotplug);
            }
            offset = end;
        }
        Err(LogError::NoHotplug)
    }
}

impl Hotplug {
    /// Reads a hotplug section.
    fn parse(section: &[u8]) -> Result<Hotplug, LogError> {
        let &[resource, action, identifier, _] = bytes(section, SECTION_BYTES)?;
        let word = |offset| word(section, offset);
        Ok(Hotplug {
            resource: match resource {
                1 => Resource::Cpu,
                2 => Resource::Memory,
                3 => Resource::Slot,
                4 => Resource::Bridge,
                5 => Resource::Pci,
                6 => Resource::Pmem,
                unknown => return Err(LogError::Resource(unknown)),
            },
            change: match action {
                1 => Change::Add,
                2 => Change::Remove,
                unknown => return Err(LogError::Action(unknown)),
            },
            identifier: match identifier {
                1 => Identifier::Name,
                2 => Identifier::Index(DrcIndex(word(SECTION_BYTES + 4)?)),
                3 => Identifier::Count(word(SECTION_BYTES + 4)?),
                4 => Identifier::CountIndexed {
                    count: word(SECTION_BYTES + 4)?,
                    first: DrcIndex(word(SECTION_BYTES + 8)?),
                },
                unknown => return Err(LogError::Identifier(unknown)),
            },
        })
    }

    /// Converts the event to a request for LMBs. Returns `None` if the event is about another
    /// resource, or names the resource by the connector's name.
    #[must_use]
    pub fn request(&self) -> Option<Request> {
        let selection = match (self.resource, self.identifier) {
            (Resource::Memory, Identifier::Index(index)) => LmbSelection::Index(index),
            (Resource::Memory, Identifier::Count(count)) => LmbSelection::Count(count),
            (Resource::Memory, Identifier::CountIndexed { count, first }) => {
                LmbSelection::Range { first, count }
            }
            _ => return None,
        };
        Some(Request::new(self.change, selection))
    }
}

/// Returns `N` bytes at an offset.
fn bytes<const N: usize>(log: &[u8], offset: usize) -> Result<&[u8; N], LogError> {
    let needs = offset.saturating_add(N);
    let bytes = log.get(offset..).and_then(|rest| rest.first_chunk());
    bytes.ok_or(LogError::TooShort { needs })
}

/// Returns a big-endian word at an offset.
fn word(log: &[u8], offset: usize) -> Result<u32, LogError> {
    bytes(log, offset).map(|&bytes| u32::from_be_bytes(bytes))
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::TooShort { needs } => write!(f, "event log: shorter than {needs} bytes"),
            LogError::Version(version) => write!(f, "event log: version {version} is not 6"),
            LogError::NotExtended => f.write_str("event log: no valid extended part"),
            LogError::Format(format) => write!(f, "event log: format {format} is not 14"),
            LogError::Section { offset, len } => {
                write!(f, "event log: the section at byte {offset} claims {len} bytes")
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
