//! Starts and polls the virtio-mem device.

use crate::clock::now;
use crate::pci::{self, Transport};
use hotmem::{Budget, Bytes, NoHooks, OnlineType};
use hotmem_ostd_allocator::{Cpus, HOTPLUG};
use hotmem_virtio::mem::{Device, Driver, HotplugMemory, InitError, Progress};
use virtio_drivers::transport::DeviceType;

/// A virtio-mem device and its memory, which is put online for any allocation.
pub struct VirtioMem {
    device: Device<Transport>,
    memory: HotplugMemory<'static, Cpus>,
}

impl VirtioMem {
    /// Starts the device. Returns `None` if there is no device.
    pub fn start() -> Option<Result<VirtioMem, InitError>> {
        let transport = pci::find(DeviceType::Memory)?;
        let queue =
            pci::shared_memory(Device::<Transport>::MEMORY_SIZE).ok_or(InitError::SharedMemory);
        let device = queue.and_then(|queue| Device::new(transport, queue));
        // A call of `poll` takes at most 128 MiB offline.
        let memory = HotplugMemory::new(OnlineType::Kernel, Budget { pageblocks: 64 });
        Some(device.map(|device| VirtioMem { device, memory }))
    }

    /// Carries out the host's request for a limited time.
    pub fn poll(&mut self) -> Progress {
        let mut hotplug = HOTPLUG.lock();
        let hotplug = hotplug.as_mut().expect("OSTD's first allocation has started the engine");
        let mut hooks = NoHooks;
        let mut memory =
            self.memory.bind(hotplug, &mut hooks).expect("the kernel has one instance");
        self.device.poll(now(), 64, &mut memory)
    }

    pub fn driver(&self) -> &Driver {
        self.device.driver()
    }

    pub fn requested(&self) -> Bytes {
        self.driver().config().requested()
    }
}
