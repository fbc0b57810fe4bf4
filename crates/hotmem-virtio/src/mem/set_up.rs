//! Starts a device: resets it, negotiates features, reads its configuration and sets up its queue.

use super::config::RawConfig;
use super::config_error::ConfigError;
use super::driver::Driver;
use super::features::Features;
use crate::handshake::{HandshakeError, NegotiatedFeatures, set_failed, set_running, shake_hands};
use crate::queue::SplitQueue;
use core::fmt;
use virtio_drivers::Error as TransportError;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

/// The reason why a device cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitError {
    /// The feature negotiation failed.
    Handshake(HandshakeError<Features>),
    /// The queue of the device has only this number of descriptors, which is too few.
    QueueSize(u32),
    /// The shared memory is less than [`Device::MEMORY_SIZE`](super::Device::MEMORY_SIZE) or not aligned to 16 bytes.
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

pub(super) const REQUEST_QUEUE: u16 = 0;
/// At most one chain of two descriptors is outstanding.
const QUEUE_SIZE: u32 = 8;
pub(super) type Queue = SplitQueue<{ QUEUE_SIZE as usize }>;
/// The number of attempts to read a consistent configuration. After them the last consistent
/// configuration is used.
const MAX_CONFIG_READS: u32 = 8;
/// The number of consecutive equal reads that make a configuration count as consistent although the
/// generation keeps changing.
const MIN_EQUAL_READS: u32 = 3;

/// Resets the device, negotiates features, reads the configuration, sets up the queue, and sets the
/// device running (3.1.1). If one of these steps fails, sets the device's status to FAILED.
pub(super) fn start<T: Transport>(
    transport: &mut T,
    queue: &mut Queue,
) -> Result<(RawConfig, Driver), InitError> {
    try_to_start(transport, queue).inspect_err(|_| set_failed(transport))
}

fn try_to_start<T: Transport>(
    transport: &mut T,
    queue: &mut Queue,
) -> Result<(RawConfig, Driver), InitError> {
    let NegotiatedFeatures { features, queue_features, .. } =
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
    queue.reset(QUEUE_SIZE as usize, queue_features);
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
pub(super) fn steady_config<T: Transport>(
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
