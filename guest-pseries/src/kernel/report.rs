//! Reports events, one JSON object in a line, to the program that started the guest.

use super::console::Console;
use core::fmt::{self, Write};
use hotmem::Bytes;
use hotmem_dlpar::{Change, LmbSelection, Request, Wait};

/// An event. Sizes are in bytes.
pub(super) enum Event<'a> {
    /// The kernel has booted, and handles events from now on.
    Ready {
        /// The amount of boot memory, without removable LMBs.
        boot_memory: Bytes,
        /// The number of LMBs in the table.
        lmbs: u32,
        /// The size of an LMB.
        lmb_size: Bytes,
        /// The number of LMBs that are present and can be removed.
        assigned: u64,
        /// The amount of online memory.
        online: Bytes,
    },
    /// The host has made a request.
    Asked { request: Request },
    /// An event was invalid.
    Garbled { why: &'a dyn fmt::Display },
    /// An event was not about memory.
    Ignored,
    /// A request has ended.
    Done {
        outcome: Outcome<'a>,
        request: Request,
        /// The time since the event, in nanoseconds.
        ns: u64,
        /// The number of LMBs that are present and can be removed.
        assigned: u64,
        /// The amount of online memory.
        online: Bytes,
        /// The amount of free memory.
        free: Bytes,
        /// The amounts of online memory of the first eight nodes.
        nodes: [Bytes; 8],
    },
    /// Memory was filled with patterns.
    Touched { bytes: Bytes, ns: u64 },
    /// A balloon was found.
    Balloon {
        /// The negotiated feature bits.
        features: u64,
    },
    /// The balloon has reached the size that the host requests.
    Inflated { target: Bytes, held: Bytes },
    /// All free memory that may be reported has been reported to the host.
    Reported {
        /// The amount of memory that was reported since the last `Reported` event.
        bytes: Bytes,
        requests: u64,
    },
    /// Patterns were checked, and the frames that held them were freed.
    Verified { bytes: Bytes },
}

/// The outcome of a request.
pub(super) enum Outcome<'a> {
    /// The request succeeded.
    Succeeded { lmbs: u32, ranges: u32, skipped: u32, misplaced: u32 },
    /// The request failed.
    Refused {
        why: &'a dyn fmt::Display,
        /// The condition for which the request waited when the kernel cancelled it.
        cancelled_for: Option<Wait>,
        unrestored: u32,
        lost: u32,
    },
}

/// Writes an event.
pub(super) fn write_event(event: &Event<'_>) {
    let _ = writeln!(Console, "{event}");
}

struct RequestFields(Request);

impl fmt::Display for RequestFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = match self.0.change() {
            Change::Add => "add",
            Change::Remove => "remove",
        };
        let (by, first, count) = match self.0.selection() {
            LmbSelection::Count(count) => ("count", 0, count),
            LmbSelection::Index(index) => ("index", index.0, 1),
            LmbSelection::Range { first, count } => ("count-indexed", first.0, count),
        };
        write!(f, r#""change":"{change}","by":"{by}","first":{first},"count":{count}"#)
    }
}

struct CancelledFor(Option<Wait>);

impl fmt::Display for CancelledFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(Wait::Connector { connector, .. }) => {
                write!(f, ": connector {connector} was busy for too long")
            }
            Some(Wait::Update { .. }) => f.write_str(": the platform was busy for too long"),
            Some(Wait::Memory(blocker)) => write!(f, ": {blocker}"),
            Some(Wait::OtherInstance) => f.write_str(": it waited for another instance"),
        }
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Ready { boot_memory, lmbs, lmb_size, assigned, online } => write!(
                f,
                r#"{{"event":"ready","boot_memory":{},"lmbs":{lmbs},"lmb_size":{},"assigned":{assigned},"online":{}}}"#,
                boot_memory.0, lmb_size.0, online.0
            ),
            Event::Asked { request } => {
                write!(f, r#"{{"event":"asked",{}}}"#, RequestFields(*request))
            }
            Event::Garbled { why } => write!(f, r#"{{"event":"garbled","why":"{why}"}}"#),
            Event::Ignored => f.write_str(r#"{"event":"ignored"}"#),
            Event::Done { outcome, request, ns, assigned, online, free, nodes } => {
                write!(f, r#"{{"event":"done",{},"#, RequestFields(*request))?;
                match outcome {
                    Outcome::Succeeded { lmbs, ranges, skipped, misplaced } => write!(
                        f,
                        r#""lmbs":{lmbs},"ranges":{ranges},"skipped":{skipped},"misplaced":{misplaced},"#
                    )?,
                    Outcome::Refused { why, cancelled_for, unrestored, lost } => {
                        write!(f, r#""why":"{why}{}","#, CancelledFor(*cancelled_for))?;
                        write!(f, r#""unrestored":{unrestored},"lost":{lost},"#)?;
                    }
                }
                let (online, free) = (online.0, free.0);
                write!(
                    f,
                    r#""ns":{ns},"assigned":{assigned},"online":{online},"free":{free},"nodes":["#
                )?;
                for (nth, node) in nodes.iter().enumerate() {
                    write!(f, "{}{}", if nth == 0 { "" } else { "," }, node.0)?;
                }
                f.write_str("]}")
            }
            Event::Touched { bytes, ns } => {
                write!(f, r#"{{"event":"touched","bytes":{},"ns":{ns}}}"#, bytes.0)
            }
            Event::Balloon { features } => {
                write!(f, r#"{{"event":"balloon","features":"{features:#x}"}}"#)
            }
            Event::Inflated { target, held } => {
                write!(f, r#"{{"event":"inflated","target":{},"held":{}}}"#, target.0, held.0)
            }
            Event::Reported { bytes, requests } => {
                write!(f, r#"{{"event":"reported","bytes":{},"requests":{requests}}}"#, bytes.0)
            }
            Event::Verified { bytes } => {
                write!(f, r#"{{"event":"verified","bytes":{}}}"#, bytes.0)
            }
        }
    }
}
