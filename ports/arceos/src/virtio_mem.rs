//! Starts and polls the virtio-mem device.

use crate::{faults, pci};
use axalloc::{HEAP, HOTPLUG};
use axhal::time::monotonic_time;
use hotmem::{Budget, Bytes, OnlineType};
use hotmem_port::ConfigurablePlatform;
use hotmem_virtio::mem::{HotplugDevice, HotplugMemory, InitError, Progress};
use virtio_drivers::transport::DeviceType;

/// A virtio-mem device and its memory.
pub type VirtioMem =
    HotplugDevice<'static, faults::FaultyDevice<pci::Transport>, ConfigurablePlatform>;
type Memory = HotplugMemory<'static, ConfigurablePlatform>;

/// Returns the settings of the device's memory: it is put online for any allocation, 32 MiB are
/// added at a time, and 128 MiB are taken offline at a time. Each of these steps takes some
/// milliseconds.
pub fn memory() -> Memory {
    HotplugMemory::new(OnlineType::Kernel, Budget { pageblocks: 64 })
        .with_max_addition(Bytes::mib(32))
}

/// Starts the device. Returns `None` if there is no device.
pub fn start(memory: Memory) -> Option<Result<VirtioMem, InitError>> {
    let transport = faults::FaultyDevice::new(pci::find(DeviceType::Memory)?);
    let queue = pci::shared_memory(VirtioMem::MEMORY_SIZE).ok_or(InitError::SharedMemory);
    Some(queue.and_then(|queue| VirtioMem::new(transport, queue, memory)))
}

/// Carries out the host's request until the driver waits for the next answer of the device.
pub fn poll(device: &mut VirtioMem) -> Progress {
    device.device().ack_interrupt();
    let mut hotplug = HOTPLUG.lock();
    let hotplug = hotplug.as_mut().expect("allocating the queue has started the engine");
    let mut hooks = faults::FaultyHooks(&HEAP);
    device.poll(monotonic_time(), 2, hotplug, &mut hooks).expect("the kernel has one instance")
}
