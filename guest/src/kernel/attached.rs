//! A virtio-mem device that the kernel drives, and what it has under way.

use super::BUDGET;
use super::device::PciDevice;
use super::memory::FRAMES;
use super::smp::ThisCpu;
use hotmem::{Bytes, OnlineType, PfnRange};
use hotmem_guest::event::Event;
use hotmem_virtio::mem::{Driver, HotplugMemory, Pending, Status};

/// A device.
pub(crate) struct Attached {
    pub(crate) device: PciDevice,
    pub(crate) memory: HotplugMemory<'static, ThisCpu>,
    pub(crate) target: Target,
    /// The port in whose slot it is.
    pub(crate) port: Option<usize>,
    /// The frames of its queue.
    queue: PfnRange,
}

/// The size that the device wants, and how far that has come.
pub(crate) struct Target {
    pub(crate) size: Bytes,
    /// What was plugged when it was first seen.
    pub(crate) plugged: Bytes,
    /// When that was.
    pub(crate) since_us: u64,
    /// Requests that had been sent by then.
    pub(crate) requests: u64,
    pub(crate) reached: bool,
    /// The reason that was reported last.
    pub(crate) pending: Option<Pending>,
}

impl Attached {
    /// A device that was started just now, with the frames of its queue.
    pub(crate) fn new(
        (device, queue): (PciDevice, PfnRange),
        port: Option<usize>,
        online: OnlineType,
        now_us: u64,
    ) -> Self {
        let config = device.driver().config();
        let nothing = config.requested() == Bytes::ZERO && config.plugged() == Bytes::ZERO;
        let target = Target {
            size: config.requested(),
            plugged: Bytes::ZERO,
            since_us: now_us,
            requests: 0,
            reached: nothing,
            pending: None,
        };
        Attached { device, memory: HotplugMemory::new(online, BUDGET), target, port, queue }
    }

    pub(crate) fn driver(&self) -> &Driver {
        self.device.driver()
    }

    /// The node of its memory.
    pub(crate) fn node(&self) -> u16 {
        self.driver().config().node().unwrap_or(0)
    }

    /// Where its memory is or may be.
    pub(crate) fn region(&self) -> PfnRange {
        self.driver().config().managed()
    }

    /// Whether it may go: nothing is plugged, wanted or under way.
    pub(crate) fn is_done(&self) -> bool {
        self.driver().plugged() == Bytes::ZERO
            && self.driver().config().requested() == Bytes::ZERO
            && self.driver().status() == Status::Reached
    }

    /// A new target, from the device as it was before it was seen.
    pub(crate) fn aim(&mut self, since_us: u64, plugged: Bytes, requests: u64) {
        let size = self.driver().config().requested();
        if size != self.target.size {
            self.target =
                Target { size, plugged, since_us, requests, reached: false, pending: None };
        }
    }

    /// What its configuration says.
    pub(crate) fn event(&self, number: usize) -> Event<'static> {
        let config = self.driver().config();
        Event::Device {
            device: number,
            node: self.node(),
            block_size: config.block_size(),
            addr: config.region().start().phys_addr(),
            region_size: config.region().bytes(),
            requested: config.requested(),
            plugged: config.plugged(),
        }
    }

    /// Resets the device, and gives back what it used.
    pub(crate) fn stop(self) {
        drop(self.device);
        // Allocated when it was started, and the device is reset, so this cannot fail.
        let _ = FRAMES.free(self.queue);
    }
}
