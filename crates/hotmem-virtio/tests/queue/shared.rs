//! Defines memory that is shared with a device, and the device's side of a split virtqueue.

use hotmem_virtio::dma::DmaMemory;
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;

/// The device's address of the memory, which differs from the program's.
const DEVICE_BASE: u64 = 0x8_0000_0000;

/// A page that the driver and the device share. It is never freed, and is accessed only through its
/// pointer.
#[derive(Clone, Copy)]
pub(crate) struct SharedPage {
    pub(crate) start: NonNull<u8>,
}

impl SharedPage {
    pub(crate) const SIZE: usize = 4096;

    pub(crate) fn new() -> SharedPage {
        let layout = Layout::from_size_align(Self::SIZE, Self::SIZE).unwrap();
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        SharedPage { start: NonNull::new(start).unwrap() }
    }

    /// Returns the part of the page from `offset` on, as the driver accesses it.
    pub(crate) fn dma(self, offset: usize) -> DmaMemory {
        let len = Self::SIZE - offset;
        // SAFETY: the bytes lie inside the page, which is never freed. Tests have one thread, so
        // the device's side never accesses them at the same time as the driver.
        unsafe { DmaMemory::new(self.start.add(offset), DEVICE_BASE + offset as u64, len) }
    }

    fn pointer(self, device_addr: u64, len: usize) -> NonNull<u8> {
        let offset = usize::try_from(device_addr - DEVICE_BASE).unwrap();
        assert!(offset + len <= Self::SIZE, "the device's address lies outside its memory");
        // SAFETY: just checked.
        unsafe { self.start.add(offset) }
    }

    pub(crate) fn read(self, device_addr: u64, len: usize) -> Vec<u8> {
        let from = self.pointer(device_addr, len);
        // SAFETY: `pointer` has checked that `len` bytes lie inside the page. `dma` says why nothing
        // accesses them at the same time.
        (0..len).map(|i| unsafe { from.add(i).as_ptr().read_volatile() }).collect()
    }

    pub(crate) fn write(self, device_addr: u64, bytes: &[u8]) {
        let to = self.pointer(device_addr, bytes.len());
        for (i, &byte) in bytes.iter().enumerate() {
            // SAFETY: as for `read`.
            unsafe { to.add(i).as_ptr().write_volatile(byte) }
        }
    }

    fn read_u16(self, device_addr: u64) -> u16 {
        u16::from_le_bytes(self.read(device_addr, 2).try_into().unwrap())
    }
}

/// The device's side of a queue.
#[derive(Clone, Copy)]
pub(crate) struct DeviceSide {
    pub(crate) page: SharedPage,
    pub(crate) size: u16,
    pub(crate) descriptors: u64,
    pub(crate) driver_area: u64,
    pub(crate) device_area: u64,
    /// The index of the next available chain that the device takes.
    pub(crate) next_available: u16,
    pub(crate) used_index: u16,
}

/// A buffer of a chain: its address, its length, and whether the device writes it.
pub(crate) type Descriptor = (u64, u32, bool);

impl DeviceSide {
    /// Returns the flags of the available ring.
    pub(crate) fn avail_flags(&self) -> u16 {
        self.page.read_u16(self.driver_area)
    }

    /// Returns the head and the buffers of the next available chain.
    pub(crate) fn take(&mut self) -> Option<(u16, Vec<Descriptor>)> {
        if self.page.read_u16(self.driver_area + 2) == self.next_available {
            return None;
        }
        let ring_index = u64::from(self.next_available % self.size);
        let head = self.page.read_u16(self.driver_area + 4 + 2 * ring_index);
        self.next_available = self.next_available.wrapping_add(1);
        let mut descriptors = Vec::new();
        let mut index = head;
        loop {
            assert!(
                index < self.size && descriptors.len() < self.size.into(),
                "the chain does not end inside the table of descriptors"
            );
            let descriptor = self.page.read(self.descriptors + 16 * u64::from(index), 16);
            let addr = u64::from_le_bytes(descriptor[0..8].try_into().unwrap());
            let len = u32::from_le_bytes(descriptor[8..12].try_into().unwrap());
            let flags = u16::from_le_bytes([descriptor[12], descriptor[13]]);
            assert_eq!(flags & !3, 0, "the descriptor has flags that were not negotiated");
            descriptors.push((addr, len, flags & 2 != 0));
            if flags & 1 == 0 {
                return Some((head, descriptors));
            }
            index = u16::from_le_bytes([descriptor[14], descriptor[15]]);
        }
    }

    /// Gives a chain back to the driver.
    pub(crate) fn give_back(&mut self, id: u32, written: u32) {
        let ring_index = u64::from(self.used_index % self.size);
        self.page.write(self.device_area + 4 + 8 * ring_index, &id.to_le_bytes());
        self.page.write(self.device_area + 8 + 8 * ring_index, &written.to_le_bytes());
        self.used_index = self.used_index.wrapping_add(1);
        self.set_used_index(self.used_index);
    }

    pub(crate) fn set_used_index(&mut self, index: u16) {
        self.page.write(self.device_area + 2, &index.to_le_bytes());
    }

    pub(crate) fn set_used_flags(&mut self, flags: u16) {
        self.page.write(self.device_area, &flags.to_le_bytes());
    }
}
