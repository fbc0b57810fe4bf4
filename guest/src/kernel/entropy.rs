//! The driver of virtio-rng, the simplest virtio device, which is asked once for some bytes.
//!
//! It tests transports and interrupts that QEMU's virtio-mem does not support: MMIO and MSI-X.

use super::device_error::DeviceError;
use super::memory::FRAMES;
use super::queue_memory::queue_memory;
use super::transport::{Connected, Wired, Wiring};
use hotmem::{Bytes, PfnRange};
use hotmem_guest::event::Event;
use hotmem_guest::to_usize;
use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::queue::{Buffer, SplitQueue};
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

const QUEUE: u16 = 0;
const QUEUE_SIZE: u32 = 2;
type Queue = SplitQueue<{ QUEUE_SIZE as usize }>;
/// The number of bytes to ask for.
const ANSWER: Bytes = Bytes(64);
const VERSION_1: u64 = 1 << 32;
/// The queue is read when the device interrupts, or after this time. A device that can interrupt
/// gets more time.
const PATIENCE_US: u64 = 60_000_000;
const SILENT_PATIENCE_US: u64 = 500_000;

/// A device with an outstanding request.
pub(crate) struct Entropy {
    transport: Wired,
    wiring: Wiring,
    queue: Queue,
    /// The buffer for the answer.
    _answer: DmaMemory,
    frames: PfnRange,
    since_us: u64,
    /// Whether it has interrupted.
    interrupted: bool,
}

impl Entropy {
    /// Its device type on a virtio transport.
    pub(crate) const DEVICE_TYPE: DeviceType = DeviceType::EntropySource;

    /// Starts the device and sends the request.
    pub(crate) fn ask(connected: Connected, now_us: u64) -> Result<Self, DeviceError> {
        let Connected { mut transport, wiring } = connected;
        let (memory, frames) = queue_memory(Queue::BYTES + to_usize(ANSWER.0))?;
        let (mut queue, answer) = Queue::new(memory).ok_or(DeviceError::Entropy("no queue"))?;
        if wiring == Wiring::Silent {
            queue.suppress_interrupts();
        }
        negotiate(&mut transport)?;
        let (descriptors, driver) = (queue.descriptors(), queue.driver_area());
        transport.queue_set(QUEUE, QUEUE_SIZE, descriptors, driver, queue.device_area());
        transport.finish_init();
        let buffer = Buffer {
            device_addr: answer.device_addr(),
            len: u32::try_from(ANSWER.0).unwrap_or(0),
            device_writes: true,
        };
        // SAFETY: the buffer is shared with this device only, and is freed after the device was
        // reset.
        let asked = unsafe { queue.push(&[buffer]) };
        asked.map_err(|_| DeviceError::Entropy("its queue accepts no request"))?;
        transport.notify(QUEUE);
        let since_us = now_us;
        Ok(Entropy {
            transport,
            wiring,
            queue,
            _answer: answer,
            frames,
            since_us,
            interrupted: false,
        })
    }

    /// Reads from the device whether it raised the interrupt, because lines may be shared.
    pub(crate) fn ack_interrupt(&mut self) -> bool {
        let raised = self.wiring.is_line() && !self.transport.ack_interrupt().is_empty();
        self.interrupted |= raised;
        raised
    }

    /// Records an interrupt by its own message.
    pub(crate) fn message_arrived(&mut self) {
        self.interrupted = true;
    }

    /// Returns an event once it has answered.
    pub(crate) fn answer(&mut self, now_us: u64) -> Result<Option<Event<'static>>, DeviceError> {
        let us = now_us.saturating_sub(self.since_us);
        let is_silent = self.wiring == Wiring::Silent;
        let patience_us = if is_silent { SILENT_PATIENCE_US } else { PATIENCE_US };
        if !self.interrupted && us < patience_us {
            return Ok(None);
        }
        let used = self.queue.pop();
        let used = used.map_err(|_| DeviceError::Entropy("its used ring is invalid"))?;
        Ok(used.map(|used| Event::Entropy {
            transport: self.transport.kind(),
            interrupts: self.wiring.name(),
            interrupted: self.interrupted,
            bytes: Bytes(used.written.into()),
            us,
        }))
    }

    /// Resets the device, and frees its memory.
    pub(crate) fn stop(self) {
        drop(self.transport);
        // SAFETY: the frames were allocated when the device was started, and it is reset, so this
        // cannot fail.
        let _ = unsafe { FRAMES.free_raw_filled(self.frames) };
    }
}

/// Resets the device and negotiates features (virtio 1.3, 3.1.1).
fn negotiate(transport: &mut Wired) -> Result<(), DeviceError> {
    transport.set_status(DeviceStatus::empty());
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
    if transport.read_device_features() & VERSION_1 == 0 {
        return Err(DeviceError::Entropy("it does not offer VERSION_1"));
    }
    transport.write_driver_features(VERSION_1);
    transport
        .set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK);
    if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        return Err(DeviceError::Entropy("it refuses VERSION_1"));
    }
    if transport.max_queue_size(QUEUE) < QUEUE_SIZE {
        return Err(DeviceError::Entropy("its queue is too small"));
    }
    Ok(())
}
