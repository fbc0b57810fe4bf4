//! The virtio-mem device.

use crate::{faults, pci};
use axalloc::{HEAP, HOTPLUG};
use axhal::time::monotonic_time;
use hotmem::{Budget, Bytes, OnlineType};
use hotmem_port::LatePlatform;
use hotmem_virtio::mem::{HotplugDevice, HotplugMemory, Progress};
use virtio_drivers::transport::DeviceType;

/// A virtio-mem device and its memory.
pub type VirtioMem = HotplugDevice<'static, faults::FaultyDevice<pci::Transport>, LatePlatform>;
type Memory = HotplugMemory<'static, LatePlatform>;

/// Returns the settings of a device's memory, which is online for any allocation. Mapping 32 MiB or
/// taking 128 MiB offline takes some milliseconds.
pub fn memory() -> Memory {
    HotplugMemory::new(OnlineType::Kernel, Budget { pageblocks: 64 }).adding(Bytes::mib(32))
}

/// Starts the device, if one is found.
pub fn start(memory: Memory) -> Option<VirtioMem> {
    let transport = faults::FaultyDevice::new(pci::find(DeviceType::Memory)?);
    VirtioMem::new(transport, pci::shared_memory(VirtioMem::MEMORY_SIZE)?, memory).ok()
}

/// Carries out the host's request up to the next answer of the device.
pub fn poll(device: &mut VirtioMem) -> Progress {
    device.device().ack_interrupt();
    let mut machine = HOTPLUG.lock();
    let machine = machine.as_mut().expect("the device's queue was allocated");
    let mut hooks = faults::FaultyHooks(&HEAP);
    device.poll(monotonic_time(), 2, machine, &mut hooks).expect("there is one machine")
}
