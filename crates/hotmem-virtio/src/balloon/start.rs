//! Starts a device: resets it, negotiates features, finds its queues and reads its configuration.

use super::config::RawConfig;
use super::features::{Features, Poison};
use super::in_flight::DeviceLimits;
use super::message::Ranges;
use super::queues::{Queue, QueueMissing, Queues};
use crate::handshake::{HandshakeError, NegotiatedFeatures, shake_hands};
use crate::queue::QueueFeatures;
use core::fmt;
use core::time::Duration;
use virtio_drivers::Error as TransportError;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

/// The number of descriptors of each queue except the queue for reports.
pub(super) const SHORT_QUEUE_SIZE: u32 = 2;

/// The kernel's options for the device.
#[derive(Clone, Copy, Debug)]
pub struct BalloonOptions {
    /// The features to use, if they are offered. The features of earlier queues are negotiated as
    /// well ([`Features::with_earlier_queues`]). If statistics are among them, those that
    /// [`Memory::statistics`](super::Memory::statistics) gives are sent. If hints are
    /// among them, each round of hints ends without one.
    pub features: Features,
    /// What the kernel writes to free memory.
    pub poison: Poison,
    /// The time that the device may take to answer before it is reset, for example
    /// [`DEFAULT_ANSWER_TIMEOUT`](super::Driver::DEFAULT_ANSWER_TIMEOUT).
    pub answer_timeout: Duration,
}

/// The reason why a device cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitError {
    /// The feature negotiation failed.
    Handshake(HandshakeError<Features>),
    /// The device lacks a queue.
    Queue(QueueMissing),
    /// This queue has only this number of descriptors, which is too few. The queue for reports
    /// works with any number.
    QueueSize(Queue, u32),
    /// The shared memory is smaller than [`Device::MEMORY_SIZE`](super::Device::MEMORY_SIZE), or not
    /// aligned to 16 bytes.
    SharedMemory,
    /// The transport cannot access the configuration of the device.
    Transport(TransportError),
    /// The device does not run after its start. This is its status.
    NotRunning(DeviceStatus),
}

/// The result of a negotiation.
pub(super) struct Negotiated {
    pub(super) features: Features,
    pub(super) queue_features: QueueFeatures,
    pub(super) numbers: Queues,
    pub(super) config: RawConfig,
    pub(super) limits: DeviceLimits,
}

impl Negotiated {
    /// Returns the number of a queue, or `None` if the queue's feature is not accepted.
    pub(super) fn accepted_number(&self, queue: Queue) -> Option<u16> {
        self.numbers.number(queue).filter(|_| self.features.contains(queue.feature()))
    }
}

/// Resets the device, negotiates features (virtio 1.3, 3.1.1), and reads the configuration.
pub(super) fn negotiate<T: Transport>(
    transport: &mut T,
    options: BalloonOptions,
) -> Result<Negotiated, InitError> {
    let NegotiatedFeatures { offered_features: offered, features, queue_features } =
        shake_hands(transport, DeviceType::MemoryBalloon, |offered| {
            let used = Features::accepted(offered, options.features, options.poison);
            used.with_earlier_queues(offered)
        })
        .map_err(InitError::Handshake)?;
    let numbers = Queues::find(offered, features, |number| transport.max_queue_size(number) > 0)
        .map_err(InitError::Queue)?;
    let config = read_config(transport, features).map_err(InitError::Transport)?;
    let mut limits = DeviceLimits::with_answer_timeout(options.answer_timeout);
    limits.allows_hints = options.features.contains(Features::FREE_PAGE_HINT);
    let mut negotiated = Negotiated { features, queue_features, numbers, config, limits };
    for queue in Queue::ALL {
        let Some(number) = negotiated.accepted_number(queue) else { continue };
        let size = transport.max_queue_size(number);
        if queue == Queue::Reports {
            let ranges = usize::try_from(size.max(1)).unwrap_or(usize::MAX).min(Ranges::MAX_LEN);
            // The queue rounds the number of descriptors down to a power of two, so limit the
            // ranges likewise.
            negotiated.limits.max_report_ranges = 1 << ranges.ilog2();
        } else if size < SHORT_QUEUE_SIZE {
            return Err(InitError::QueueSize(queue, size));
        }
    }
    if features.contains(Features::PAGE_POISON) {
        let written = transport.write_config_space(RawConfig::POISON_VAL, options.poison.value());
        written.map_err(InitError::Transport)?;
    }
    Ok(negotiated)
}

pub(super) fn read_config<T: Transport>(
    transport: &T,
    features: Features,
) -> Result<RawConfig, TransportError> {
    let generation = transport.read_config_generation();
    RawConfig::read(features, generation, |offset| transport.read_config_space::<u32>(offset))
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitError::Handshake(error) => error.fmt(f),
            InitError::Queue(error) => error.fmt(f),
            InitError::QueueSize(queue, size) => {
                write!(f, "the queue {queue:?} has only {size} descriptors, which is too few")
            }
            InitError::SharedMemory => {
                write!(f, "the shared memory is too small, or not aligned to 16 bytes")
            }
            InitError::NotRunning(status) => {
                write!(f, "the device does not run after its start; its status is {status:?}")
            }
            InitError::Transport(error) => {
                write!(f, "the transport cannot access the configuration: {error}")
            }
        }
    }
}

impl core::error::Error for InitError {}
