//! Runs the driver on a [`Transport`] of the virtio-drivers crate (PCI, MMIO).

use super::config::RawConfig;
use super::config_error::ConfigError;
use super::driver::{Driver, Step};
use super::features::Features;
use super::leftover::Leftover;
use super::memory::Memory;
use super::request::{Request, Response};
use super::status::Failure;
use crate::barrier::order_reads;
use crate::dma::DmaMemory;
use crate::handshake::{
    HandshakeError, NegotiatedFeatures, is_running, reset, set_failed, set_running, shake_hands,
};
use crate::queue::{Buffer, QueueError, SplitQueue};
use core::fmt;
use core::time::Duration;
use virtio_drivers::Error as TransportError;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

/// A virtio-mem device and its driver.
///
/// Poll the device when it interrupts, and at the time that the last poll returned.
#[derive(Debug)]
pub struct Device<T: Transport> {
    // The transport is the first field, so that dropping it resets the device before the memory of
    // the queue is freed.
    transport: T,
    queue: Queue,
    messages: DmaMemory,
    config: RawConfig,
    driver: Driver,
    /// Whether the device was started, and the last attempt to start it again has not failed.
    is_started: bool,
    queue_error: Option<QueueError>,
    transport_error: Option<TransportError>,
}

/// The progress of a device. It is ready only if the driver has stopped because of a failure. If it
/// is pending until a time, or idle, poll the device at that time, or earlier if the device
/// interrupts.
pub type Progress = hotmem::Progress<Failure, Duration>;

/// The reason why a device cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitError {
    /// The feature negotiation failed.
    Handshake(HandshakeError<Features>),
    /// The queue of the device has only this number of descriptors, which is too few.
    QueueSize(u32),
    /// The shared memory is less than [`Device::MEMORY_SIZE`] or not aligned to 16 bytes.
    SharedMemory,
    /// The transport cannot read the configuration of the device.
    Transport(TransportError),
    /// The configuration of the device changes continuously.
    ConfigUnsteady,
    /// The configuration of the device is invalid.
    Config(ConfigError),
    /// The device does not run after its start. This is its status.
    NotRunning(DeviceStatus),
}

const REQUEST_QUEUE: u16 = 0;
/// At most one chain of two descriptors is outstanding.
const QUEUE_SIZE: u32 = 8;
type Queue = SplitQueue<{ QUEUE_SIZE as usize }>;
/// The offsets of the request and of the response in `messages`, and the size of `messages`.
const REQUEST: usize = 0;
const RESPONSE: usize = 32;
const MESSAGES_SIZE: usize = 64;
const REQUEST_BYTES: u32 = 24;
const RESPONSE_BYTES: u32 = 10;
const _: () = assert!(REQUEST_BYTES as usize == Request::SIZE);
const _: () = assert!(RESPONSE_BYTES as usize == Response::SIZE);
/// The number of attempts to read a consistent configuration. After them the last consistent
/// configuration is used.
const MAX_CONFIG_READS: u32 = 8;
/// The number of steps in one poll after which the configuration is read again even without an
/// answer.
const STEPS_PER_CONFIG_READ: u32 = 64;
/// The number of consecutive equal reads that make a configuration count as consistent although the
/// generation keeps changing.
const MIN_EQUAL_READS: u32 = 3;
/// The delay before a configuration that keeps changing is read again.
const UNSTEADY_WAIT: Duration = Duration::from_millis(10);

impl<T: Transport> Device<T> {
    /// The size in bytes of the shared memory that the device needs.
    pub const MEMORY_SIZE: usize = Queue::BYTES + MESSAGES_SIZE;

    /// Starts the device: resets it, negotiates features, and sets up its queue. The reset leaves
    /// plugged memory plugged. `new` does not plug or unplug memory yet.
    ///
    /// # Errors
    /// The reason why the device cannot be driven. The device's status is set to FAILED, and the
    /// transport is dropped.
    pub fn new(mut transport: T, memory: DmaMemory) -> Result<Device<T>, InitError> {
        let (mut queue, messages) = Queue::new(memory).ok_or(InitError::SharedMemory)?;
        if messages.len() < MESSAGES_SIZE {
            return Err(InitError::SharedMemory);
        }
        let (config, driver) = start(&mut transport, &mut queue)?;
        Ok(Device {
            transport,
            queue,
            messages,
            config,
            driver,
            is_started: true,
            queue_error: None,
            transport_error: None,
        })
    }

    /// Starts the device again, for example after it has failed. Plugged memory stays plugged, and
    /// the driver finds out which blocks are plugged. The counters of the driver begin again at 0.
    ///
    /// # Errors
    /// The reason why the device cannot be driven. The device's status is set to FAILED. The driver
    /// sends no request any more, and the next poll fails, unless a later restart succeeds.
    pub fn restart(&mut self) -> Result<(), InitError> {
        let leftover = self.driver.leftover;
        self.is_started = false;
        let (config, driver) = start(&mut self.transport, &mut self.queue)?;
        self.is_started = true;
        (self.config, self.driver) = (config, driver);
        (self.queue_error, self.transport_error) = (None, None);
        self.set_leftover(leftover);
        Ok(())
    }

    /// Stops the device: resets it, so that it accesses no shared memory any more, and drops the
    /// transport. Plugged memory stays plugged, and memory in transition stays so until a driver
    /// begins again with the same memory manager.
    ///
    /// # Errors
    /// Returns the device if its reset does not complete: it may still write to the shared memory. It
    /// sends no request any more, and fails at the next poll.
    #[expect(clippy::result_large_err, reason = "the error is the device, which the caller had")]
    pub fn stop(mut self) -> Result<(), Device<T>> {
        if reset(&mut self.transport) {
            return Ok(());
        }
        self.is_started = false;
        Err(self)
    }

    /// Sets how to treat memory that is already plugged at the start: see [`Driver::set_leftover`].
    /// Call it before the first poll.
    pub fn set_leftover(&mut self, leftover: Leftover) {
        self.driver.set_leftover(leftover);
    }

    /// Runs at most `budget` steps of the driver. For each step it takes the device's answer, reads
    /// the configuration if necessary, and sends the next request.
    ///
    /// A step costs one call of [`Memory`]. Each answer, and every 64th step without an answer,
    /// costs about 20 reads of configuration space.
    pub fn poll<M: Memory>(&mut self, now: Duration, budget: u32, memory: &mut M) -> Progress {
        let mut is_steady = true;
        for step in 0..budget {
            if !self.is_started {
                return Progress::Ready(self.driver.fail(now, Failure::NotRunning, memory));
            }
            let answer = self.take_answer();
            if answer.is_some() || step % STEPS_PER_CONFIG_READ == 0 {
                match self.observe() {
                    Ok(steady) => is_steady = steady,
                    // An answer of a device that has failed is not relied on (2.1.2).
                    Err(failure) => {
                        return Progress::Ready(self.driver.fail(now, failure, memory));
                    }
                }
            }
            let answer = answer.as_ref().map(|(bytes, len)| bytes.get(..*len).unwrap_or(bytes));
            let progress = match self.driver.step(now, &self.config, answer, memory) {
                Step::Ready(Ok(request)) => {
                    self.send(&request);
                    continue;
                }
                Step::Working => continue,
                Step::Pending(until) => Progress::Pending(until),
                Step::Idle => Progress::Idle,
                Step::Ready(Err(failure)) => return Progress::Ready(failure),
            };
            // The configuration that could not be read may contain a new requested size, so read it
            // again soon.
            let next_read = now.saturating_add(UNSTEADY_WAIT);
            return match progress {
                Progress::Pending(until) if until < next_read => progress,
                _ if !is_steady => Progress::Pending(next_read),
                _ => progress,
            };
        }
        Progress::Working
    }

    /// Asks the device not to interrupt when it has answered, for a kernel that polls. The device
    /// still interrupts when its configuration changes; only the transport can prevent that.
    pub fn suppress_interrupts(&mut self) {
        self.queue.suppress_interrupts();
    }

    /// Acknowledges the device's interrupt, so that the device releases the interrupt line. Returns
    /// whether this device had interrupted. If so, poll the device.
    pub fn ack_interrupt(&mut self) -> bool {
        let causes = self.transport.ack_interrupt();
        // Orders the read of the register before the reads of the queues. Otherwise, a read that the
        // processor made early would miss an answer whose interrupt is acknowledged now.
        order_reads();
        !causes.is_empty()
    }

    /// Returns the driver, whose status and counters can be read.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the queue error that made the device fail, or `None`.
    #[must_use]
    pub fn queue_error(&self) -> Option<QueueError> {
        self.queue_error
    }

    /// Returns the transport error that made the device fail, or `None`.
    #[must_use]
    pub fn transport_error(&self) -> Option<TransportError> {
        self.transport_error
    }

    /// Checks that the device still runs, and reads its configuration. Returns whether the
    /// configuration is consistent. If not, the last consistent one stays valid.
    fn observe(&mut self) -> Result<bool, Failure> {
        if !is_running(self.transport.get_status()) {
            return Err(Failure::NotRunning);
        }
        match steady_config(&self.transport, &self.config) {
            Ok(config) => {
                self.config = config.unwrap_or(self.config);
                Ok(config.is_some())
            }
            Err(error) => {
                self.transport_error = Some(error);
                Err(Failure::ConfigSpace)
            }
        }
    }

    fn send(&mut self, request: &Request) {
        self.messages.write(REQUEST, request.to_bytes());
        // Fill the buffer with bytes that are not a valid response, so that bytes that the device
        // does not write do not look like an answer.
        self.messages.write(RESPONSE, [0xff; Response::SIZE]);
        let chain = [
            Buffer {
                device_addr: self.messages.device_addr() + REQUEST as u64,
                len: REQUEST_BYTES,
                device_writes: false,
            },
            Buffer {
                device_addr: self.messages.device_addr() + RESPONSE as u64,
                len: RESPONSE_BYTES,
                device_writes: true,
            },
        ];
        // SAFETY: both buffers lie in `messages`, which only this device and its driver use. Only
        // `send` writes the buffers, and the driver sends nothing while a request is outstanding.
        #[allow(unsafe_code)]
        let pushed = unsafe { self.queue.push(&chain) };
        match pushed {
            Ok(_) if self.queue.wants_notification() => self.transport.notify(REQUEST_QUEUE),
            Ok(_) => {}
            Err(error) => self.queue_error = Some(error),
        }
    }

    /// Returns the bytes of the device's answer, if it has answered. A corrupted queue counts as an
    /// answer of no bytes.
    fn take_answer(&mut self) -> Option<([u8; Response::SIZE], usize)> {
        if self.queue_error.is_none() {
            match self.queue.pop() {
                Ok(None) => return None,
                Ok(Some(used)) => {
                    return Some((self.messages.read(RESPONSE), used.written as usize));
                }
                Err(error) => self.queue_error = Some(error),
            }
        }
        Some(([0; Response::SIZE], 0))
    }
}

/// Resets the device, negotiates features, reads the configuration, sets up the queue, and sets the
/// device running (3.1.1). If one of these steps fails, sets the device's status to FAILED.
fn start<T: Transport>(
    transport: &mut T,
    queue: &mut Queue,
) -> Result<(RawConfig, Driver), InitError> {
    try_to_start(transport, queue).inspect_err(|_| set_failed(transport))
}

fn try_to_start<T: Transport>(
    transport: &mut T,
    queue: &mut Queue,
) -> Result<(RawConfig, Driver), InitError> {
    let NegotiatedFeatures { features, .. } =
        shake_hands(transport, DeviceType::Memory, |_| Features::all())
            .map_err(InitError::Handshake)?;
    let descriptors = transport.max_queue_size(REQUEST_QUEUE);
    if descriptors < QUEUE_SIZE {
        return Err(InitError::QueueSize(descriptors));
    }
    let first = read_config(transport).map_err(InitError::Transport)?;
    let config = steady_config(transport, &first).map_err(InitError::Transport)?;
    let config = config.ok_or(InitError::ConfigUnsteady)?;
    let driver = Driver::new(&config, features).map_err(InitError::Config)?;
    queue.reset(QUEUE_SIZE as usize);
    transport.queue_set(
        REQUEST_QUEUE,
        QUEUE_SIZE,
        queue.descriptors(),
        queue.driver_area(),
        queue.device_area(),
    );
    set_running(transport).map_err(InitError::NotRunning)?;
    Ok((config, driver))
}

/// Reads the configuration until it is consistent. Returns `None` if it keeps changing. `last` is
/// the last consistent configuration. If the first read equals `last` and the generation is stable,
/// no further read is needed.
///
/// A stable generation (2.5.1) alone is not enough, because some devices never change the
/// generation.
fn steady_config<T: Transport>(
    transport: &T,
    last: &RawConfig,
) -> Result<Option<RawConfig>, TransportError> {
    let mut previous = *last;
    let mut equal_reads = 0;
    for _ in 0..MAX_CONFIG_READS {
        let before = transport.read_config_generation();
        let config = read_config(transport)?;
        let after = transport.read_config_generation();
        equal_reads = if config == previous { equal_reads + 1 } else { 0 };
        if equal_reads >= MIN_EQUAL_READS || (equal_reads > 0 && before == after) {
            return Ok(Some(config));
        }
        previous = config;
    }
    Ok(None)
}

/// Reads the configuration by accesses of the specified width: `node_id` has 2 bytes, and the other
/// fields are read by halves of 4 bytes (4.1.3.1, 4.2.2.2).
fn read_config<T: Transport>(transport: &T) -> Result<RawConfig, TransportError> {
    let mut bytes = [0; RawConfig::SIZE];
    let (before, node, after) = (0..8, 8..10, 16..RawConfig::SIZE);
    for offset in before.chain(after).step_by(4) {
        let word = transport.read_config_space::<u32>(offset)?;
        bytes[offset..offset + 4].copy_from_slice(&word.to_le_bytes());
    }
    let node_id = transport.read_config_space::<u16>(node.start)?;
    bytes[node].copy_from_slice(&node_id.to_le_bytes());
    Ok(RawConfig::from_bytes(&bytes))
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitError::Handshake(error) => error.fmt(f),
            InitError::QueueSize(size) => {
                write!(f, "the queue has only {size} descriptors, which is too few")
            }
            InitError::SharedMemory => {
                write!(f, "the shared memory is too small, or not aligned to 16 bytes")
            }
            InitError::Transport(error) => {
                write!(f, "the transport cannot read the configuration: {error}")
            }
            InitError::ConfigUnsteady => write!(f, "the configuration changes continuously"),
            InitError::Config(error) => write!(f, "the configuration is invalid: {error}"),
            InitError::NotRunning(status) => {
                write!(f, "the device does not run after its start: its status is {status:?}")
            }
        }
    }
}

impl core::error::Error for InitError {}
