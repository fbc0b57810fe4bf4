//! Tests the driver with MMIO registers (VIRTIO 4.2.2), by the MMIO transport of the crate
//! virtio-drivers.
//!
//! The registers are ordinary memory. The driver never waits for a register, so the device needs to
//! read them only between polls.

use crate::device::Device as MockDevice;
use crate::memory::TestMemory;
use crate::shared::{DeviceSide, SharedPage};
use crate::transport::bytes_of;
use crate::{BUDGET, GIB, MIB, NOW};
use hotmem_virtio::HandshakeError;
use hotmem_virtio::mem::{Device, InitError, Progress, Request, Status};
use hotmem_virtio::queue::QueueFeatures;
use virtio_drivers::transport::mmio::MmioTransport;

const MAGIC: (u64, u32) = (0x00, 0x7472_6976);
const VERSION: u64 = 0x04;
const DEVICE_ID: (u64, u32) = (0x08, 24);
/// The value of both words of the features. The bit is `ACPI_PXM` in the low word and `VERSION_1` in
/// the high word.
const DEVICE_FEATURES: (u64, u32) = (0x10, 1);
const QUEUE_NUM_MAX: (u64, u32) = (0x34, 128);
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
const CONFIG: u64 = 0x100;

/// The value of `QUEUE_NOTIFY` without a notification.
const NOT_NOTIFIED: u32 = u32::MAX;
const USED_BUFFER: u32 = 1;
const DRIVER_OK: u32 = 4;

/// A device with a requested size of 64 MiB.
struct Host {
    device: MockDevice,
    registers: SharedPage,
    memory: SharedPage,
    queue: Option<DeviceSide>,
}

impl Host {
    fn new(version: u32) -> Host {
        let device = MockDevice::new(2 * MIB, 4 * GIB, 64 * GIB);
        let mut host =
            Host { device, registers: SharedPage::new(), memory: SharedPage::new(), queue: None };
        for (register, value) in [
            MAGIC,
            (VERSION, version),
            DEVICE_ID,
            DEVICE_FEATURES,
            QUEUE_NUM_MAX,
            (QUEUE_NOTIFY, NOT_NOTIFIED),
        ] {
            host.set(register, value);
        }
        host.resize(64 * MIB);
        host
    }

    fn start(&self) -> Result<Device<MmioTransport<'static>>, InitError> {
        // SAFETY: the page is never freed. Tests have one thread, so the device's side never
        // accesses it at the same time as the driver.
        let transport =
            unsafe { MmioTransport::new(self.registers.start.cast(), SharedPage::SIZE) };
        Device::new(transport.unwrap(), self.memory.dma(0))
    }

    fn resize(&mut self, size: u64) {
        self.device.resize(size);
        self.show_config();
    }

    fn show_config(&mut self) {
        let bytes = bytes_of(&self.device.read_config());
        self.registers.write(self.registers.dma(0).device_addr() + CONFIG, &bytes);
        self.set(CONFIG_GENERATION, self.get(CONFIG_GENERATION) + 1);
    }

    /// Handles the values that were written to the registers.
    fn serve(&mut self) {
        let unacknowledged = self.get(INTERRUPT_STATUS) & !self.get(INTERRUPT_ACK);
        self.set(INTERRUPT_STATUS, unacknowledged);
        self.set(INTERRUPT_ACK, 0);
        if self.get(QUEUE_NOTIFY) == NOT_NOTIFIED {
            return;
        }
        assert_eq!(self.get(QUEUE_NOTIFY), 0, "the driver notifies a queue that does not exist");
        assert_ne!(self.get(STATUS) & DRIVER_OK, 0, "the driver has not started the device");
        assert_eq!(self.get(QUEUE_READY), 1);
        self.set(QUEUE_NOTIFY, NOT_NOTIFIED);
        let mut queue = self.queue.unwrap_or(DeviceSide {
            page: self.memory,
            size: u16::try_from(self.get(QUEUE_NUM)).unwrap(),
            descriptors: self.get_u64(QUEUE_DESC),
            driver_area: self.get_u64(QUEUE_DRIVER),
            device_area: self.get_u64(QUEUE_DEVICE),
            next_available: 0,
            used_index: 0,
            features: QueueFeatures::default(),
            polls: false,
        });
        while let Some((head, descriptors)) = queue.take() {
            let [(request, 24, false), (response, 10, true)] = descriptors[..] else {
                panic!("the chain is not a request: {descriptors:x?}");
            };
            let bytes: [u8; Request::SIZE] = self.memory.read(request, 24).try_into().unwrap();
            let (answer, _) = self.device.handle(&bytes);
            self.memory.write(response, &answer);
            queue.give_back(head.into(), answer.len() as u32);
        }
        self.queue = Some(queue);
        self.show_config();
        self.set(INTERRUPT_STATUS, unacknowledged | USED_BUFFER);
    }

    fn get(&self, register: u64) -> u32 {
        let bytes = self.registers.read(self.registers.dma(0).device_addr() + register, 4);
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    fn get_u64(&self, register: u64) -> u64 {
        u64::from(self.get(register)) | u64::from(self.get(register + 4)) << 32
    }

    fn set(&mut self, register: u64, value: u32) {
        let register = self.registers.dma(0).device_addr() + register;
        self.registers.write(register, &value.to_le_bytes());
    }
}

#[test]
fn a_device_works_over_mmio_registers() {
    let mut host = Host::new(2);
    let mut device = host.start().unwrap();
    let config = device.driver().config();
    let mut memory = TestMemory::new(config.managed(), config.unit_frames());
    for size in [64 * MIB, 64 * GIB, 0, 2 * GIB] {
        host.resize(size);
        let mut interrupts = 0;
        while device.poll(NOW, BUDGET, &mut memory) != Progress::Idle {
            host.serve();
            interrupts += u32::from(device.ack_interrupt());
            host.serve();
            assert!(!device.ack_interrupt(), "the interrupt was not acknowledged");
        }
        assert!(interrupts > 0);
        assert_eq!(device.driver().status(), Status::Reached);
        assert_eq!(device.driver().plugged().0, size);
        assert_eq!(host.device.config.plugged_size, size);
        assert_eq!(memory.plugged_units() * 2 * MIB, size);
    }
    drop(device);
    assert_eq!(host.get(STATUS), 0, "the device is not reset");
}

#[test]
fn legacy_registers_are_refused() {
    assert_eq!(Host::new(1).start().err(), Some(InitError::Handshake(HandshakeError::Legacy)));
}
