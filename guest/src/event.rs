//! Defines the events of a run. The guest writes each event as one line of JSON, for the program
//! that started the guest.

mod cxl;
mod json;
mod json_text;
#[cfg(test)]
mod tests;
mod zone;

use core::fmt;
pub use cxl::CxlEvent;
use hotmem::Bytes;
pub use zone::ZoneReport;

/// An event. Sizes are in bytes, addresses are physical.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// The kernel has booted.
    Boot {
        /// The time since the kernel's first instruction, in milliseconds.
        ms: u64,
        /// The amount of RAM in the loader's memory map.
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
        /// The node of the device's memory.
        node: u16,
        /// The device's block size.
        block_size: Bytes,
        /// The start of the device's region.
        addr: u64,
        /// The size of the device's region.
        region_size: Bytes,
        /// The size that the host requests.
        requested: Bytes,
        /// The plugged size.
        plugged: Bytes,
        /// The negotiated features.
        features: u64,
        /// The transport of the device.
        transport: &'static str,
        /// How the device interrupts.
        interrupts: &'static str,
    },
    /// A requested size was reached, and the memory is online or removed.
    Resized {
        /// The device's number.
        device: usize,
        /// The node of the device's memory.
        node: u16,
        /// The amount of memory that is online on this node.
        node_online: Bytes,
        /// The requested size that was reached.
        target: Bytes,
        /// The plugged size.
        plugged: Bytes,
        /// The amount of memory that is online, boot memory included.
        online: Bytes,
        /// The amount of free memory.
        free: Bytes,
        /// The number of requests that the device has answered to reach the size.
        requests: u64,
        /// The time in microseconds since the guest read the requested size.
        us: u64,
        /// Whether the device announced the requested size by an interrupt.
        interrupted: bool,
        /// The zone of the device's memory; `None` if none of that memory is online.
        zone: Option<ZoneReport>,
    },
    /// A requested size cannot be reached at the moment.
    Pending {
        /// The device's number.
        device: usize,
        /// The node of the device's memory.
        node: u16,
        /// The size that the host requests.
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
        /// The node of the device's memory.
        node: u16,
    },
    /// The memory of a memory slot is online.
    DimmAdded {
        /// The slot.
        slot: u32,
        /// The start of the memory.
        addr: u64,
        /// The size of the memory.
        size: Bytes,
        /// The node of the memory.
        node: u32,
        /// The amount of memory that is online, boot memory included.
        online: Bytes,
        /// The time for adding the memory, in microseconds.
        us: u64,
    },
    /// The memory of the machine that the engine was not told of at boot is online.
    LateAdded {
        /// The size of the memory.
        size: Bytes,
        /// The amount of memory that is online, boot memory included.
        online: Bytes,
        /// The time for adding the memory, in microseconds.
        us: u64,
    },
    /// That memory was removed again.
    LateRemoved {
        /// The size of the memory.
        size: Bytes,
        /// The amount of memory that is online, boot memory included.
        online: Bytes,
        /// The time for removing the memory, in microseconds.
        us: u64,
    },
    /// The memory of a memory slot was not added, and the host was told.
    DimmRefused {
        /// The slot.
        slot: u32,
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// The memory of a memory slot was removed, and given to the host.
    DimmRemoved {
        /// The slot.
        slot: u32,
        /// The size of the memory.
        size: Bytes,
        /// The amount of memory that is online, boot memory included.
        online: Bytes,
    },
    /// The host asked for the memory of a memory slot, which stays in use. The host was told.
    DimmKept {
        /// The slot.
        slot: u32,
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// A machine check has reported a frame as bad, and the kernel does not use it any more.
    BadFrame {
        /// The frame's physical address.
        addr: u64,
        /// Whether the frame was in use, so that data were lost.
        was_in_use: bool,
    },
    /// An entropy source has answered.
    Entropy {
        /// The transport of the device.
        transport: &'static str,
        /// How the device interrupts.
        interrupts: &'static str,
        /// Whether the device has interrupted.
        interrupted: bool,
        /// The size of the device's answer.
        bytes: Bytes,
        /// The time from the request to the answer, in microseconds.
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
        /// The number of the reporting queue, if the device offers one.
        reports_queue: Option<u16>,
    },
    /// The balloon has the requested size.
    Inflated {
        /// The size that the host requests.
        target: Bytes,
        /// The size of the balloon.
        held: Bytes,
    },
    /// The balloon cannot reach the requested size at the moment.
    InflationPending {
        /// The size that the host requests.
        target: Bytes,
        /// The size of the balloon.
        held: Bytes,
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// The driver no longer uses the balloon device. All memory of the balloon is free again.
    BalloonLost {
        /// The reason.
        why: &'a dyn fmt::Display,
    },
    /// All free memory that may be reported has been reported to the host.
    Reported {
        /// The amount of memory that was reported since the last `Reported` event.
        bytes: Bytes,
        /// The number of requests that reported this memory.
        requests: u64,
        /// The amount of memory that was hinted since the last `Reported` event.
        hinted: Bytes,
    },
    /// Frames were filled with their patterns.
    Touched {
        /// The amount of memory.
        bytes: Bytes,
        /// The time for filling, in microseconds.
        us: u64,
    },
    /// Touched frames were checked and freed.
    Freed {
        /// The amount of memory.
        bytes: Bytes,
        /// The time for freeing, in microseconds.
        us: u64,
    },
    /// Touched frames were checked, and their patterns are intact.
    Verified {
        /// The amount of memory.
        bytes: Bytes,
    },
    /// Frames were allocated by a kernel that keeps zero marks, and checked.
    KnownZero {
        /// The amount of memory since the last `KnownZero` event that was known to be zero, and
        /// was.
        zero: Bytes,
        /// The amount of memory of which nothing was known.
        other: Bytes,
    },
    /// Other CPUs allocated, cleared and freed frames in bursts.
    Faulted {
        /// The number of CPUs.
        cpus: usize,
        /// The number of frames that these CPUs allocated.
        frames: u64,
        /// The total time of all bursts, in microseconds.
        us: u64,
        /// The amount of memory that was reported to the host during the bursts and between them.
        reported: Bytes,
        /// The amount of reported memory that was allocated again in this time.
        refaulted: Bytes,
    },
    /// The state of the kernel's heap, after all objects were checked.
    Heap {
        /// The number of objects.
        objects: u64,
        /// The amount of memory that the heap maps.
        mapped: Bytes,
        /// The amount of memory that was migrated under the heap since boot.
        moved: Bytes,
    },
    /// Persistent memory was found.
    Nvdimm {
        /// The device's number, by which other events name it.
        device: usize,
        /// The start of the memory.
        addr: u64,
        /// The size of the memory, which is whole pageblocks.
        size: Bytes,
    },
    /// Persistent memory was bound, so it is mapped and described.
    Bound {
        /// The device's number.
        device: usize,
        /// The number of frames with descriptors.
        frames: u64,
        /// The size of the memory that contains these descriptors.
        map: Bytes,
        /// The amount of memory that shared tails save.
        saved: Bytes,
        /// The number of bytes of descriptors that were written.
        written: Bytes,
        /// The time for writing the descriptors, in microseconds.
        describe_us: u64,
        /// The time for binding, in microseconds.
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
    /// Persistent memory became RAM, or became a device's memory again.
    Reconfigured {
        /// The device's number.
        device: usize,
        /// The memory's new mode.
        mode: &'static str,
        /// The amount of memory that is online, boot memory included.
        online: Bytes,
        /// The amount of free memory.
        free: Bytes,
        /// The time for the change, in microseconds.
        us: u64,
    },
    /// Persistent memory was unbound.
    Unbound {
        /// The device's number.
        device: usize,
        /// The time for unbinding, in microseconds.
        us: u64,
    },
    /// An event of CXL memory, or the answer to a command.
    Cxl(CxlEvent<'a>),
    /// The writes of other CPUs to mapped pages were compared with the Dirty bits.
    Written {
        /// The number of pages to which these CPUs write.
        pages: u64,
        /// The number of writes since boot.
        writes: u64,
        /// The amount of memory that was migrated under the pages since boot.
        moved: Bytes,
        /// The number of pages that were written since the last `Written` event.
        dirty: u64,
        /// The number of pages that were not written since the last `Written` event.
        clean: u64,
    },
    /// Data that a device wrote to pinned free memory was checked.
    Pinned {
        /// The start of the first range.
        addr: u64,
        /// The start of the second range, which may be pinned as well.
        other: u64,
        /// The total size of the pinned ranges.
        pinned: Bytes,
        /// The amount of memory that is not pinned and still has the device's data.
        left: Bytes,
    },
    /// All zones were scanned for frames in use.
    Scanned {
        /// The number of runs of online memory. A contiguous zone is one run.
        runs: u64,
        /// The number of pageblocks that were read.
        blocks: u64,
        /// The amount of memory in use in these pageblocks.
        used: Bytes,
        /// The time for the scan, in microseconds.
        us: u64,
    },
    /// Another kernel is being started, without a reset of the machine.
    HandOver {
        /// The plugged size of all virtio-mem devices, which stays plugged.
        plugged: Bytes,
    },
    /// Metadata of new memory was written.
    Metadata {
        /// The number of bytes that were written since the last `Metadata` event.
        written: Bytes,
    },
}
