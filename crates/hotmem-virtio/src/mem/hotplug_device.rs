//! Combines a virtio-mem device with the engine as its memory manager.

use super::device::{Device, Progress};
use super::driver::Driver;
use super::hotplug::{HotplugMemory, OtherInstance};
use super::set_up::InitError;
use crate::dma::DmaMemory;
use core::time::Duration;
use hotmem::{Bytes, Hooks, Hotplug, Map, Platform};
use virtio_drivers::transport::Transport;

/// A virtio-mem device, its driver, and its memory manager: a [`Device`] with a [`HotplugMemory`],
/// for kernels in which one thread runs the device.
///
/// [Stop](Self::stop) a device that is no longer used. If it is dropped instead, memory that was in
/// transition stays isolated and counted, because the memory manager is lost with the device.
#[derive(Debug)]
pub struct HotplugDevice<'f, T: Transport, P: Platform> {
    device: Device<T>,
    memory: HotplugMemory<'f, P>,
}

impl<'f, T: Transport, P: Platform> HotplugDevice<'f, T, P> {
    /// The size in bytes of the shared memory that the device needs.
    pub const MEMORY_SIZE: usize = Device::<T>::MEMORY_SIZE;

    /// Starts the device, as [`Device::new`] does.
    ///
    /// # Errors
    /// The errors of [`Device::new`].
    pub fn new(
        transport: T,
        queue: DmaMemory,
        memory: HotplugMemory<'f, P>,
    ) -> Result<Self, InitError> {
        Ok(HotplugDevice { device: Device::new(transport, queue)?, memory })
    }

    /// Continues with what the host requests, in at most `budget` steps, as [`Device::poll`] does.
    ///
    /// # Errors
    /// `hotplug` is not the engine of the first call. Nothing has changed.
    pub fn poll<M: Map, H: Hooks>(
        &mut self,
        now: Duration,
        budget: u32,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut H,
    ) -> Result<Progress, OtherInstance> {
        let mut bound = self.memory.bind(hotplug, hooks)?;
        Ok(self.device.poll(now, budget, &mut bound))
    }

    /// Returns the requested size.
    #[must_use]
    pub fn requested(&self) -> Bytes {
        self.driver().config().requested()
    }

    /// Returns the driver, whose status and counters can be read.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        self.device.driver()
    }

    /// Returns the device, whose interrupts can be acknowledged or suppressed.
    #[must_use]
    pub fn device(&mut self) -> &mut Device<T> {
        &mut self.device
    }

    /// Stops the device, as [`Device::stop`] does, and returns its memory manager. If the device
    /// is used again, start it with this memory manager. If the device is removed for good, call
    /// [`HotplugMemory::withdraw`].
    ///
    /// # Errors
    /// As for [`Device::stop`].
    #[expect(clippy::result_large_err, reason = "the error is the device, which the caller had")]
    pub fn stop(self) -> Result<HotplugMemory<'f, P>, Self> {
        let HotplugDevice { device, memory } = self;
        match device.stop() {
            Ok(()) => Ok(memory),
            Err(device) => Err(HotplugDevice { device, memory }),
        }
    }

    /// Starts the device again and keeps its memory, as [`Device::restart`] does.
    ///
    /// # Errors
    /// The errors of [`Device::restart`].
    pub fn restart(&mut self) -> Result<(), InitError> {
        self.device.restart()
    }
}
