//! The events of a run, one JSON object in a line, for the program that started the guest.

#[cfg(test)]
mod tests;
mod zone;

use core::fmt;
use hotmem::Bytes;
pub use zone::ZoneReport;

/// An event. Sizes are in bytes, addresses are physical.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// The kernel has booted.
    Boot {
        /// Milliseconds since its first instruction.
        ms: u64,
        /// RAM in the loader's memory map.
        boot_memory: Bytes,
        /// The number of enabled processors.
        cpus: u32,
        /// The size of the hot-pluggable ranges, as the firmware reports them.
        hot_pluggable: Bytes,
    },
    /// A virtio-mem device was found.
    Device {
        /// The device's number, by which other events name it.
        device: usize,
        /// Its memory's node.
        node: u16,
        /// Its block size.
        block_size: Bytes,
        /// The start of its region.
        addr: u64,
        /// The size of its region.
        region_size: Bytes,
        /// The size that the host wants.
        requested: Bytes,
        /// The plugged size.
        plugged: Bytes,
        /// The transport of the device.
        transport: &'static str,
        /// How the device interrupts.
        interrupts: &'static str,
    },
    /// A requested size was reached, and the memory is online or removed.
    Resized {
        /// The device's number.
        device: usize,
        /// Its memory's node.
        node: u16,
        /// The online memory of this node.
        node_online: Bytes,
        /// The requested size that was reached.
        target: Bytes,
        /// The plugged size.
        plugged: Bytes,
        /// Memory that is online, boot memory included.
        online: Bytes,
        /// The free memory.
        free: Bytes,
        /// The number of requests that the device has answered for it.
        requests: u64,
        /// The time in microseconds since the guest read the requested size.
        us: u64,
        /// Whether the device interrupted for it.
        interrupted: bool,
        /// The zone of its memory; `None` if none of it is online.
        zone: Option<ZoneReport>,
    },
    /// A requested size cannot be reached at the moment.
    Pending {
        /// The device's number.
        device: usize,
        /// Its memory's node.
        node: u16,
        /// The size that the host wants.
        target: Bytes,
        /// The plugged size.
        plugged: Bytes,
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// A device was removed. Its number may be reused.
    Removed {
        /// The device's number.
        device: usize,
        /// The node of its memory.
        node: u16,
    },
    /// An entropy source has answered.
    Entropy {
        /// The transport of the device.
        transport: &'static str,
        /// How the device interrupts.
        interrupts: &'static str,
        /// Whether it has interrupted.
        interrupted: bool,
        /// The size of its answer.
        bytes: Bytes,
        /// The time in microseconds.
        us: u64,
    },
    /// A balloon was found.
    Balloon {
        /// The transport of the device.
        transport: &'static str,
        /// How the device interrupts.
        interrupts: &'static str,
        /// The negotiated feature bits.
        features: u64,
        /// The number of the reporting queue, if it offers one.
        reports_queue: Option<u16>,
    },
    /// The balloon has the requested size.
    Inflated {
        /// The size that the host requests.
        target: Bytes,
        /// The size of the balloon.
        held: Bytes,
    },
    /// The balloon cannot reach that size at the moment.
    InflationPending {
        /// The size that the host requests.
        target: Bytes,
        /// The size of the balloon.
        held: Bytes,
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// The balloon's device was given up. All memory that it held is free again.
    BalloonLost {
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// All free memory that is eligible has been reported to the host.
    Reported {
        /// The memory reported since the last such event.
        bytes: Bytes,
        /// The number of requests for it.
        requests: u64,
        /// The memory hinted since the last such event.
        hinted: Bytes,
    },
    /// Frames were filled with their patterns.
    Touched {
        /// The amount.
        bytes: Bytes,
        /// The time in microseconds.
        us: u64,
    },
    /// Touched frames were checked and freed.
    Freed {
        /// The amount.
        bytes: Bytes,
        /// The time in microseconds.
        us: u64,
    },
    /// Touched frames still held their patterns.
    Verified {
        /// The amount.
        bytes: Bytes,
    },
    /// Other CPUs allocated, cleared and freed frames in bursts.
    Faulted {
        /// The number of CPUs.
        cpus: usize,
        /// The number of frames that they allocated.
        frames: u64,
        /// The total time of their bursts in microseconds.
        us: u64,
        /// The memory reported to the host meanwhile, rests included.
        reported: Bytes,
        /// The reported memory that was allocated again meanwhile.
        refaulted: Bytes,
    },
    /// The state of the kernel's heap, after all objects were checked.
    Heap {
        /// The number of objects.
        objects: u64,
        /// The memory that the heap maps.
        mapped: Bytes,
        /// The memory that was migrated under it since boot.
        moved: Bytes,
    },
    /// Persistent memory was found.
    Nvdimm {
        /// The device's number, by which other events name it.
        device: usize,
        /// Its start.
        addr: u64,
        /// Its size in whole pageblocks.
        size: Bytes,
    },
    /// Persistent memory was bound: it is mapped and described.
    Bound {
        /// The device's number.
        device: usize,
        /// The number of frames with descriptors.
        frames: u64,
        /// The memory that holds these descriptors.
        map: Bytes,
        /// The additional memory that they would need without shared tails.
        saved: Bytes,
        /// The number of bytes written to describe the frames.
        written: Bytes,
        /// The time for that in microseconds.
        describe_us: u64,
        /// The total time in microseconds.
        us: u64,
    },
    /// Bound memory was checked.
    Checked {
        /// The device's number.
        device: usize,
        /// The number of correct descriptors.
        descriptors: u64,
        /// The number of correct frames of data.
        data: u64,
    },
    /// Persistent memory became RAM, or a device's memory again.
    Reconfigured {
        /// The device's number.
        device: usize,
        /// Its new mode.
        mode: &'static str,
        /// Memory that is online, boot memory included.
        online: Bytes,
        /// The free memory.
        free: Bytes,
        /// The time in microseconds.
        us: u64,
    },
    /// Persistent memory was unbound.
    Unbound {
        /// The device's number.
        device: usize,
        /// The time in microseconds.
        us: u64,
    },
    /// The writes of other CPUs to mapped pages were compared with the Dirty bits.
    Written {
        /// The number of pages that they write to.
        pages: u64,
        /// The number of writes since boot.
        writes: u64,
        /// The memory that was migrated under the pages since boot.
        moved: Bytes,
        /// The number of pages that were written since the last such event.
        dirty: u64,
        /// The number of pages that were not.
        clean: u64,
    },
    /// Data that a device wrote to pinned free memory was checked.
    Pinned {
        /// The first range.
        addr: u64,
        /// The second range, which may be pinned as well.
        other: u64,
        /// The size of the pinned ranges.
        pinned: Bytes,
        /// The size of the memory that is not pinned and still holds the device's data.
        left: Bytes,
    },
    /// All zones were scanned for frames in use.
    Scanned {
        /// The number of runs: one for each contiguous zone.
        runs: u64,
        /// The number of pageblocks that were read.
        blocks: u64,
        /// The memory in use in them.
        used: Bytes,
        /// The time in microseconds.
        us: u64,
    },
    /// Another kernel is being started, without a reset of the machine.
    HandOver {
        /// The plugged size of all virtio-mem devices, which stays plugged.
        plugged: Bytes,
    },
    /// Metadata of new memory was written.
    Metadata {
        /// The number of bytes written since the last such event.
        written: Bytes,
    },
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Event::Boot { ms, boot_memory, cpus, hot_pluggable } => write!(
                f,
                r#"{{"event":"boot","ms":{ms},"boot_memory":{},"cpus":{cpus},"hot_pluggable":{}}}"#,
                boot_memory.0, hot_pluggable.0
            ),
            Event::Device {
                device,
                node,
                block_size,
                addr,
                region_size,
                requested,
                plugged,
                transport,
                interrupts,
            } => write!(
                f,
                r#"{{"event":"device","kind":"virtio-mem","block_size":{},"addr":{addr},"region_size":{},"requested":{},"plugged":{},"device":{device},"node":{node},"transport":"{transport}","interrupts":"{interrupts}"}}"#,
                block_size.0, region_size.0, requested.0, plugged.0
            ),
            Event::Resized {
                device,
                node,
                node_online,
                target,
                plugged,
                online,
                free,
                requests,
                us,
                interrupted,
                zone,
            } => {
                write!(
                    f,
                    r#"{{"event":"resized","target":{},"plugged":{},"online":{},"free":{},"requests":{requests},"us":{us},"device":{device},"node":{node},"node_online":{},"interrupted":{interrupted},"zone":"#,
                    target.0, plugged.0, online.0, free.0, node_online.0
                )?;
                match zone {
                    Some(zone) => write!(f, "{zone}}}"),
                    None => f.write_str("null}"),
                }
            }
            Event::Pending { device, node, target, plugged, why } => write!(
                f,
                r#"{{"event":"pending","target":{},"plugged":{},"why":"{}","device":{device},"node":{node}}}"#,
                target.0,
                plugged.0,
                JsonText(why)
            ),
            Event::Removed { device, node } => {
                write!(f, r#"{{"event":"removed","device":{device},"node":{node}}}"#)
            }
            Event::Entropy { transport, interrupts, interrupted, bytes, us } => write!(
                f,
                r#"{{"event":"entropy","transport":"{transport}","interrupts":"{interrupts}","interrupted":{interrupted},"bytes":{},"us":{us}}}"#,
                bytes.0
            ),
            Event::Balloon { transport, interrupts, features, reports_queue } => {
                write!(
                    f,
                    r#"{{"event":"balloon","transport":"{transport}","interrupts":"{interrupts}","features":{features},"reports_queue":"#
                )?;
                match reports_queue {
                    Some(number) => write!(f, "{number}}}"),
                    None => f.write_str("null}"),
                }
            }
            Event::Inflated { target, held } => {
                write!(f, r#"{{"event":"inflated","target":{},"held":{}}}"#, target.0, held.0)
            }
            Event::InflationPending { target, held, why } => write!(
                f,
                r#"{{"event":"inflation_pending","target":{},"held":{},"why":"{}"}}"#,
                target.0,
                held.0,
                JsonText(why)
            ),
            Event::BalloonLost { why } => {
                write!(f, r#"{{"event":"balloon_lost","why":"{}"}}"#, JsonText(why))
            }
            Event::Reported { bytes, requests, hinted } => write!(
                f,
                r#"{{"event":"reported","bytes":{},"requests":{requests},"hinted":{}}}"#,
                bytes.0, hinted.0
            ),
            Event::Freed { bytes, us } => {
                write!(f, r#"{{"event":"freed","bytes":{},"us":{us}}}"#, bytes.0)
            }
            Event::Touched { bytes, us } => {
                write!(f, r#"{{"event":"touched","bytes":{},"us":{us}}}"#, bytes.0)
            }
            Event::Verified { bytes } => {
                write!(f, r#"{{"event":"verified","bytes":{}}}"#, bytes.0)
            }
            Event::Faulted { cpus, frames, us, reported, refaulted } => write!(
                f,
                r#"{{"event":"faulted","cpus":{cpus},"frames":{frames},"us":{us},"reported":{},"refaulted":{}}}"#,
                reported.0, refaulted.0
            ),
            Event::Heap { objects, mapped, moved } => write!(
                f,
                r#"{{"event":"heap","objects":{objects},"mapped":{},"moved":{}}}"#,
                mapped.0, moved.0
            ),
            Event::Nvdimm { device, addr, size } => write!(
                f,
                r#"{{"event":"nvdimm","device":{device},"addr":{addr},"size":{}}}"#,
                size.0
            ),
            Event::Bound { device, frames, map, saved, written, describe_us, us } => write!(
                f,
                r#"{{"event":"bound","device":{device},"frames":{frames},"map":{},"saved":{},"written":{},"describe_us":{describe_us},"us":{us}}}"#,
                map.0, saved.0, written.0
            ),
            Event::Checked { device, descriptors, data } => write!(
                f,
                r#"{{"event":"checked","device":{device},"descriptors":{descriptors},"data":{data}}}"#
            ),
            Event::Reconfigured { device, mode, online, free, us } => write!(
                f,
                r#"{{"event":"reconfigured","device":{device},"mode":"{mode}","online":{},"free":{},"us":{us}}}"#,
                online.0, free.0
            ),
            Event::Unbound { device, us } => {
                write!(f, r#"{{"event":"unbound","device":{device},"us":{us}}}"#)
            }
            Event::Written { pages, writes, moved, dirty, clean } => write!(
                f,
                r#"{{"event":"written","pages":{pages},"writes":{writes},"moved":{},"dirty":{dirty},"clean":{clean}}}"#,
                moved.0
            ),
            Event::Pinned { addr, other, pinned, left } => write!(
                f,
                r#"{{"event":"pinned","addr":{addr},"other":{other},"pinned":{},"left":{}}}"#,
                pinned.0, left.0
            ),
            Event::Scanned { runs, blocks, used, us } => write!(
                f,
                r#"{{"event":"scanned","runs":{runs},"blocks":{blocks},"used":{},"us":{us}}}"#,
                used.0
            ),
            Event::HandOver { plugged } => {
                write!(f, r#"{{"event":"hand_over","plugged":{}}}"#, plugged.0)
            }
            Event::Metadata { written } => {
                write!(f, r#"{{"event":"metadata","written":{}}}"#, written.0)
            }
        }
    }
}

/// Displays a value within a JSON string.
struct JsonText<'a>(&'a dyn fmt::Display);

impl fmt::Display for JsonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        write!(Escape(f), "{}", self.0)
    }
}

struct Escape<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escape<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            '"' | '\\' => write!(self.0, "\\{c}"),
            c if c < ' ' => write!(self.0, "\\u{:04x}", u32::from(c)),
            c => self.0.write_char(c),
        })
    }
}
