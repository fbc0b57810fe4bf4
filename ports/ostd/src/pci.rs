//! Finds virtio devices on PCI by OSTD's interfaces for drivers: I/O memory, I/O ports and DMA
//! memory.

use core::mem::forget;
use core::ptr::NonNull;
use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::pci::{self, PciTransport, Registers, Width};
use ostd::arch::device::io_port::{ReadWriteAccess, WriteOnlyAccess};
use ostd::io::{IoMem, IoPort};
use ostd::mm::dma::DmaCoherent;
use ostd::mm::io::util::HasVmReaderWriter;
use ostd::mm::{HasDaddr, VmIoOnce};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

/// A virtio device's transport.
pub type Transport = PciTransport<Bar>;

/// Finds the first device of this kind, and maps its registers. Returns `None` if there is none.
pub fn find(kind: DeviceType) -> Option<Transport> {
    let (address, data) = (IoPort::acquire(0xcf8).ok()?, IoPort::acquire(0xcfc).ok()?);
    let map = |range: core::ops::Range<u64>| {
        IoMem::acquire(range.start as usize..range.end as usize).ok().map(Bar)
    };
    pci::find(&mut ConfigSpace { address, data }, 0..=u8::MAX, kind, map)
        .expect("the device is of virtio 1.0")
}

/// Allocates memory that a device and its driver share, and that is never freed.
pub fn shared_memory(len: usize) -> Option<DmaMemory> {
    let memory = DmaCoherent::alloc(len.div_ceil(ostd::mm::PAGE_SIZE), true).ok()?;
    let (start, addr) = (NonNull::new(memory.writer().cursor())?, memory.daddr() as u64);
    forget(memory);
    // SAFETY: the memory was allocated above, and is never freed.
    Some(unsafe { DmaMemory::new(start, addr, len) })
}

/// The registers that a BAR maps.
pub struct Bar(IoMem);

impl Registers for Bar {
    fn read(&self, offset: usize, width: Width) -> u32 {
        let read = match width {
            Width::OneByte => self.0.read_once::<u8>(offset).map(u32::from),
            Width::TwoBytes => self.0.read_once::<u16>(offset).map(u32::from),
            Width::FourBytes => self.0.read_once(offset),
        };
        read.expect("the register lies in the BAR")
    }

    fn write(&mut self, offset: usize, width: Width, value: u32) {
        let written = match width {
            Width::OneByte => self.0.write_once(offset, &(value as u8)),
            Width::TwoBytes => self.0.write_once(offset, &(value as u16)),
            Width::FourBytes => self.0.write_once(offset, &value),
        };
        written.expect("the register lies in the BAR");
    }
}

/// Accesses PCI's configuration space by I/O ports.
struct ConfigSpace {
    address: IoPort<u32, WriteOnlyAccess>,
    data: IoPort<u32, ReadWriteAccess>,
}

impl ConfigSpace {
    fn select(&self, function: DeviceFunction, register: u8) {
        let DeviceFunction { bus, device, function } = function;
        self.address.write(u32::from_be_bytes([0x80, bus, device << 3 | function, register]));
    }
}

impl ConfigurationAccess for ConfigSpace {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        self.select(function, register);
        self.data.read()
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        self.select(function, register);
        self.data.write(word);
    }

    unsafe fn unsafe_clone(&self) -> ConfigSpace {
        unreachable!("this configuration space is never cloned")
    }
}
