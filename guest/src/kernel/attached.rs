//! A virtio-mem device that the kernel drives, and its current resize.

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

/// A virtio-mem device with its driver.
pub(crate) struct Attached {
    pub(crate) device: MemDevice,
    pub(crate) memory: HotplugMemory<'static, ThisCpu>,
    pub(crate) target: Target,
    /// The port of its slot.
    pub(crate) port: Option<usize>,
    pub(crate) interrupt: InterruptSource,
    /// The zone in which its memory was last put online.
    pub(crate) zone: Option<ZoneWatch>,
    /// The frames of its queue.
    queue: PfnRange,
}

/// How a device interrupts, and whether it has done so.
pub(crate) struct InterruptSource {
    /// The name of its transport.
    pub(crate) transport: &'static str,
    pub(crate) wiring: Wiring,
    /// Whether it has interrupted since this was last read.
    pub(crate) is_pending: bool,
}

/// The requested size of a device, and the progress towards it.
pub(crate) struct Target {
    pub(crate) size: Bytes,
    /// The plugged size when the requested size was first read.
    pub(crate) plugged: Bytes,
    /// The time at which it was first read.
    pub(crate) since_us: u64,
    /// The number of requests that had been sent by then.
    pub(crate) requests: u64,
    /// Whether the device announced it by an interrupt.
    pub(crate) interrupted: bool,
    pub(crate) reached: bool,
    /// The reason for a delay that was last reported.
    pub(crate) pending: Option<Pending>,
    /// The driver's count of postponed operations when memory was last freed for it.
    pub(crate) relieved: u64,
}

impl Attached {
    /// Makes the state of a device that was just started. `queue` holds the frames of its queue.
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

    /// Returns whether the driver has failed to remove memory since this last returned true.
    pub(crate) fn is_stuck_again(&mut self) -> bool {
        let put_off = self.driver().statistics().put_off;
        let is_new = core::mem::replace(&mut self.target.relieved, put_off) != put_off;
        is_new && matches!(self.driver().status(), Status::Pending(Pending::Memory(_)))
    }

    /// Returns the device's region.
    pub(crate) fn region(&self) -> PfnRange {
        self.driver().config().managed()
    }

    /// Returns whether it may be removed: nothing is plugged or requested, and no request is
    /// outstanding.
    pub(crate) fn is_done(&self) -> bool {
        self.driver().plugged() == Bytes::ZERO
            && self.driver().config().requested() == Bytes::ZERO
            && self.driver().status() == Status::Reached
    }

    /// Starts a new target if the requested size has changed. The arguments describe the state
    /// before the change.
    pub(crate) fn set_target(&mut self, since_us: u64, plugged: Bytes, requests: u64) {
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

    /// Queries whether the zone of its memory is contiguous, if memory was put online or removed
    /// since `plugged` was plugged.
    pub(crate) fn ask_zone(&mut self, plugged: Bytes, engine: &mut Engine) {
        let range_online = engine.hooks.last_online.take();
        let zone = range_online.and_then(|range| ZoneWatch::at(range, LOW_END, &engine.hotplug));
        if zone.is_none() && self.driver().plugged() >= plugged {
            return;
        }
        if let Some(other) = zone
            && !self.zone.as_ref().is_some_and(|zone| zone.is_same(&other))
        {
            self.zone = Some(other);
        }
        if let Some(zone) = &mut self.zone {
            zone.ask(&engine.hotplug);
        }
    }

    /// Reads from the device whether it raised the interrupt, because lines may be shared.
    pub(crate) fn ack_interrupt(&mut self) -> bool {
        let raised = self.interrupt.wiring.is_line() && self.device.ack_interrupt();
        self.interrupt.is_pending |= raised;
        raised
    }

    /// Returns an event with its configuration.
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

    /// Resets the device, and frees its queue.
    pub(crate) fn stop(self) {
        drop(self.device);
        // SAFETY: the frames were allocated when the device was started, and it is reset, so this
        // cannot fail.
        let _ = unsafe { FRAMES.free_raw_filled(self.queue) };
    }
}
