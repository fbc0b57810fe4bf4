//! Connects the drivers with a device whose registers and memory are accessed by calls: a model in this
//! process, or a device in another one. The memory of the queues is in this process, and is compared
//! with the guest's memory at each notification and at each read of the status.

use core::ptr::NonNull;
use hotmem_conformance::{Device, Inaccessible};
use hotmem_virtio::dma::DmaMemory;
use std::alloc::{Layout, alloc_zeroed};
use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Registers of virtio-mmio (4.2.2).
const DEVICE_ID: u64 = 0x08;
const DEVICE_FEATURES: u64 = 0x10;
const DEVICE_FEATURES_SEL: u64 = 0x14;
const DRIVER_FEATURES: u64 = 0x20;
const DRIVER_FEATURES_SEL: u64 = 0x24;
const QUEUE_SEL: u64 = 0x30;
const QUEUE_NUM_MAX: u64 = 0x34;
const QUEUE_NUM: u64 = 0x38;
const QUEUE_READY: u64 = 0x44;
const QUEUE_NOTIFY: u64 = 0x50;
const INTERRUPT_STATUS: u64 = 0x60;
const INTERRUPT_ACK: u64 = 0x64;
const STATUS: u64 = 0x70;
const QUEUE_DESC: u64 = 0x80;
const QUEUE_DRIVER: u64 = 0x90;
const QUEUE_DEVICE: u64 = 0xa0;
const CONFIG_GENERATION: u64 = 0xfc;
pub(crate) const CONFIG: u64 = 0x100;

/// The size of the memory of the queues, at the start of the guest's RAM.
pub(crate) const QUEUES_BYTES: usize = 4096;

/// A device, and the memory that it shares with its driver.
pub(crate) struct Machine<D> {
    pub(crate) device: D,
    /// The driver's copy of the memory of the queues.
    shared: NonNull<[u8; QUEUES_BYTES]>,
    /// What both copies held when they were last compared.
    seen: [u8; QUEUES_BYTES],
    /// The offsets of the available indices and of the used indices.
    indices: Vec<[usize; 2]>,
}

/// A transport to a machine, which other values may refer to as well.
pub(crate) struct Bridge<D: Device>(Rc<RefCell<Machine<D>>>);

impl<D: Device> Clone for Bridge<D> {
    fn clone(&self) -> Bridge<D> {
        Bridge(Rc::clone(&self.0))
    }
}

impl<D: Device> Bridge<D> {
    pub(crate) fn new(device: D) -> Bridge<D> {
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(Layout::new::<[u64; QUEUES_BYTES / 8]>()) };
        let shared = NonNull::new(start).expect("there is memory").cast();
        let (seen, indices) = ([0; QUEUES_BYTES], Vec::new());
        Bridge(Rc::new(RefCell::new(Machine { device, shared, seen, indices })))
    }

    pub(crate) fn machine(&self) -> RefMut<'_, Machine<D>> {
        self.0.borrow_mut()
    }

    /// Returns the memory of the queues, for a driver that takes the place of the last one.
    pub(crate) fn queues(&self) -> DmaMemory {
        let mut machine = self.machine();
        // The device was reset, and the driver begins with what the guest's memory holds.
        machine.pull();
        let addr = machine.device.ram().start;
        // SAFETY: the memory is never freed. Only one driver exists at a time, and `Machine` accesses the
        // memory only while the driver calls its transport.
        unsafe { DmaMemory::new(machine.shared.cast(), addr, QUEUES_BYTES) }
    }
}

impl<D: Device> Machine<D> {
    pub(crate) fn register(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.device.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn set_register(&mut self, offset: u64, value: u32) {
        self.device.write(offset, &value.to_le_bytes());
    }

    /// Accesses the driver's copy.
    fn with_shared<R>(&mut self, access: impl FnOnce(&mut [u8; QUEUES_BYTES]) -> R) -> R {
        // SAFETY: as for `Bridge::queues`.
        access(unsafe { self.shared.as_mut() })
    }

    /// Copies what the driver has written to the guest's memory: the available indices last.
    fn push(&mut self) {
        let own = self.with_shared(|shared| *shared);
        let is_index = |at: usize| self.indices.iter().any(|&[avail, _]| avail == at & !1);
        let changed: Vec<usize> =
            (0..QUEUES_BYTES).filter(|&at| own[at] != self.seen[at]).collect();
        let (indices, others): (Vec<usize>, Vec<usize>) =
            changed.into_iter().partition(|&at| is_index(at));
        let ram = self.device.ram().start;
        for at in others.into_iter().chain(indices) {
            // Two bytes by one write, because the device may read them at the same time.
            let word = at & !1..(at & !1) + 2;
            self.device
                .write_memory(ram + word.start as u64, &own[word.clone()])
                .expect("it is RAM");
            self.seen[word.clone()].copy_from_slice(&own[word]);
        }
    }

    /// Copies what the device has written to the driver's copy. The used indices are read first.
    fn pull(&mut self) {
        let ram = self.device.ram().start;
        let mut read = |at: usize, data: &mut [u8]| {
            self.device.read_memory(ram + at as u64, data).expect("it is RAM");
        };
        let indices: Vec<(usize, [u8; 2])> = self
            .indices
            .iter()
            .map(|&[_, used]| {
                let mut bytes = [0; 2];
                read(used, &mut bytes);
                (used, bytes)
            })
            .collect();
        let mut theirs = [0; QUEUES_BYTES];
        read(0, &mut theirs);
        for (at, bytes) in indices {
            theirs[at..at + 2].copy_from_slice(&bytes);
        }
        let seen = self.seen;
        self.with_shared(|shared| {
            for at in (0..QUEUES_BYTES).filter(|&at| theirs[at] != seen[at]) {
                shared[at] = theirs[at];
            }
        });
        for at in (0..QUEUES_BYTES).filter(|&at| theirs[at] != seen[at]) {
            self.seen[at] = theirs[at];
        }
    }

    fn run(&mut self) {
        self.push();
        self.device.run();
        self.pull();
    }

    pub(crate) fn write_memory(
        &mut self,
        addr: u64,
        data: &[u8],
    ) -> core::result::Result<(), Inaccessible> {
        self.device.write_memory(addr, data)
    }

    pub(crate) fn read_memory<const N: usize>(&mut self, addr: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.device.read_memory(addr, &mut bytes).expect("the guest has the memory");
        bytes
    }
}

impl<D: Device> Transport for Bridge<D> {
    fn device_type(&self) -> DeviceType {
        match self.machine().register(DEVICE_ID) {
            5 => DeviceType::MemoryBalloon,
            24 => DeviceType::Memory,
            other => panic!("the device has the type {other}"),
        }
    }

    fn read_device_features(&mut self) -> u64 {
        let mut machine = self.machine();
        let [low, high] = [0, 1].map(|word| {
            machine.set_register(DEVICE_FEATURES_SEL, word);
            u64::from(machine.register(DEVICE_FEATURES))
        });
        low | high << 32
    }

    fn write_driver_features(&mut self, features: u64) {
        let mut machine = self.machine();
        for (word, bits) in [(0, features), (1, features >> 32)] {
            machine.set_register(DRIVER_FEATURES_SEL, word);
            machine.set_register(DRIVER_FEATURES, bits as u32);
        }
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        let mut machine = self.machine();
        machine.set_register(QUEUE_SEL, queue.into());
        machine.register(QUEUE_NUM_MAX)
    }

    fn notify(&mut self, queue: u16) {
        let mut machine = self.machine();
        machine.push();
        machine.set_register(QUEUE_NOTIFY, queue.into());
        machine.run();
    }

    fn get_status(&self) -> DeviceStatus {
        let mut machine = self.machine();
        machine.run();
        DeviceStatus::from_bits_truncate(machine.register(STATUS))
    }

    fn set_status(&mut self, status: DeviceStatus) {
        let mut machine = self.machine();
        machine.push();
        machine.set_register(STATUS, status.bits());
        if status.is_empty() {
            machine.indices.clear();
        }
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        let mut machine = self.machine();
        let start = machine.device.ram().start;
        machine.indices.push([driver_area, device_area].map(|area| (area - start) as usize + 2));
        machine.push();
        machine.set_register(QUEUE_SEL, queue.into());
        machine.set_register(QUEUE_NUM, size);
        for (register, area) in
            [(QUEUE_DESC, descriptors), (QUEUE_DRIVER, driver_area), (QUEUE_DEVICE, device_area)]
        {
            machine.set_register(register, area as u32);
            machine.set_register(register + 4, (area >> 32) as u32);
        }
        machine.set_register(QUEUE_READY, 1);
    }

    fn queue_unset(&mut self, _: u16) {}

    fn queue_used(&mut self, queue: u16) -> bool {
        let mut machine = self.machine();
        machine.set_register(QUEUE_SEL, queue.into());
        machine.register(QUEUE_READY) == 1
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        let mut machine = self.machine();
        let causes = machine.register(INTERRUPT_STATUS);
        machine.set_register(INTERRUPT_ACK, causes);
        InterruptStatus::from_bits_truncate(causes)
    }

    fn read_config_generation(&self) -> u32 {
        self.machine().register(CONFIG_GENERATION)
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        let mut value = T::new_zeroed();
        self.machine().device.read(CONFIG + offset as u64, value.as_mut_bytes());
        Ok(value)
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> Result<()> {
        self.machine().device.write(CONFIG + offset as u64, value.as_bytes());
        Ok(())
    }
}

impl<D: Device> Drop for Bridge<D> {
    fn drop(&mut self) {
        // The test holds a bridge as well, which is not the driver's.
        if Rc::strong_count(&self.0) == 2 {
            self.set_status(DeviceStatus::empty());
        }
    }
}
