//! Parses the guest's output on its serial console: TAP, and one JSON object on a line for each
//! event.

use serde::Deserialize;
use std::fmt;

/// A line of the guest's output.
#[derive(Clone, PartialEq, Debug)]
pub enum Report {
    /// An event in the guest.
    Event(Event),
    /// A test point that passed, with its number and description.
    Passed(String),
    /// A test point that failed, with its number and description.
    Failed(String),
    /// The guest ended its tests early, for this reason.
    BailOut(String),
    /// The last line: whether all test points passed.
    Verdict(bool),
    /// Any other line, such as TAP's version and plan.
    Other,
}

/// An event in the guest. Sizes of memory are in bytes. Times are in microseconds, except those
/// named `ms`, which are in milliseconds.
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
    Balloon { transport: String, interrupts: String, features: u64, reports_queue: Option<u16> },
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
    Reported { bytes: u64, requests: u64, hinted: u64 },
    /// The guest has checked the memory that it filled, and has freed it in `us`.
    #[allow(missing_docs)]
    Freed { bytes: u64, us: u64 },
    /// The guest has filled memory with a different pattern in each frame.
    #[allow(missing_docs)]
    Touched { bytes: u64, us: u64 },
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

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.name {
            ZoneName::Low => "low",
            ZoneName::Kernel => "kernel",
            ZoneName::Movable => "movable",
        };
        write!(f, "{name}, {} of {}", self.contiguous_answers, self.queries)
    }
}

impl Report {
    /// Parses a line.
    ///
    /// # Errors
    /// The line begins like an event, and cannot be parsed.
    pub fn parse(line: &str) -> Result<Report, serde_json::Error> {
        let line = line.trim_end();
        if line.starts_with('{') {
            return serde_json::from_str(line).map(Report::Event);
        }
        let after = |prefix| line.strip_prefix(prefix).map(str::to_owned);
        Ok(if let Some(point) = after("ok ") {
            Report::Passed(point)
        } else if let Some(point) = after("not ok ") {
            Report::Failed(point)
        } else if let Some(reason) = after("Bail out! ") {
            Report::BailOut(reason)
        } else {
            match line {
                "hotmem: PASS" => Report::Verdict(true),
                "hotmem: FAIL" => Report::Verdict(false),
                _ => Report::Other,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_is_parsed() {
        let cases = [
            ("TAP version 14\r", Report::Other),
            ("ok 2 - plug 64GiB", Report::Passed("2 - plug 64GiB".into())),
            ("not ok 3 - unplug", Report::Failed("3 - unplug".into())),
            ("Bail out! watchdog: unplug", Report::BailOut("watchdog: unplug".into())),
            ("1..3", Report::Other),
            ("hotmem: PASS\r", Report::Verdict(true)),
            ("hotmem: FAIL", Report::Verdict(false)),
            (
                r#"{"event":"touched","bytes":4096,"us":3}"#,
                Report::Event(Event::Touched { bytes: 4096, us: 3 }),
            ),
            (r#"{"event":"tomorrow","x":[1]}"#, Report::Event(Event::Unknown)),
            (
                r#"{"event":"resized","target":8,"plugged":8,"online":9,"free":7,"requests":1,"us":464,"new":true}"#,
                Report::Event(Event::Resized {
                    target: 8,
                    plugged: 8,
                    online: 9,
                    free: 7,
                    requests: 1,
                    us: 464,
                    device: 0,
                    node: 0,
                    node_online: 0,
                    interrupted: false,
                    zone: None,
                }),
            ),
            (
                r#"{"event":"scanned","runs":2,"blocks":9,"used":8192,"us":3}"#,
                Report::Event(Event::Scanned { runs: 2, blocks: 9, used: 8192, us: 3 }),
            ),
        ];
        for (line, report) in cases {
            assert_eq!(Report::parse(line).unwrap(), report, "{line}");
        }
    }

    #[test]
    fn the_zone_of_a_resize_is_parsed() {
        let line = r#"{"event":"resized","target":8,"plugged":8,"online":9,"free":7,"requests":1,"us":4,"zone":{"name":"kernel","spanned":8,"online":6,"described_holes":2,"asked":4,"contiguous":3}}"#;
        let Ok(Report::Event(Event::Resized { zone: Some(zone), .. })) = Report::parse(line) else {
            panic!("no zone in {line}");
        };
        let name = ZoneName::Kernel;
        let (spanned, online, described_holes) = (8, 6, 2);
        let (queries, contiguous_answers) = (4, 3);
        let expected = Zone { name, spanned, online, described_holes, queries, contiguous_answers };
        assert_eq!((zone, zone.to_string().as_str()), (expected, "kernel, 3 of 4"));
    }

    #[test]
    fn an_incomplete_event_is_an_error() {
        for line in [
            "{",
            r#"{"event":"touched"}"#,
            r#"{"bytes":4096}"#,
            r#"{"event":"verified","bytes":-1}"#,
        ] {
            assert!(Report::parse(line).is_err(), "{line}");
        }
    }
}
