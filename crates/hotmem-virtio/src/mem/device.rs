//! The driver on a [`Transport`] of the virtio-drivers crate (PCI, MMIO).

use super::config::RawConfig;
use super::config_error::ConfigError;
use super::driver::{Driver, Step};
use super::features::Features;
use super::leftover::Leftover;
use super::memory::Memory;
use super::request::{Request, Response};
use super::status::Failure;
use crate::dma::DmaMemory;
use crate::handshake::{Agreed, HandshakeError, shake_hands};
use crate::queue::{Buffer, QueueError, SplitQueue};
use core::fmt;
use core::time::Duration;
use virtio_drivers::Error as TransportError;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

/// A virtio-mem device and its driver.
///
/// To be polled: when it interrupts, and when the time comes that the last poll returned.
#[derive(Debug)]
pub struct Device<T: Transport> {
    // First, so that the transport resets the device before the memory of its queue is given up.
    transport: T,
    queue: Queue,
    messages: DmaMemory,
    config: RawConfig,
    driver: Driver,
    queue_error: Option<QueueError>,
    transport_error: Option<TransportError>,
}

/// What to do after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The budget is used up: poll again, when it suits.
    Again,
    /// Nothing to do until this time, or until the device interrupts.
    WaitUntil(Duration),
    /// Nothing to do until the device interrupts.
    Idle,
    /// The device is left alone from now on. Its plugged memory stays usable.
    Failed(Failure),
}

/// The reason why there is no driver for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitError {
    /// No features were agreed on with it.
    Handshake(HandshakeError<Features>),
    /// Its queue has only this many descriptors.
    QueueSize(u32),
    /// The shared memory is less than [`Device::MEMORY_SIZE`] or not aligned to 16 bytes.
    Memory,
    /// The transport cannot read its configuration.
    Transport(TransportError),
    /// Its configuration changes all the time.
    ConfigUnsteady,
    /// Its configuration cannot be right.
    Config(ConfigError),
}

const REQUEST_QUEUE: u16 = 0;
/// One chain of two is all that is ever outstanding.
const QUEUE_SIZE: u32 = 8;
type Queue = SplitQueue<{ QUEUE_SIZE as usize }>;
/// Offsets in `messages`.
const REQUEST: usize = 0;
const RESPONSE: usize = 32;
const MESSAGES: usize = 64;
const REQUEST_BYTES: u32 = 24;
const RESPONSE_BYTES: u32 = 10;
const _: () = assert!(REQUEST_BYTES as usize == Request::SIZE);
const _: () = assert!(RESPONSE_BYTES as usize == Response::SIZE);
/// Reads of a configuration that does not hold still, before the last steady one has to do.
const CONFIG_READS: u32 = 8;
/// Steps in one poll after which the configuration is read again though no answer came.
const CONFIG_STEPS: u32 = 64;
/// Equal reads that count although the generation changes all the time.
const EQUAL_READS: u32 = 3;
/// When to look again at a configuration that does not hold still.
const UNSTEADY_WAIT: Duration = Duration::from_millis(10);

impl<T: Transport> Device<T> {
    /// Shared memory that the device needs, in bytes.
    pub const MEMORY_SIZE: usize = Queue::BYTES + MESSAGES;

    /// Starts the device: resets it (plugged memory stays plugged), negotiates its features, sets
    /// up its queue. Nothing is plugged or unplugged yet.
    ///
    /// # Errors
    /// Why there is no driver for this device. It is told so, and the transport is dropped.
    pub fn new(mut transport: T, memory: DmaMemory) -> Result<Device<T>, InitError> {
        let (queue, messages) = Queue::new(memory).ok_or(InitError::Memory)?;
        if messages.len() < MESSAGES {
            return Err(InitError::Memory);
        }
        let (config, driver) = negotiate(&mut transport)
            .inspect_err(|_| transport.set_status(DeviceStatus::FAILED))?;
        transport.queue_set(
            REQUEST_QUEUE,
            QUEUE_SIZE,
            queue.descriptors(),
            queue.driver_area(),
            queue.device_area(),
        );
        transport.finish_init();
        let (queue_error, transport_error) = (None, None);
        Ok(Device { transport, queue, messages, config, driver, queue_error, transport_error })
    }

    /// Sets what becomes of memory that is found plugged at the start: see
    /// [`Driver::set_leftover`]. To be called before the first poll.
    pub fn set_leftover(&mut self, leftover: Leftover) {
        self.driver.set_leftover(leftover);
    }

    /// Does what there is to do: takes the device's answer, reads its configuration, sends the
    /// next request, and so on, in at most `budget` steps of the driver.
    ///
    /// A step costs one call of [`Memory`]'s; each request, and every 64th step without one, about
    /// 20 reads of configuration space.
    pub fn poll<M: Memory>(&mut self, now: Duration, budget: u32, memory: &mut M) -> Progress {
        let mut steady = true;
        for step in 0..budget {
            let answer = self.take_answer();
            if answer.is_some() || step % CONFIG_STEPS == 0 {
                match steady_config(&self.transport, &self.config) {
                    Ok(config) => {
                        steady = config.is_some();
                        self.config = config.unwrap_or(self.config);
                    }
                    Err(error) => {
                        self.transport_error = Some(error);
                        let failure = self.driver.fail(now, Failure::ConfigSpace, memory);
                        return Progress::Failed(failure);
                    }
                }
            }
            let answer = answer.as_ref().map(|(bytes, len)| bytes.get(..*len).unwrap_or(bytes));
            let rest = match self.driver.step(now, &self.config, answer, memory) {
                Step::Send(request) => {
                    self.send(&request);
                    continue;
                }
                Step::Again => continue,
                Step::WaitUntil(until) => Progress::WaitUntil(until),
                Step::Idle => Progress::Idle,
                Step::Failed(failure) => return Progress::Failed(failure),
            };
            // There may be something to do that could not be read.
            let look_again = now.saturating_add(UNSTEADY_WAIT);
            return match rest {
                Progress::WaitUntil(until) if until < look_again => rest,
                _ if !steady => Progress::WaitUntil(look_again),
                _ => rest,
            };
        }
        Progress::Again
    }

    /// Tells the device that it need not interrupt when it has answered: for a kernel that polls. A
    /// change of its configuration interrupts all the same; only the transport can prevent that.
    pub fn suppress_interrupts(&mut self) {
        self.queue.suppress_interrupts();
    }

    /// Acknowledges the device's interrupt, so that the line is released, and returns whether
    /// this device had raised it. If so, poll it.
    pub fn ack_interrupt(&mut self) -> bool {
        !self.transport.ack_interrupt().is_empty()
    }

    /// Returns the state machine, for what it knows and counts.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns what the device did to its queue that it must not, if that is why it failed.
    #[must_use]
    pub fn queue_error(&self) -> Option<QueueError> {
        self.queue_error
    }

    /// Returns why its configuration space could not be accessed, if that is why it failed.
    #[must_use]
    pub fn transport_error(&self) -> Option<TransportError> {
        self.transport_error
    }

    fn send(&mut self, request: &Request) {
        self.messages.write(REQUEST, request.to_bytes());
        // What the device does not write is not an answer.
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
        // SAFETY: both buffers lie in `messages`, which belongs to this device and its driver
        // alone. They are written here only, and the driver has nothing sent while a request is
        // outstanding.
        #[allow(unsafe_code)]
        let pushed = unsafe { self.queue.push(&chain) };
        match pushed {
            Ok(_) if self.queue.wants_notification() => self.transport.notify(REQUEST_QUEUE),
            Ok(_) => {}
            Err(error) => self.queue_error = Some(error),
        }
    }

    /// Returns the bytes that the device used for its answer, if it has answered. A queue that it
    /// broke counts as an answer of no bytes.
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

/// From the reset to the features (3.1.1), and what the configuration says.
fn negotiate<T: Transport>(transport: &mut T) -> Result<(RawConfig, Driver), InitError> {
    let Agreed { features, .. } = shake_hands(transport, DeviceType::Memory, |_| Features::all())
        .map_err(InitError::Handshake)?;
    let descriptors = transport.max_queue_size(REQUEST_QUEUE);
    if descriptors < QUEUE_SIZE {
        return Err(InitError::QueueSize(descriptors));
    }
    let first = read_config(transport).map_err(InitError::Transport)?;
    let config = steady_config(transport, &first).map_err(InitError::Transport)?;
    let config = config.ok_or(InitError::ConfigUnsteady)?;
    let driver = Driver::new(&config, features).map_err(InitError::Config)?;
    Ok((config, driver))
}

/// Returns the configuration, read until it holds still; `None` if it does not. `last` is the last
/// one that did, and one equal read is enough to confirm it.
///
/// The generation alone is not believed (2.5.1): some devices never change it.
fn steady_config<T: Transport>(
    transport: &T,
    last: &RawConfig,
) -> Result<Option<RawConfig>, TransportError> {
    let mut previous = *last;
    let mut equal = 0;
    for _ in 0..CONFIG_READS {
        let before = transport.read_config_generation();
        let config = read_config(transport)?;
        let after = transport.read_config_generation();
        equal = if config == previous { equal + 1 } else { 0 };
        if equal >= EQUAL_READS || (equal > 0 && before == after) {
            return Ok(Some(config));
        }
        previous = config;
    }
    Ok(None)
}

fn read_config<T: Transport>(transport: &T) -> Result<RawConfig, TransportError> {
    let mut bytes = [0; RawConfig::SIZE];
    for (i, word) in bytes.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&transport.read_config_space::<u32>(4 * i)?.to_le_bytes());
    }
    Ok(RawConfig::from_bytes(&bytes))
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitError::Handshake(error) => error.fmt(f),
            InitError::QueueSize(size) => write!(f, "a queue of {size} descriptors is too small"),
            InitError::Memory => write!(f, "the shared memory is too small or not aligned"),
            InitError::Transport(error) => write!(f, "transport: {error}"),
            InitError::ConfigUnsteady => write!(f, "the configuration never holds still"),
            InitError::Config(error) => write!(f, "configuration: {error}"),
        }
    }
}

impl core::error::Error for InitError {}
