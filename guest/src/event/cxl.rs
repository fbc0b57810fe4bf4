//! Defines the events of CXL memory, and of the commands for it.

use super::json_text::JsonText;
use core::fmt;
use hotmem::Bytes;

/// An event of CXL memory. Sizes are in bytes, addresses are physical.
#[derive(Clone, Copy)]
pub enum CxlEvent<'a> {
    /// A memory device was found.
    Device {
        /// The device's number, by which other events name it.
        device: usize,
        /// The number of the host bridge above it.
        bridge: u32,
        /// The kind of its memory: `volatile`, `persistent` or `dynamic`.
        kind: &'static str,
        /// The size of its memory.
        size: Bytes,
    },
    /// A memory device, or a structure of the CEDT, is not used.
    Refused {
        /// The device's number, if the reason is about a device.
        device: Option<usize>,
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// Addresses were routed to memory of devices, and the memory is device memory.
    Memory {
        /// The memory's number, by which other events and commands name it.
        memory: usize,
        /// The start of the memory.
        addr: u64,
        /// The size of the memory.
        size: Bytes,
        /// The number of devices between which the addresses alternate.
        ways: usize,
        /// The memory's node.
        node: u32,
        /// The time for routing the addresses and binding the memory, in microseconds.
        us: u64,
    },
    /// An extent of dynamic capacity was put online, or was given back.
    Extent {
        /// The memory's number.
        memory: usize,
        /// `added` or `removed`.
        change: &'static str,
        /// The start of the extent.
        addr: u64,
        /// The size of the extent.
        size: Bytes,
        /// The amount of memory that is online, boot memory included.
        online: Bytes,
        /// The time since the kernel began to handle the event, in microseconds.
        us: u64,
    },
    /// An extent of dynamic capacity was not accepted, or was not given back.
    Kept {
        /// The memory's number.
        memory: usize,
        /// The start of the extent.
        addr: u64,
        /// The size of the extent.
        size: Bytes,
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// Events of dynamic capacity were lost, because the device's log was full.
    EventsLost {
        /// The memory's number.
        memory: usize,
        /// The number of events.
        count: u16,
    },
    /// An event of dynamic capacity asks for something impossible, and is ignored.
    EventIgnored {
        /// The memory's number.
        memory: usize,
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// A request of dynamic capacity has ended with an error.
    RequestFailed {
        /// The memory's number.
        memory: usize,
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// The dynamic capacity of a device does not change any more, because of the error before.
    GivenUp {
        /// The memory's number.
        memory: usize,
    },
    /// The state of memory, as the command `list` asks for it.
    Dax {
        /// The memory's number.
        memory: usize,
        /// The size of the memory.
        size: Bytes,
        /// The memory's node.
        node: u32,
        /// The size of the device memory's compounds.
        align: Bytes,
        /// The mode: `devdax` or `system-ram`.
        mode: &'static str,
        /// The size of the memory that is online.
        online: Bytes,
        /// Whether the memory that is online is movable.
        movable: bool,
    },
    /// The kernel takes commands from now on.
    TakesCommands,
    /// A command was carried out, or was refused.
    Answered {
        /// The reason why it was refused.
        why: Option<&'a dyn fmt::Display>,
    },
}

impl fmt::Display for CxlEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CxlEvent::Device { device, bridge, kind, size: Bytes(size) } => write!(
                f,
                r#"{{"event":"cxl_device","device":{device},"bridge":{bridge},"kind":"{kind}","size":{size}}}"#
            ),
            CxlEvent::Refused { device, why } => {
                f.write_str(r#"{"event":"cxl_refused","device":"#)?;
                match device {
                    Some(device) => write!(f, "{device}")?,
                    None => f.write_str("null")?,
                }
                write!(f, r#","why":"{}"}}"#, JsonText(why))
            }
            CxlEvent::Memory { memory, addr, size: Bytes(size), ways, node, us } => write!(
                f,
                r#"{{"event":"cxl_memory","memory":{memory},"addr":{addr},"size":{size},"ways":{ways},"node":{node},"us":{us}}}"#
            ),
            CxlEvent::Extent { memory, change, addr, size, online, us } => write!(
                f,
                r#"{{"event":"extent","memory":{memory},"change":"{change}","addr":{addr},"size":{},"online":{},"us":{us}}}"#,
                size.0, online.0
            ),
            CxlEvent::Kept { memory, addr, size: Bytes(size), why } => write!(
                f,
                r#"{{"event":"extent_kept","memory":{memory},"addr":{addr},"size":{size},"why":"{}"}}"#,
                JsonText(why)
            ),
            CxlEvent::EventsLost { memory, count } => {
                write!(f, r#"{{"event":"cxl_events_lost","memory":{memory},"count":{count}}}"#)
            }
            CxlEvent::EventIgnored { memory, why } => write!(
                f,
                r#"{{"event":"cxl_event_ignored","memory":{memory},"why":"{}"}}"#,
                JsonText(why)
            ),
            CxlEvent::RequestFailed { memory, why } => write!(
                f,
                r#"{{"event":"cxl_request_failed","memory":{memory},"why":"{}"}}"#,
                JsonText(why)
            ),
            CxlEvent::GivenUp { memory } => {
                write!(f, r#"{{"event":"cxl_given_up","memory":{memory}}}"#)
            }
            CxlEvent::Dax { memory, size, node, align, mode, online, movable } => write!(
                f,
                r#"{{"event":"dax","memory":{memory},"size":{},"node":{node},"align":{},"mode":"{mode}","online":{},"movable":{movable}}}"#,
                size.0, align.0, online.0
            ),
            CxlEvent::TakesCommands => f.write_str(r#"{"event":"takes_commands"}"#),
            CxlEvent::Answered { why: None } => f.write_str(r#"{"event":"answered","why":null}"#),
            CxlEvent::Answered { why: Some(why) } => {
                write!(f, r#"{{"event":"answered","why":"{}"}}"#, JsonText(why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_json_object_in_one_line() {
        let why = "a \"quoted\" reason";
        let refused = CxlEvent::Refused { device: None, why: &why };
        let expected = r#"{"event":"cxl_refused","device":null,"why":"a \"quoted\" reason"}"#;
        assert_eq!(refused.to_string(), expected);
        let answered = CxlEvent::Answered { why: Some(&"no") };
        assert_eq!(answered.to_string(), r#"{"event":"answered","why":"no"}"#);
        let (size, align, online) = (Bytes(1), Bytes(2), Bytes(3));
        let dax = CxlEvent::Dax {
            memory: 4,
            size,
            node: 5,
            align,
            mode: "devdax",
            online,
            movable: true,
        };
        assert_eq!(
            dax.to_string(),
            r#"{"event":"dax","memory":4,"size":1,"node":5,"align":2,"mode":"devdax","online":3,"movable":true}"#
        );
    }
}
