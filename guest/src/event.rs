//! The events of a run, one JSON object in a line, for the program that started the guest.

mod json;
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
        /// The number of pages that were not written since then.
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
