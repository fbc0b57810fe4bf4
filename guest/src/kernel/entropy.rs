//! Drives virtio-rng, the simplest virtio device, and makes one request for random bytes.
//!
//! The driver tests transports and interrupts that QEMU's virtio-mem does not support: MMIO and
//! MSI-X.

use super::device_error::DeviceError;
use super::fatal::must;
use super::memory::FRAMES;
use super::queue_memory::queue_memory;
use super::transport::{ConnectedDevice, DeviceTransport, InterruptMode};
use hotmem::{Bytes, PfnRange};
use hotmem_guest::event::Event;
use hotmem_guest::to_usize;
use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::queue::{Buffer, SplitQueue};
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

const QUEUE: u16 = 0;
const QUEUE_SIZE: u32 = 2;
type Queue = SplitQueue<{ QUEUE_SIZE as usize }>;
/// The number of requested bytes.
const ANSWER_BYTES: Bytes = Bytes(64);
const VERSION_1: u64 = 1 << 32;
/// The time after which the queue is read even if the device has not interrupted.
const TIMEOUT_US: u64 = 60_000_000;
/// The same time for a device that cannot interrupt.
const POLLED_TIMEOUT_US: u64 = 500_000;

/// A device with an outstanding request.
pub(crate) struct Entropy {
    transport: DeviceTransport,
    interrupt_mode: InterruptMode,
    /// The port of the device's hot-plug slot, if the device is in one.
    port: Option<usize>,
    queue: Queue,
    /// The buffer for the answer.
    _answer: DmaMemory,
    frames: PfnRange,
    /// The time at which the request was sent.
    sent_us: u64,
    /// Whether the device has interrupted.
    interrupted: bool,
}

impl Entropy {
    /// The device's type on a virtio transport.
    pub(crate) const DEVICE_TYPE: DeviceType = DeviceType::EntropySource;

    /// Starts the device and sends the request.
    pub(crate) fn ask(
        connected: ConnectedDevice,
        port: Option<usize>,
        now_us: u64,
    ) -> Result<Self, DeviceError> {
        let ConnectedDevice { mut transport, interrupt_mode } = connected;
        let (memory, frames) = queue_memory(Queue::BYTES + to_usize(ANSWER_BYTES.0))?;
        let (mut queue, answer) = Queue::new(memory).ok_or(DeviceError::Entropy("no queue"))?;
        if interrupt_mode == InterruptMode::Polling {
            queue.suppress_interrupts();
        }
        negotiate(&mut transport)?;
        let (descriptors, driver) = (queue.descriptors(), queue.driver_area());
        transport.queue_set(QUEUE, QUEUE_SIZE, descriptors, driver, queue.device_area());
        transport.finish_init();
        let buffer = Buffer {
            device_addr: answer.device_addr(),
            len: u32::try_from(ANSWER_BYTES.0).unwrap_or(0),
            device_writes: true,
        };
        // SAFETY: `answer` is shared with this device only, and is freed only after the device was
        // reset.
        let pushed = unsafe { queue.push(&[buffer]) };
        pushed.map_err(|_| DeviceError::Entropy("its queue accepts no request"))?;
        transport.notify(QUEUE);
        Ok(Entropy {
            transport,
            interrupt_mode,
            port,
            queue,
            _answer: answer,
            frames,
            sent_us: now_us,
            interrupted: false,
        })
    }

    /// Returns whether the device is in the slot of this port.
    pub(crate) fn is_in_slot(&self, port: usize) -> bool {
        self.port == Some(port)
    }

    /// Acknowledges an interrupt by a line, which may be shared. Returns whether this device had
    /// raised it.
    pub(crate) fn ack_interrupt(&mut self) -> bool {
        let raised = self.interrupt_mode.is_line() && !self.transport.ack_interrupt().is_empty();
        self.interrupted |= raised;
        raised
    }

    /// Records that the device has interrupted by its message.
    pub(crate) fn message_arrived(&mut self) {
        self.interrupted = true;
    }

    /// Returns an event if the device has answered.
    pub(crate) fn answer(&mut self, now_us: u64) -> Result<Option<Event<'static>>, DeviceError> {
        let us = now_us.saturating_sub(self.sent_us);
        let is_polled = self.interrupt_mode == InterruptMode::Polling;
        let timeout_us = if is_polled { POLLED_TIMEOUT_US } else { TIMEOUT_US };
        if !self.interrupted && us < timeout_us {
            return Ok(None);
        }
        let used = self.queue.pop();
        let used = used.map_err(|_| DeviceError::Entropy("its used ring is invalid"))?;
        Ok(used.map(|used| Event::Entropy {
            transport: self.transport.kind(),
            interrupts: self.interrupt_mode.name(),
            interrupted: self.interrupted,
            bytes: Bytes(used.written.into()),
            us,
        }))
    }

    /// Resets the device, and frees its memory.
    pub(crate) fn stop(self) {
        drop(self.transport);
        // SAFETY: `self.frames` were allocated when the device was started. Dropping the transport
        // has reset the device, so it does not access the frames any more, and freeing them cannot
        // fail.
        must("virtio-rng", unsafe { FRAMES.fill_and_free_raw(self.frames) });
    }
}

/// Resets the device and negotiates features. Sets the bits of the status one by one, in the order
/// of virtio 1.3, 3.1.1, because a device may refuse a write that sets two of them.
fn negotiate(transport: &mut DeviceTransport) -> Result<(), DeviceError> {
    transport.set_status(DeviceStatus::empty());
    transport.set_status(DeviceStatus::ACKNOWLEDGE);
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
    if transport.read_device_features() & VERSION_1 == 0 {
        return Err(DeviceError::Entropy("it does not offer VERSION_1"));
    }
    transport.write_driver_features(VERSION_1);
    transport
        .set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK);
    if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        return Err(DeviceError::Entropy(
            "it refuses VERSION_1 without ACCESS_PLATFORM (an IOMMU)",
        ));
    }
    if transport.max_queue_size(QUEUE) < QUEUE_SIZE {
        return Err(DeviceError::Entropy("its queue is too small"));
    }
    Ok(())
}
