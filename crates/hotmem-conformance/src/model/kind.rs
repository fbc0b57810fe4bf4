//! Chooses between the types of devices.

use super::balloon_device::BalloonDevice;
use super::memory_device::MemoryDevice;
use super::queue::{Answer, Chain};
use super::ram::Ram;

/// A device without its registers.
pub(super) enum Kind {
    Memory(MemoryDevice),
    Balloon(BalloonDevice),
}

impl Kind {
    pub(super) fn id(&self) -> u32 {
        match self {
            Kind::Memory(_) => MemoryDevice::ID,
            Kind::Balloon(_) => BalloonDevice::ID,
        }
    }

    /// Returns the features of the type of device that are offered.
    pub(super) fn features(&self) -> u64 {
        match self {
            Kind::Memory(_) => MemoryDevice::FEATURES,
            Kind::Balloon(_) => BalloonDevice::FEATURES,
        }
    }

    /// Returns the number of queues.
    pub(super) fn queues(&self) -> usize {
        match self {
            Kind::Memory(_) => MemoryDevice::QUEUES,
            Kind::Balloon(_) => BalloonDevice::QUEUES,
        }
    }

    pub(super) fn config(&self) -> Vec<u8> {
        match self {
            Kind::Memory(device) => device.config(),
            Kind::Balloon(device) => device.config(),
        }
    }

    /// Returns whether the configuration changes.
    pub(super) fn write_config(&mut self, offset: usize, data: &[u8]) -> bool {
        match self {
            Kind::Memory(device) => device.write_config(offset),
            Kind::Balloon(device) => device.write_config(offset, data),
        }
    }

    pub(super) fn accept(&mut self, features: u64) {
        match self {
            Kind::Memory(device) => device.accept(features),
            Kind::Balloon(device) => device.accept(features),
        }
    }

    pub(super) fn reset(&mut self, was_started: bool, ram: &mut Ram) {
        match self {
            Kind::Memory(device) => device.reset(was_started, ram),
            Kind::Balloon(device) => device.reset(),
        }
    }

    /// Carries out the request in a chain of a queue.
    pub(super) fn serve(&mut self, queue: usize, chain: &Chain, ram: &mut Ram) -> Answer {
        match self {
            Kind::Memory(device) => device.serve(chain, ram),
            Kind::Balloon(device) => device.serve(queue, chain, ram),
        }
    }
}
