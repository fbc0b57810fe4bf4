//! A virtio-mem device that the kernel drives, and its current resize.

use super::boot_memory::LOW_END;
use super::device::MemDevice;
use super::device_error::DeviceError;
use super::engine::{BUDGET, Engine, online_type};
use super::fatal::must;
use super::memory::FRAMES;
use super::queue_memory::queue_memory;
use super::this_cpu::ThisCpu;
use super::transport::{DeviceTransport, InterruptMode};
use super::zone_watch::ZoneWatch;
use hotmem::{Bytes, PfnRange};
use hotmem_guest::cmdline::{self, Options};
use hotmem_guest::event::Event;
use hotmem_virtio::mem::{Driver, HotplugMemory, Leftover, Pending, Status};

/// A virtio-mem device with its driver.
pub(crate) struct AttachedDevice {
    pub(crate) device: MemDevice,
    pub(crate) memory: HotplugMemory<'static, ThisCpu>,
    pub(crate) target: ResizeTarget,
    /// The port of the device's hot-plug slot, if the device is in one.
    pub(crate) port: Option<usize>,
    pub(crate) interrupt: InterruptSource,
    /// The zone in which the device's memory was last put online.
    pub(crate) zone: Option<ZoneWatch>,
    /// The frames of the device's queue.
    queue: PfnRange,
}

/// How a device interrupts, and whether it has done so.
pub(crate) struct InterruptSource {
    /// The name of the device's transport.
    pub(crate) transport: &'static str,
    pub(crate) mode: InterruptMode,
    /// Whether the device has interrupted since the driver last ran.
    pub(crate) is_pending: bool,
}

/// The requested size of a device, and the progress towards it.
pub(crate) struct ResizeTarget {
    pub(crate) size: Bytes,
    /// The plugged size when the requested size was first read.
    pub(crate) plugged_before: Bytes,
    /// The time at which the requested size was first read.
    pub(crate) since_us: u64,
    /// The number of requests that the driver had sent when the requested size was first read.
    pub(crate) requests_before: u64,
    /// Whether the device announced the requested size by an interrupt.
    pub(crate) came_by_interrupt: bool,
    pub(crate) is_reached: bool,
    /// The reason for a delay that was reported last.
    pub(crate) reported_delay: Option<Pending>,
    /// The driver's count of postponed operations that [`AttachedDevice::take_failed_removal`] read
    /// last.
    pub(crate) last_postponed: u64,
}

impl ResizeTarget {
    /// Returns the target of a device that was just started.
    fn first(driver: &Driver, since_us: u64) -> Self {
        let config = driver.config();
        ResizeTarget {
            size: config.requested(),
            plugged_before: Bytes::ZERO,
            since_us,
            requests_before: 0,
            came_by_interrupt: false,
            is_reached: config.requested() == Bytes::ZERO && config.plugged() == Bytes::ZERO,
            reported_delay: None,
            last_postponed: 0,
        }
    }
}

impl AttachedDevice {
    /// Starts a virtio-mem device, and puts it into its place.
    #[inline(never)]
    pub(crate) fn start<'p>(
        place: &'p mut Option<Self>,
        transport: DeviceTransport,
        interrupt: InterruptSource,
        port: Option<usize>,
        options: &Options,
        now_us: u64,
    ) -> Result<&'p mut Self, DeviceError> {
        let (memory, queue) = queue_memory(MemDevice::MEMORY_SIZE)?;
        let device = MemDevice::new(transport, memory).map_err(DeviceError::Init)?;
        let target = ResizeTarget::first(device.driver(), now_us);
        let memory = HotplugMemory::new(online_type(options.online), BUDGET);
        let attached = place.insert(AttachedDevice {
            device,
            memory,
            target,
            port,
            interrupt,
            zone: None,
            queue,
        });
        attached.device.set_leftover(match options.leftover {
            cmdline::Leftover::Adopt => Leftover::Adopt,
            cmdline::Leftover::Unplug => Leftover::UnplugAll,
        });
        if attached.interrupt.mode == InterruptMode::Polling {
            attached.device.suppress_interrupts();
        }
        Ok(attached)
    }

    pub(crate) fn driver(&self) -> &Driver {
        self.device.driver()
    }

    /// Returns the node of the device's memory.
    pub(crate) fn node(&self) -> u16 {
        self.driver().config().node().unwrap_or(0)
    }

    /// Returns whether the driver waits for memory that it failed to remove, and has failed again
    /// since the last call.
    pub(crate) fn take_failed_removal(&mut self) -> bool {
        let postponed = self.driver().statistics().postponed_operations;
        let is_new = core::mem::replace(&mut self.target.last_postponed, postponed) != postponed;
        is_new && matches!(self.driver().status(), Status::Pending(Pending::Memory(_)))
    }

    /// Returns the device's region.
    pub(crate) fn region(&self) -> PfnRange {
        self.driver().config().managed()
    }

    /// Returns whether the device may be removed: no memory is plugged or requested, and no request
    /// is outstanding.
    pub(crate) fn is_removable(&self) -> bool {
        !self.has_memory() && self.driver().status() == Status::Reached
    }

    /// Returns whether memory is plugged or requested. QEMU does not request the removal of such a
    /// device.
    pub(crate) fn has_memory(&self) -> bool {
        self.driver().plugged() != Bytes::ZERO || self.driver().config().requested() != Bytes::ZERO
    }

    /// Starts a new target if the requested size has changed. `plugged_before` and
    /// `requests_before` are the driver's values before the change, `since_us` is the time of the
    /// change.
    pub(crate) fn set_target(
        &mut self,
        since_us: u64,
        plugged_before: Bytes,
        requests_before: u64,
    ) {
        let size = self.driver().config().requested();
        if size != self.target.size {
            self.target = ResizeTarget {
                size,
                plugged_before,
                since_us,
                requests_before,
                came_by_interrupt: self.interrupt.is_pending,
                is_reached: false,
                reported_delay: None,
                last_postponed: self.target.last_postponed,
            };
        }
        self.interrupt.is_pending = false;
    }

    /// Queries whether the zone of the device's memory is contiguous, if memory was put online, or
    /// if less than `plugged` is plugged now, so that memory was removed.
    pub(crate) fn query_zone(&mut self, plugged: Bytes, engine: &mut Engine) {
        let range_online = engine.hooks.last_online.take();
        let zone =
            range_online.and_then(|range| ZoneWatch::of_range(range, LOW_END, &engine.hotplug));
        if zone.is_none() && self.driver().plugged() >= plugged {
            return;
        }
        if let Some(new_zone) = zone
            && !self.zone.as_ref().is_some_and(|zone| zone.is_same(&new_zone))
        {
            self.zone = Some(new_zone);
        }
        if let Some(zone) = &mut self.zone {
            zone.query(&engine.hotplug);
        }
    }

    /// Acknowledges an interrupt by a line, which may be shared. Returns whether this device had
    /// raised it.
    pub(crate) fn ack_interrupt(&mut self) -> bool {
        let raised = self.interrupt.mode.is_line() && self.device.ack_interrupt();
        self.interrupt.is_pending |= raised;
        raised
    }

    /// Returns an event with the device's configuration.
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
            features: config.features().bits(),
            transport: self.interrupt.transport,
            interrupts: self.interrupt.mode.name(),
        }
    }

    /// Resets the device in `place`, if there is one, and frees its queue.
    pub(crate) fn stop(place: &mut Option<Self>) {
        let Some(queue) = place.as_ref().map(|attached| attached.queue) else { return };
        *place = None;
        // SAFETY: `queue` was allocated when the device was started. Dropping the device has reset
        // it, so it does not access the frames any more, and freeing them cannot fail.
        must("virtio-mem", unsafe { FRAMES.fill_and_free_raw(queue) });
    }
}
