//! The events of a run, one JSON object a line, for the program that started the guest.

#[cfg(test)]
mod tests;
mod zone;

use core::fmt;
use hotmem::Bytes;
pub use zone::ZoneReport;

/// Something that happened. Sizes are bytes, addresses physical.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// The kernel runs.
    Boot {
        /// Milliseconds since its first instruction.
        ms: u64,
        /// RAM in the loader's memory map.
        boot_memory: Bytes,
        /// Enabled processors.
        cpus: u32,
        /// Where memory may come and go, as the firmware says.
        hot_pluggable: Bytes,
    },
    /// A virtio-mem device was found.
    Device {
        /// Its number, by which other events name it.
        device: usize,
        /// Its memory's node.
        node: u16,
        /// Its block size.
        block_size: Bytes,
        /// Where its region starts.
        addr: u64,
        /// How large its region is.
        region_size: Bytes,
        /// The size that the host wants.
        requested: Bytes,
        /// The size that is plugged.
        plugged: Bytes,
        /// What it is behind.
        transport: &'static str,
        /// How it interrupts.
        interrupts: &'static str,
    },
    /// A target of the device is reached, and the memory online or gone.
    Resized {
        /// The device's number.
        device: usize,
        /// Its memory's node.
        node: u16,
        /// Memory of this node that is online.
        node_online: Bytes,
        /// The size that the host wanted.
        target: Bytes,
        /// The size that is plugged.
        plugged: Bytes,
        /// Memory that is online, boot memory included.
        online: Bytes,
        /// Memory that is free.
        free: Bytes,
        /// Requests that the device answered for it.
        requests: u64,
        /// Microseconds since the guest saw the target.
        us: u64,
        /// Whether the device interrupted for it.
        interrupted: bool,
        /// The zone that its memory is in; `None` if nothing of it is online.
        zone: Option<ZoneReport>,
    },
    /// A target of the device cannot be reached for now.
    Pending {
        /// The device's number.
        device: usize,
        /// Its memory's node.
        node: u16,
        /// The size that the host wants.
        target: Bytes,
        /// The size that is plugged.
        plugged: Bytes,
        /// What is in the way.
        why: &'a dyn fmt::Display,
    },
    /// A device was let go. Its number may be another's later.
    Removed {
        /// The device's number.
        device: usize,
        /// The node on which its memory was.
        node: u16,
    },
    /// An entropy source has answered.
    Entropy {
        /// What it is behind.
        transport: &'static str,
        /// How it interrupts.
        interrupts: &'static str,
        /// Whether it has.
        interrupted: bool,
        /// How much it answered.
        bytes: Bytes,
        /// How long it took, in microseconds.
        us: u64,
    },
    /// A balloon was found.
    Balloon {
        /// What it is behind.
        transport: &'static str,
        /// How it interrupts.
        interrupts: &'static str,
        /// The feature bits that were negotiated.
        features: u64,
        /// The number of the queue for reports, if it offers one.
        reports_queue: Option<u16>,
    },
    /// The balloon has the size that the host wants.
    Inflated {
        /// What the host wants.
        target: Bytes,
        /// What is in it.
        held: Bytes,
    },
    /// It cannot have it for now.
    InflationPending {
        /// What the host wants.
        target: Bytes,
        /// What is in it.
        held: Bytes,
        /// What is in the way.
        why: &'a dyn fmt::Display,
    },
    /// The balloon's device was given up. All that it had is free again.
    BalloonLost {
        /// Why.
        why: &'a dyn fmt::Display,
    },
    /// All free memory is the host's now, as far as it is to be.
    Reported {
        /// What was reported since the last such event.
        bytes: Bytes,
        /// In how many requests.
        requests: u64,
        /// What was hinted.
        hinted: Bytes,
    },
    /// Frames were filled with their patterns.
    Touched {
        /// How much.
        bytes: Bytes,
        /// How long it took, in microseconds.
        us: u64,
    },
    /// Touched frames, which held their patterns, were freed.
    Freed {
        /// How much.
        bytes: Bytes,
        /// How long it took, in microseconds.
        us: u64,
    },
    /// Touched frames still held their patterns.
    Verified {
        /// How much.
        bytes: Bytes,
    },
    /// Other CPUs allocated, cleared and freed frames in bursts.
    Faulted {
        /// How many CPUs.
        cpus: usize,
        /// Frames that they allocated.
        frames: u64,
        /// How long their bursts took, all of them together, in microseconds.
        us: u64,
        /// What was reported to the host meanwhile, rests included.
        reported: Bytes,
        /// What of all that was reported was used again meanwhile.
        refaulted: Bytes,
    },
    /// What is on the kernel's heap, all of it as it was made.
    Heap {
        /// How many objects.
        objects: u64,
        /// Memory behind the heap.
        mapped: Bytes,
        /// Memory that was copied elsewhere under it, since boot.
        moved: Bytes,
    },
    /// Persistent memory was found.
    Nvdimm {
        /// Its number, by which other events name it.
        device: usize,
        /// Where it starts.
        addr: u64,
        /// How large it is, in whole pageblocks.
        size: Bytes,
    },
    /// Persistent memory was bound: mapped, and described.
    Bound {
        /// Its number.
        device: usize,
        /// Frames that have descriptors.
        frames: u64,
        /// Memory behind these descriptors.
        map: Bytes,
        /// How much more it would be if nobody shared any.
        saved: Bytes,
        /// What was written to describe them.
        written: Bytes,
        /// How long that took, in microseconds.
        describe_us: u64,
        /// How long all of it took.
        us: u64,
    },
    /// What was bound has been looked through.
    Checked {
        /// Its number.
        device: usize,
        /// Descriptors that were as they have to be.
        descriptors: u64,
        /// Frames of data that were as they had been written.
        data: u64,
    },
    /// It became RAM, or a device's again.
    Reconfigured {
        /// Its number.
        device: usize,
        /// What it is now.
        mode: &'static str,
        /// Memory that is online, boot memory included.
        online: Bytes,
        /// Memory that is free.
        free: Bytes,
        /// How long it took, in microseconds.
        us: u64,
    },
    /// It was unbound.
    Unbound {
        /// Its number.
        device: usize,
        /// How long it took, in microseconds.
        us: u64,
    },
    /// What other CPUs wrote through addresses, and whether Dirty told so.
    Written {
        /// Pages that they write to.
        pages: u64,
        /// Writes since boot.
        writes: u64,
        /// Memory that was copied elsewhere under the pages, since boot.
        moved: Bytes,
        /// Pages that were written to since the last such event.
        dirty: u64,
        /// Pages that were not.
        clean: u64,
    },
    /// What a device wrote to memory that is pinned for it, and free, is there.
    Pinned {
        /// Where the first range is.
        addr: u64,
        /// Where the second is, which may be pinned as well.
        other: u64,
        /// How much is pinned.
        pinned: Bytes,
        /// How much of what it wrote to memory that is not pinned is there as well.
        left: Bytes,
    },
    /// All zones were scanned for what is in use.
    Scanned {
        /// How many runs they are: one for each zone that is contiguous.
        runs: u64,
        /// How many pageblocks were looked at.
        blocks: u64,
        /// How much of them is in use.
        used: Bytes,
        /// How long it took, in microseconds.
        us: u64,
    },
    /// Another kernel is started, without a reset of the machine.
    HandOver {
        /// What virtio-mem devices have plugged, which stays so.
        plugged: Bytes,
    },
    /// Bytes that were written to describe new memory.
    Metadata {
        /// How much, since the last such event.
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

/// What something displays as, within a JSON string.
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
