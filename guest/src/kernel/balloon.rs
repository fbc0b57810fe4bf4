//! The virtio-balloon device, which returns free memory to the host.
//!
//! [`KernelHooks`](super::hooks::KernelHooks) holds the [`BalloonMemory`], because the engine calls
//! the hooks to migrate memory.

use super::device_error::DeviceError;
use super::fatal::{give_up, must};
use super::memory::FRAMES;
use super::queue_memory::queue_memory;
use super::this_cpu::ThisCpu;
use super::transport::{ConnectedDevice, DeviceTransport, InterruptMode};
use core::time::Duration;
use hotmem::report::ReporterSettings;
use hotmem::{Bytes, PfnRange};
use hotmem_guest::cmdline::{Options, ZeroMarks};
use hotmem_guest::event::Event;
use hotmem_virtio::balloon::{
    BalloonOptions, Counters, Device, Driver, EngineMemory, Failure, Features, InitError, Memory,
    Pending, Poison, Progress, Queue, Status,
};
use hotmem_virtio::dma::DmaMemory;
use virtio_drivers::transport::DeviceType;

/// The kernel's memory that is in the balloon.
pub(crate) type BalloonMemory = EngineMemory<'static, ThisCpu>;

/// The device, and the state that was last reported to the host program.
pub(crate) struct Balloon {
    device: Device<DeviceTransport>,
    /// The name of the device's transport.
    transport: &'static str,
    interrupt_mode: InterruptMode,
    /// The port of the device's hot-plug slot, if the device is in one.
    port: Option<usize>,
    target_frames: u64,
    /// Whether the target was reported as reached.
    is_reached: bool,
    reported_delay: Option<Pending>,
    counters: Counters,
    /// The frames of the queues, which belong to the device until it is stopped.
    queues: PfnRange,
}

/// The memory that the kernel keeps, whatever the host requests.
const MIN_FREE: Bytes = Bytes::mib(32);
/// The number of steps of the driver in one poll, before other devices are polled again.
const STEPS_PER_POLL: u32 = 64;

impl Balloon {
    /// The device's type on a virtio transport.
    pub(crate) const DEVICE_TYPE: DeviceType = DeviceType::MemoryBalloon;

    /// Starts the device, and puts its driver and its memory into their places.
    pub(crate) fn start<'p>(
        connected: ConnectedDevice,
        port: Option<usize>,
        options: &Options,
        place: &'p mut Option<Self>,
        memory_place: &mut Option<BalloonMemory>,
    ) -> Result<&'p Self, DeviceError> {
        let ConnectedDevice { transport, interrupt_mode } = connected;
        let transport_name = transport.kind();
        let (shared, queues) = queue_memory(Device::<DeviceTransport>::MEMORY_SIZE)?;
        let mut features = Features::all().usable_with(&FRAMES);
        features.set(Features::PAGE_REPORTING, options.reports);
        features.set(Features::DEVICE_INIT_REPORTED, options.zero != ZeroMarks::Off);
        let poison = options.poison.map_or(Poison::None, Poison::Filled);
        let balloon_options =
            BalloonOptions { features, poison, answer_timeout: Driver::DEFAULT_ANSWER_TIMEOUT };
        let balloon = Self::start_device(transport, shared, balloon_options, queues, place)?;
        (balloon.transport, balloon.port) = (transport_name, port);
        balloon.interrupt_mode = interrupt_mode;
        if interrupt_mode == InterruptMode::Polling {
            Queue::ALL.into_iter().for_each(|queue| balloon.device.suppress_interrupts(queue));
        }
        Self::start_memory(balloon.driver().features(), poison, options, memory_place)?;
        Ok(balloon)
    }

    /// Puts the kernel's memory for a driver with these features into its place.
    #[inline(never)]
    fn start_memory(
        features: Features,
        poison: Poison,
        options: &Options,
        place: &mut Option<BalloonMemory>,
    ) -> Result<(), DeviceError> {
        let memory = place.insert(EngineMemory::new(&FRAMES, MIN_FREE.frames()));
        // An idle kernel does not need its free memory, so all of it may be reported.
        let rate = options.report_rate;
        let settings = ReporterSettings {
            keep_free: Bytes::ZERO,
            max_per_second: rate,
            ..ReporterSettings::default()
        };
        if options.zero == ZeroMarks::Reported {
            memory.assume_initialised_reports();
        }
        memory.report(features, poison, settings).map_err(DeviceError::Reporter)
    }

    /// Starts a device, and puts it into its place.
    #[inline(never)]
    fn start_device(
        transport: DeviceTransport,
        shared: DmaMemory,
        options: BalloonOptions,
        queues: PfnRange,
        place: &mut Option<Self>,
    ) -> Result<&mut Self, DeviceError> {
        let device = Device::new(transport, shared, options);
        Self::put(place, device, queues).map_err(DeviceError::Balloon)
    }

    /// Puts a device that has started into its place. The device takes a quarter of the stack, so
    /// this function alone moves it.
    #[inline(never)]
    fn put(
        place: &mut Option<Self>,
        device: Result<Device<DeviceTransport>, InitError>,
        queues: PfnRange,
    ) -> Result<&mut Self, InitError> {
        match device {
            Ok(device) => Ok(place.insert(Balloon {
                device,
                transport: "",
                interrupt_mode: InterruptMode::Polling,
                port: None,
                target_frames: 0,
                is_reached: true,
                reported_delay: None,
                counters: Counters::default(),
                queues,
            })),
            Err(error) => Err(error),
        }
    }

    /// Returns an event with the negotiated features.
    pub(crate) fn event(&self) -> Event<'static> {
        Event::Balloon {
            transport: self.transport,
            interrupts: self.interrupt_mode.name(),
            features: self.driver().features().bits(),
            reports_queue: self.device.queues().number(Queue::Reports),
        }
    }

    /// Returns whether the device is in the slot of this port.
    pub(crate) fn is_in_slot(&self, port: usize) -> bool {
        self.port == Some(port)
    }

    /// Resets the device in `place`, takes all memory of the balloon back, and frees the queues.
    pub(crate) fn stop(place: &mut Option<Self>, memory: &mut BalloonMemory) {
        let Some(balloon) = place else { return };
        if !balloon.device.stop_in_place(memory) {
            give_up("virtio-balloon: its reset does not complete");
        }
        let queues = balloon.queues;
        *place = None;
        // SAFETY: the queues were allocated when the device was started. The device was reset, so
        // it does not access the frames any more, and freeing them cannot fail.
        must("virtio-balloon", unsafe { FRAMES.fill_and_free_raw(queues) });
    }

    /// Acknowledges an interrupt by a line, which may be shared. Returns whether this device had
    /// raised it.
    pub(crate) fn ack_interrupt(&mut self) -> bool {
        self.interrupt_mode.is_line() && self.device.ack_interrupt()
    }

    /// Runs some steps of the driver.
    pub(crate) fn step(
        &mut self,
        now: Duration,
        memory: &mut BalloonMemory,
    ) -> Result<Progress, Failure> {
        match self.device.poll(now, STEPS_PER_POLL, memory) {
            Progress::Ready(failure) => Err(failure),
            progress => Ok(progress),
        }
    }

    /// Requests `frames` frames back from the balloon, because the kernel has run out of memory. 0
    /// ends the request. Returns whether any frames were returned or will be returned.
    pub(crate) fn request_back(&self, frames: u64, memory: &mut BalloonMemory) -> bool {
        let hinted = memory.hinted_frames();
        memory.need(frames);
        let may_deflate = self.driver().features().contains(Features::DEFLATE_ON_OOM);
        let will_return = may_deflate && frames > 0 && memory.inflated_frames() > 0;
        if !will_return {
            memory.need(0);
        }
        will_return || memory.hinted_frames() < hinted
    }

    /// Returns an event if the balloon's state has changed since the last call. Reported memory is
    /// summed up until the driver is `idle`.
    pub(crate) fn next_event(&mut self, idle: bool) -> Option<Event<'_>> {
        let (target, inflated) = (self.driver().target(), self.driver().inflated_frames());
        if target != self.target_frames {
            (self.target_frames, self.is_reached) = (target, false);
        }
        match self.driver().status() {
            Status::Settled if !self.is_reached => {
                (self.is_reached, self.reported_delay) = (true, None);
                return Some(Event::Inflated {
                    target: bytes_of(target),
                    held: bytes_of(inflated),
                });
            }
            Status::Pending(reason) if self.reported_delay != Some(reason) => {
                self.is_reached = false;
                let why = self.reported_delay.insert(reason);
                let (target, held) = (bytes_of(target), bytes_of(inflated));
                return Some(Event::InflationPending { target, held, why });
            }
            _ => {}
        }
        let counters = *self.driver().counters();
        if !idle || counters == self.counters {
            return None;
        }
        let before = core::mem::replace(&mut self.counters, counters);
        let (reported, hinted) = (
            counters.reported_frames - before.reported_frames,
            counters.hinted_frames - before.hinted_frames,
        );
        if reported + hinted == 0 {
            return None;
        }
        Some(Event::Reported {
            bytes: bytes_of(reported),
            requests: counters.reports - before.reports,
            hinted: bytes_of(hinted),
        })
    }

    /// Returns whether the balloon has the size that the host requests.
    pub(crate) fn has_requested_size(&self) -> bool {
        self.is_reached && self.driver().target() == self.target_frames
    }

    /// Returns whether the device takes reports of free memory.
    pub(crate) fn takes_reports(&self) -> bool {
        self.driver().features().contains(Features::PAGE_REPORTING)
    }

    /// Returns how much memory was reported in requests that the device has answered, and the number
    /// of the requests.
    pub(crate) fn answered_reports(&self) -> (Bytes, u64) {
        let counters = self.driver().counters();
        (bytes_of(counters.reported_frames), counters.reports)
    }

    fn driver(&self) -> &Driver {
        self.device.driver()
    }
}

/// Returns whether the balloon is returning memory because the kernel has run out of it.
pub(crate) fn is_returning_memory(memory: &BalloonMemory) -> bool {
    memory.deflate_request().needed_frames > 0 && memory.inflated_frames() > 0
}

fn bytes_of(frames: u64) -> Bytes {
    Bytes(frames * hotmem::geometry::FRAME_SIZE)
}
