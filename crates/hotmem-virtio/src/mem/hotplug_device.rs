//! A virtio-mem device whose memory the engine manages.

use super::device::{Device, InitError, Progress};
use super::driver::Driver;
use super::hotplug::{AnotherMachine, HotplugMemory};
use crate::dma::DmaMemory;
use core::time::Duration;
use hotmem::{Bytes, Hooks, Hotplug, Mapping, Platform};
use virtio_drivers::transport::Transport;

/// A virtio-mem device, its driver, and the engine as the driver's memory manager: [`Device`] with
/// [`HotplugMemory`], for kernels that run one device by one thread.
#[derive(Debug)]
pub struct HotplugDevice<'f, T: Transport, P: Platform> {
    device: Device<T>,
    memory: HotplugMemory<'f, P>,
}

impl<'f, T: Transport, P: Platform> HotplugDevice<'f, T, P> {
    /// The size in bytes of the shared memory that the device needs.
    pub const MEMORY_SIZE: usize = Device::<T>::MEMORY_SIZE;

    /// Starts the device, as [`Device::new`].
    ///
    /// # Errors
    /// As for [`Device::new`].
    pub fn new(
        transport: T,
        queue: DmaMemory,
        memory: HotplugMemory<'f, P>,
    ) -> Result<Self, InitError> {
        Ok(HotplugDevice { device: Device::new(transport, queue)?, memory })
    }

    /// Continues with what the host requests, in at most `budget` steps, as [`Device::poll`].
    ///
    /// # Errors
    /// `hotplug` is not the engine of the first call. Nothing has changed.
    pub fn poll<M: Mapping, H: Hooks>(
        &mut self,
        now: Duration,
        budget: u32,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut H,
    ) -> Result<Progress, AnotherMachine> {
        let mut lent = self.memory.with(hotplug, hooks)?;
        Ok(self.device.poll(now, budget, &mut lent))
    }

    /// Returns the requested size.
    #[must_use]
    pub fn requested(&self) -> Bytes {
        self.driver().config().requested()
    }

    /// Returns the state machine, for its state and counters.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        self.device.driver()
    }

    /// Returns the device, for its interrupts.
    #[must_use]
    pub fn device(&mut self) -> &mut Device<T> {
        &mut self.device
    }

    /// Starts the device again with its memory, as [`Device::restart`].
    ///
    /// # Errors
    /// As for [`Device::restart`].
    pub fn restart(&mut self) -> Result<(), InitError> {
        self.device.restart()
    }
}
