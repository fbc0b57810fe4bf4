//! A device with injected refusals and invalid answers.

use super::{Fault, happens};
use axhal::mem::phys_to_virt;
use core::hint::spin_loop;
use hotmem_virtio::mem::RequestKind;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A transport of a virtio-mem device that injects faults.
pub struct FaultyDevice<T> {
    transport: T,
    /// The queue: its size, its descriptors, the driver's ring, the device's ring.
    queue: (u32, [PhysAddr; 3]),
}

/// Offsets in a ring and in a descriptor.
const INDEX: u64 = 2;
const RING: u64 = 4;
const NEXT: u64 = 14;

impl<T> FaultyDevice<T> {
    /// Wraps the transport of a device.
    pub fn new(transport: T) -> FaultyDevice<T> {
        FaultyDevice { transport, queue: (1, [0; 3]) }
    }
}

impl<T: Transport> FaultyDevice<T> {
    /// Replaces the driver's request by one for the state of the blocks, and the type of the
    /// device's answer by `kind`.
    fn spoil(&mut self, queue: u16, kind: u16) {
        let (size, [descriptors, driver_ring, device_ring]) = self.queue;
        let last = u64::from(read(driver_ring + INDEX).wrapping_sub(1)) % u64::from(size);
        let descriptor = |number: u16| descriptors + 16 * u64::from(number);
        let request = descriptor(read(driver_ring + RING + 2 * last));
        let response = descriptor(read(request + NEXT));
        write(address(request), RequestKind::State as u16);
        let before = read(device_ring + INDEX);
        self.transport.notify(queue);
        while read(device_ring + INDEX) == before {
            spin_loop();
        }
        write(address(response), kind);
    }
}

/// Returns the type of the wrong answer to this request, if it gets one.
fn fault() -> Option<u16> {
    let faults = [(Fault::Nack, 1), (Fault::Busy, 2), (Fault::Error, 3), (Fault::Garbage, 0x4242)];
    faults.into_iter().find(|&(fault, _)| happens(fault)).map(|(_, kind)| kind)
}

/// Reads the 64-bit address of a buffer.
fn address(descriptor: PhysAddr) -> PhysAddr {
    (0..4).map(|part| u64::from(read(descriptor + 2 * part)) << (16 * part)).sum()
}

fn read(at: PhysAddr) -> u16 {
    let at = phys_to_virt((at as usize).into()).as_ptr().cast::<u16>();
    // SAFETY: this is in the memory of the queue, which is mapped permanently.
    unsafe { at.read_volatile() }
}

fn write(at: PhysAddr, value: u16) {
    let at = phys_to_virt((at as usize).into()).as_mut_ptr().cast::<u16>();
    // SAFETY: as above. The driver reads the answer after the device has notified it.
    unsafe { at.write_volatile(value) };
}

impl<T: Transport> Transport for FaultyDevice<T> {
    fn notify(&mut self, queue: u16) {
        match fault() {
            Some(kind) => self.spoil(queue, kind),
            None => self.transport.notify(queue),
        }
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        self.queue = (size, [descriptors, driver_area, device_area]);
        self.transport.queue_set(queue, size, descriptors, driver_area, device_area);
    }

    fn device_type(&self) -> DeviceType {
        self.transport.device_type()
    }

    fn read_device_features(&mut self) -> u64 {
        self.transport.read_device_features()
    }

    fn write_driver_features(&mut self, features: u64) {
        self.transport.write_driver_features(features);
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.transport.max_queue_size(queue)
    }

    fn get_status(&self) -> DeviceStatus {
        self.transport.get_status()
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.transport.set_status(status);
    }

    fn set_guest_page_size(&mut self, size: u32) {
        self.transport.set_guest_page_size(size);
    }

    fn requires_legacy_layout(&self) -> bool {
        self.transport.requires_legacy_layout()
    }

    fn queue_unset(&mut self, queue: u16) {
        self.transport.queue_unset(queue);
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.transport.queue_used(queue)
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        self.transport.ack_interrupt()
    }

    fn read_config_generation(&self) -> u32 {
        self.transport.read_config_generation()
    }

    fn read_config_space<T2: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T2> {
        self.transport.read_config_space(offset)
    }

    fn write_config_space<T2: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T2,
    ) -> Result<()> {
        self.transport.write_config_space(offset, value)
    }
}
