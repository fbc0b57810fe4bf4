//! The events that guests print on their consoles, one JSON object on a line.

mod dax;
mod features;
mod pseries;
mod xen;

pub use dax::Dax;
pub use features::Features;
pub use pseries::RequestEnd;
pub use xen::{Figure, MarkedOperation, Race};

use serde::Deserialize;
use std::{fmt, time::Duration};

/// An event in a guest. Sizes of memory are in bytes. Times are in microseconds, except those named
/// `ms` and `ns`, which are in milliseconds and nanoseconds.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Event {
    /// The guest has brought its boot memory online.
    #[allow(missing_docs)]
    Boot {
        ms: u64,
        boot_memory: u64,
        cpus: u32,
        #[serde(default)]
        hot_pluggable: u64,
    },
    /// A device was found.
    #[allow(missing_docs)]
    Device {
        kind: String,
        block_size: u64,
        addr: u64,
        region_size: u64,
        requested: u64,
        plugged: u64,
        #[serde(default)]
        features: Features,
        #[serde(default)]
        device: usize,
        #[serde(default)]
        node: u16,
        #[serde(default)]
        transport: String,
        #[serde(default)]
        interrupts: String,
    },
    /// The device has its target plugged, and the guest has brought the memory online or removed
    /// it.
    #[allow(missing_docs)]
    Resized {
        target: u64,
        plugged: u64,
        online: u64,
        free: u64,
        requests: u64,
        us: u64,
        #[serde(default)]
        device: usize,
        #[serde(default)]
        node: u16,
        #[serde(default)]
        node_online: u64,
        #[serde(default)]
        interrupted: bool,
        #[serde(default)]
        zone: Option<Zone>,
    },
    /// The target cannot be reached for now.
    #[allow(missing_docs)]
    Pending {
        target: u64,
        plugged: u64,
        #[serde(rename = "why")]
        reason: String,
        #[serde(default)]
        device: usize,
        #[serde(default)]
        node: u16,
    },
    /// The guest has released a device.
    #[allow(missing_docs)]
    Removed { device: usize, node: u16 },
    /// The guest has brought the memory of a memory slot online.
    #[serde(rename = "dimm_added")]
    #[allow(missing_docs)]
    DimmAdded { slot: u32, addr: u64, size: u64, node: u32, online: u64, us: u64 },
    /// The guest has brought memory of the machine online that its engine was not told of at boot.
    #[serde(rename = "late_added")]
    #[allow(missing_docs)]
    LateAdded { size: u64, online: u64, us: u64 },
    /// The guest has removed that memory again.
    #[serde(rename = "late_removed")]
    #[allow(missing_docs)]
    LateRemoved { size: u64, online: u64, us: u64 },
    /// The guest has refused the memory of a memory slot.
    #[serde(rename = "dimm_refused")]
    #[allow(missing_docs)]
    DimmRefused { slot: u32, why: String },
    /// The guest has removed the memory of a memory slot, and given it to the host.
    #[serde(rename = "dimm_removed")]
    #[allow(missing_docs)]
    DimmRemoved { slot: u32, size: u64, online: u64 },
    /// The guest keeps the memory of a memory slot, which the host has asked for.
    #[serde(rename = "dimm_kept")]
    #[allow(missing_docs)]
    DimmKept { slot: u32, why: String },
    /// A machine check has reported a frame as bad, and the guest does not use it any more.
    #[serde(rename = "bad_frame")]
    #[allow(missing_docs)]
    BadFrame { addr: u64, was_in_use: bool },
    /// An entropy device has answered a request for random bytes.
    #[allow(missing_docs)]
    Entropy { transport: String, interrupts: String, interrupted: bool, bytes: u64, us: u64 },
    /// The guest's heap: its objects, its mapped bytes, and the bytes that were migrated since
    /// boot.
    #[allow(missing_docs)]
    Heap { objects: u64, mapped: u64, moved: u64 },
    /// Other CPUs write to mapped pages. `writes` is the number of writes since boot, `pages` the
    /// number of these pages, and `moved` the bytes of pages that were migrated. `dirty` pages were
    /// written to since the last such event, and `clean` pages were not.
    #[allow(missing_docs)]
    Written { pages: u64, writes: u64, moved: u64, dirty: u64, clean: u64 },
    /// A balloon device was found. `reports_queue` is the number of its queue for reports.
    #[allow(missing_docs)]
    Balloon {
        #[serde(default)]
        transport: String,
        #[serde(default)]
        interrupts: String,
        features: Features,
        reports_queue: Option<u16>,
    },
    /// The balloon has the size that the host requested.
    #[allow(missing_docs)]
    Inflated { target: u64, held: u64 },
    /// The driver no longer uses the balloon device, and has freed all memory of the balloon.
    #[allow(missing_docs)]
    #[serde(rename = "balloon_lost")]
    BalloonLost {
        #[serde(rename = "why")]
        reason: String,
    },
    /// The balloon cannot reach the size that the host requested for now.
    #[allow(missing_docs)]
    #[serde(rename = "inflation_pending")]
    InflationPending {
        target: u64,
        held: u64,
        #[serde(rename = "why")]
        reason: String,
    },
    /// The guest has reported all free memory to the host. The fields count reports and hints since
    /// the last such event.
    #[allow(missing_docs)]
    Reported {
        bytes: u64,
        requests: u64,
        #[serde(default)]
        hinted: u64,
    },
    /// The guest has checked the memory that it filled, and has freed it in `us`.
    #[allow(missing_docs)]
    Freed { bytes: u64, us: u64 },
    /// The guest has filled memory with a different pattern in each frame.
    #[allow(missing_docs)]
    Touched {
        bytes: u64,
        #[serde(flatten)]
        time: GuestTime,
    },
    /// The guest keeps zero marks, and has checked the frames that it has allocated since the last
    /// such event: `zero` bytes were known to be zero, and nothing was known of `other` bytes.
    #[allow(missing_docs)]
    #[serde(rename = "known_zero")]
    KnownZero { zero: u64, other: u64 },
    /// Other CPUs have allocated, cleared and freed this many frames in bursts. `us` is the total
    /// duration of the bursts. `reported` bytes were reported to the host, and `refaulted` bytes
    /// were allocated again after they had been reported.
    #[allow(missing_docs)]
    Faulted { cpus: u32, frames: u64, us: u64, reported: u64, refaulted: u64 },
    /// A kernel of a port has measured a value.
    #[allow(missing_docs)]
    Measured {
        #[serde(rename = "what")]
        quantity: String,
        value: u64,
    },
    /// The guest has read this much memory again, and all patterns were intact.
    #[allow(missing_docs)]
    Verified { bytes: u64 },
    /// Persistent memory was found.
    #[allow(missing_docs)]
    Nvdimm { device: usize, addr: u64, size: u64 },
    /// Persistent memory was bound. The descriptors of its `frames` are in `map` bytes. If
    /// compounds shared no descriptors of tails, `saved` more bytes would be needed. `written`
    /// bytes of descriptors were written in `describe_us`, and the total time is `us`.
    #[allow(missing_docs)]
    Bound {
        device: usize,
        frames: u64,
        map: u64,
        saved: u64,
        written: u64,
        describe_us: u64,
        us: u64,
    },
    /// The guest has checked this many descriptors and frames of data, and all are correct.
    #[allow(missing_docs)]
    Checked { device: usize, descriptors: u64, data: u64 },
    /// Persistent memory was converted to RAM (`system_ram`) or back to device memory (`device`).
    #[allow(missing_docs)]
    Reconfigured { device: usize, mode: String, online: u64, free: u64, us: u64 },
    /// The guest has found a CXL memory device below the host bridge with this number.
    #[serde(rename = "cxl_device")]
    #[allow(missing_docs)]
    CxlDevice { device: usize, bridge: u32, kind: String, size: u64 },
    /// The guest does not use a CXL memory device, or a structure of the CEDT.
    #[serde(rename = "cxl_refused")]
    #[allow(missing_docs)]
    CxlRefused {
        device: Option<usize>,
        #[serde(rename = "why")]
        reason: String,
    },
    /// The guest has routed addresses to CXL devices and uses their memory as device memory.
    #[serde(rename = "cxl_memory")]
    #[allow(missing_docs)]
    CxlMemory { memory: usize, addr: u64, size: u64, ways: usize, node: u32, us: u64 },
    /// The guest has put an extent of dynamic capacity online (`added`), or has given it back (`removed`).
    #[allow(missing_docs)]
    Extent { memory: usize, change: String, addr: u64, size: u64, online: u64, us: u64 },
    /// The guest has not accepted an extent, or has not given it back.
    #[serde(rename = "extent_kept")]
    #[allow(missing_docs)]
    ExtentKept {
        memory: usize,
        addr: u64,
        size: u64,
        #[serde(rename = "why")]
        reason: String,
    },
    /// Events of dynamic capacity were lost, because the device's log was full.
    #[serde(rename = "cxl_events_lost")]
    #[allow(missing_docs)]
    CxlEventsLost { memory: usize, count: u16 },
    /// The guest ignores an event of dynamic capacity that asks for something impossible.
    #[serde(rename = "cxl_event_ignored")]
    #[allow(missing_docs)]
    CxlEventIgnored {
        memory: usize,
        #[serde(rename = "why")]
        reason: String,
    },
    /// A request of dynamic capacity has ended with an error.
    #[serde(rename = "cxl_request_failed")]
    #[allow(missing_docs)]
    CxlRequestFailed {
        memory: usize,
        #[serde(rename = "why")]
        reason: String,
    },
    /// The guest serves a device with dynamic capacity no more.
    #[serde(rename = "cxl_given_up")]
    #[allow(missing_docs)]
    CxlGivenUp { memory: usize },
    /// The state of CXL memory, as the command `list` asks for it.
    Dax(Dax),
    /// The guest takes commands from now on.
    #[serde(rename = "takes_commands")]
    TakesCommands,
    /// The guest has carried out a command, or refuses it for a reason.
    #[allow(missing_docs)]
    Answered {
        #[serde(rename = "why")]
        reason: Option<String>,
    },
    /// Persistent memory was unbound.
    #[allow(missing_docs)]
    Unbound { device: usize, us: u64 },
    /// `pinned` bytes at `addr` are pinned for a device. The guest has checked the data that the
    /// device wrote there. The range at `other` is not pinned, and `left` bytes of it still have
    /// the device's data.
    #[allow(missing_docs)]
    Pinned { addr: u64, other: u64, pinned: u64, left: u64 },
    /// The guest has scanned its zones. `used` bytes are allocated. The zones have this many
    /// pageblocks in this many contiguous runs, so a contiguous zone has one run.
    #[allow(missing_docs)]
    Scanned { runs: u64, blocks: u64, used: u64, us: u64 },
    /// The guest starts the next kernel without a reset of the machine, while `plugged` bytes are
    /// plugged.
    #[allow(missing_docs)]
    #[serde(rename = "hand_over")]
    HandOver { plugged: u64 },
    /// The bytes of metadata of new memory that were written since the last such event.
    #[allow(missing_docs)]
    Metadata { written: u64 },
    /// The pseries guest has booted and handles events. `lmbs` LMBs are in its table, which it reads from
    /// the device tree, and `assigned` of them are assigned. `boot_memory` is the memory outside of them.
    #[allow(missing_docs)]
    Ready { boot_memory: u64, lmbs: u32, lmb_size: u64, assigned: u64, online: u64 },
    /// The pseries guest has received a request from the host. The fields are those of [`RequestEnd`].
    #[serde(rename = "asked")]
    #[allow(missing_docs)]
    Requested { change: String, by: String, first: u32, count: u32 },
    /// The pseries guest has ended a request.
    Done(RequestEnd),
    /// The pseries guest could not parse an event log from the firmware.
    #[allow(missing_docs)]
    Garbled {
        #[serde(rename = "why")]
        reason: String,
    },
    /// The pseries guest has received an event log from the firmware that was not about memory.
    Ignored,
    /// The Xen guest has measured the cost of a case.
    Figure(Figure),
    /// The Xen guest has finished a race.
    Race(Race),
    /// The Xen guest has carried out an operation between two marks in QEMU's log.
    Marked(MarkedOperation),
    /// An event that this version cannot parse.
    #[serde(other)]
    Unknown,
}

/// The zone of a device's memory, in bytes, and the number of times that the guest queried whether
/// the zone is contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct Zone {
    /// Its name.
    pub name: ZoneName,
    /// The size from the zone's first to its last online pageblock.
    pub spanned: u64,
    /// The size of the zone's online pageblocks.
    pub online: u64,
    /// The size of the zone's holes that have descriptors.
    pub described_holes: u64,
    /// The number of queries since the device's target changed. The guest makes one query after
    /// each request to the device.
    #[serde(rename = "asked")]
    pub queries: u64,
    /// The number of queries to which the answer was yes.
    #[serde(rename = "contiguous")]
    pub contiguous_answers: u64,
}

/// The allocations that a zone serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZoneName {
    /// Any allocation, in low memory.
    Low,
    /// Any allocation.
    Kernel,
    /// Movable allocations.
    Movable,
}

impl fmt::Display for ZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ZoneName::Low => "low",
            ZoneName::Kernel => "kernel",
            ZoneName::Movable => "movable",
        })
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.name, self.contiguous_answers, self.queries)
    }
}

/// A time that a guest has measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestTime {
    /// Microseconds.
    Us(u64),
    /// Nanoseconds.
    Ns(u64),
}

impl From<GuestTime> for Duration {
    fn from(time: GuestTime) -> Duration {
        match time {
            GuestTime::Us(us) => Duration::from_micros(us),
            GuestTime::Ns(ns) => Duration::from_nanos(ns),
        }
    }
}
