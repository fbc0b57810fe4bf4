//! A virtio-mem device that the kernel drives, and what it has under way.

use super::boot_memory::LOW_END;
use super::device::MemDevice;
use super::engine::{BUDGET, Engine};
use super::memory::FRAMES;
use super::this_cpu::ThisCpu;
use super::transport::Wiring;
use super::zone_watch::ZoneWatch;
use hotmem::{Bytes, OnlineType, PfnRange};
use hotmem_guest::event::Event;
use hotmem_virtio::mem::{Driver, HotplugMemory, Pending, Status};

/// A device.
pub(crate) struct Attached {
    pub(crate) device: MemDevice,
    pub(crate) memory: HotplugMemory<'static, ThisCpu>,
    pub(crate) target: Target,
    /// The port in whose slot it is.
    pub(crate) port: Option<usize>,
    pub(crate) interrupt: InterruptSource,
    /// The zone that its memory came online in last.
    pub(crate) zone: Option<ZoneWatch>,
    /// The frames of its queue.
    queue: PfnRange,
}

/// How a device interrupts, and whether it has.
pub(crate) struct InterruptSource {
    /// What kind of transport it is behind.
    pub(crate) transport: &'static str,
    pub(crate) wiring: Wiring,
    /// It has interrupted since this was last read.
    pub(crate) is_pending: bool,
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
    /// Whether the device interrupted for it.
    pub(crate) interrupted: bool,
    pub(crate) reached: bool,
    /// The reason that was reported last.
    pub(crate) pending: Option<Pending>,
    /// How often the driver had put something off when memory was last made free for it.
    pub(crate) relieved: u64,
}

impl Attached {
    /// Makes a device that was started just now, with the frames of its queue.
    pub(crate) fn new(
        (device, queue): (MemDevice, PfnRange),
        interrupt: InterruptSource,
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
            interrupted: false,
            reached: nothing,
            pending: None,
            relieved: 0,
        };
        let memory = HotplugMemory::new(online, BUDGET);
        Attached { device, memory, target, port, interrupt, zone: None, queue }
    }

    pub(crate) fn driver(&self) -> &Driver {
        self.device.driver()
    }

    /// Returns the node of its memory.
    pub(crate) fn node(&self) -> u16 {
        self.driver().config().node().unwrap_or(0)
    }

    /// Returns whether memory cannot leave, as the driver has seen since this was last true.
    pub(crate) fn is_stuck_again(&mut self) -> bool {
        let put_off = self.driver().statistics().put_off;
        let is_new = core::mem::replace(&mut self.target.relieved, put_off) != put_off;
        is_new && matches!(self.driver().status(), Status::Pending(Pending::Memory(_)))
    }

    /// Returns where its memory is or may be.
    pub(crate) fn region(&self) -> PfnRange {
        self.driver().config().managed()
    }

    /// Returns whether it may go: nothing is plugged, wanted or under way.
    pub(crate) fn is_done(&self) -> bool {
        self.driver().plugged() == Bytes::ZERO
            && self.driver().config().requested() == Bytes::ZERO
            && self.driver().status() == Status::Reached
    }

    /// A new target, from the device as it was before it was seen.
    pub(crate) fn aim(&mut self, since_us: u64, plugged: Bytes, requests: u64) {
        let size = self.driver().config().requested();
        if size != self.target.size {
            let (interrupted, relieved) = (self.interrupt.is_pending, self.target.relieved);
            let (reached, pending) = (false, None);
            self.target = Target {
                size,
                plugged,
                since_us,
                requests,
                interrupted,
                reached,
                pending,
                relieved,
            };
        }
        self.interrupt.is_pending = false;
    }

    /// Asks the zone of its memory whether it is contiguous, if `came` has come online for it or
    /// something has gone since so much was plugged.
    pub(crate) fn ask_zone(&mut self, plugged: Bytes, engine: &mut Engine) {
        let came = engine.hooks.came.take();
        let came_in = came.and_then(|range| ZoneWatch::at(range, LOW_END, &engine.hotplug));
        if came_in.is_none() && self.driver().plugged() >= plugged {
            return;
        }
        if let Some(other) = came_in
            && !self.zone.as_ref().is_some_and(|zone| zone.is_same(&other))
        {
            self.zone = Some(other);
        }
        if let Some(zone) = &mut self.zone {
            zone.ask(&engine.hotplug);
        }
    }

    /// Notes whether the device raised the interrupt, by its own register: lines may be shared.
    pub(crate) fn ack_interrupt(&mut self) -> bool {
        let raised = self.interrupt.wiring.is_line() && self.device.ack_interrupt();
        self.interrupt.is_pending |= raised;
        raised
    }

    /// Returns what its configuration says.
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
            transport: self.interrupt.transport,
            interrupts: self.interrupt.wiring.name(),
        }
    }

    /// Resets the device, and gives back what it used.
    pub(crate) fn stop(self) {
        drop(self.device);
        // SAFETY: allocated when it was started, and the device is reset, so this cannot fail.
        let _ = unsafe { FRAMES.free_raw_filled(self.queue) };
    }
}
