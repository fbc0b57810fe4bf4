//! The virtio-mem device.

use crate::pci::{self, Transport};
use axalloc::{HOTPLUG, trim};
use axhal::time::monotonic_time;
use hotmem::{Budget, Bytes, Hooks, Migration, OnlineType, PfnRange};
use hotmem_port::LatePlatform;
use hotmem_virtio::mem::{Device, Driver, HotplugMemory, Progress};
use virtio_drivers::transport::DeviceType;

/// A virtio-mem device and the memory that it brings, which anything may use.
pub struct VirtioMem {
    device: Device<Transport>,
    memory: HotplugMemory<'static, LatePlatform>,
}

impl VirtioMem {
    /// Starts the device, if there is one.
    pub fn start() -> Option<VirtioMem> {
        let transport = pci::find(DeviceType::Memory)?;
        let queue = pci::shared_memory(Device::<Transport>::MEMORY_SIZE)?;
        let device = Device::new(transport, queue).ok()?;
        // When it shrinks, 128 MiB a call.
        let memory = HotplugMemory::new(OnlineType::Kernel, Budget::pageblocks(64));
        Some(VirtioMem { device, memory })
    }

    /// Does what the host asks for, for a while.
    pub fn poll(&mut self) -> Progress {
        let mut machine = HOTPLUG.lock();
        let machine = machine.as_mut().expect("the device's queue was allocated");
        let mut hooks = Heap;
        let mut lent = self.memory.with(machine, &mut hooks).expect("there is one machine");
        self.device.poll(monotonic_time(), 64, &mut lent)
    }

    pub fn driver(&self) -> &Driver {
        self.device.driver()
    }

    pub fn requested(&self) -> Bytes {
        self.driver().config().requested()
    }
}

/// The heap cannot move objects, but it can free what it keeps for others to come.
struct Heap;

impl Hooks for Heap {
    fn discard(&mut self, _: PfnRange) {
        trim();
    }

    fn migrate(&mut self, _: PfnRange) -> Migration {
        if trim() > Bytes::ZERO {
            Migration::Moved
        } else {
            Migration::Pinned("objects on the heap")
        }
    }
}
