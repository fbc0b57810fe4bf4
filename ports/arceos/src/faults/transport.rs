//! Wraps the transport of a virtio-mem device, and injects refusals and invalid answers.

use super::{Fault, inject};
use axhal::mem::phys_to_virt;
use core::hint::spin_loop;
use hotmem_virtio::mem::RequestKind;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A transport of a virtio-mem device that injects faults.
pub struct FaultyDevice<T> {
    transport: T,
    /// The queue's size, and the addresses of its descriptors, of the driver's ring and of the
    /// device's ring.
    queue: (u32, [PhysAddr; 3]),
}

/// The offset of a ring's index.
const INDEX: u64 = 2;
/// The offset of a ring's entries.
const RING: u64 = 4;
/// The offset of the next descriptor's number in a descriptor.
const NEXT: u64 = 14;

impl<T> FaultyDevice<T> {
    /// Wraps the transport of a device.
    pub fn new(transport: T) -> FaultyDevice<T> {
        FaultyDevice { transport, queue: (1, [0; 3]) }
    }
}

impl<T: Transport> FaultyDevice<T> {
    /// Makes the device answer the driver's last request by an answer of type `kind`. Replaces the
    /// request by one for the state of blocks, which changes nothing, sends it, and then overwrites
    /// the type of the device's answer.
    fn replace_answer(&mut self, queue: u16, kind: u16) {
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

/// Returns the type of the wrong answer that the next request gets, or `None` if it gets the right
/// answer.
fn injected_answer() -> Option<u16> {
    let faults = [(Fault::Nack, 1), (Fault::Busy, 2), (Fault::Error, 3), (Fault::Garbage, 0x4242)];
    faults.into_iter().find(|&(fault, _)| inject(fault)).map(|(_, kind)| kind)
}

/// Reads the 64-bit address of the buffer of a descriptor.
fn address(descriptor: PhysAddr) -> PhysAddr {
    (0..4).map(|part| u64::from(read(descriptor + 2 * part)) << (16 * part)).sum()
}

fn read(phys_addr: PhysAddr) -> u16 {
    let pointer = phys_to_virt((phys_addr as usize).into()).as_ptr().cast::<u16>();
    // SAFETY: `phys_addr` lies in the memory of the queue, which is mapped permanently.
    unsafe { pointer.read_volatile() }
}

fn write(phys_addr: PhysAddr, value: u16) {
    let pointer = phys_to_virt((phys_addr as usize).into()).as_mut_ptr().cast::<u16>();
    // SAFETY: `phys_addr` lies in the memory of the queue, which is mapped permanently. The driver
    // reads the answer only after `notify` has returned.
    unsafe { pointer.write_volatile(value) };
}

impl<T: Transport> Transport for FaultyDevice<T> {
    fn notify(&mut self, queue: u16) {
        match injected_answer() {
            Some(kind) => self.replace_answer(queue, kind),
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
