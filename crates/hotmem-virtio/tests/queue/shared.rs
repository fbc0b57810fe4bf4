//! Defines memory that is shared with a device, and the device's side of a split virtqueue.

use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::queue::QueueFeatures;
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
    pub(crate) features: QueueFeatures,
    /// Whether the device wants no notifications.
    pub(crate) polls: bool,
}

/// A buffer of a chain: its address, its length, and whether the device writes it.
pub(crate) type Descriptor = (u64, u32, bool);

impl DeviceSide {
    /// Returns whether the driver asks the device not to interrupt when it uses its next chain.
    pub(crate) fn suppresses_interrupt(&self) -> bool {
        let flags = self.page.read_u16(self.driver_area);
        if !self.features.event_index {
            return flags == 1;
        }
        assert_eq!(flags, 0, "the flags must be 0 if EVENT_IDX is negotiated (2.7.7.1)");
        self.used_event() != self.used_index
    }

    pub(crate) fn used_event(&self) -> u16 {
        self.page.read_u16(self.driver_area + 4 + 2 * u64::from(self.size))
    }

    /// Asks the driver to notify the device of the chain with this number.
    pub(crate) fn set_avail_event(&mut self, event: u16) {
        self.page.write(self.device_area + 4 + 8 * u64::from(self.size), &event.to_le_bytes());
    }

    /// Asks for notifications of the next chain, or of none if the device polls.
    fn ask_for_notification(&mut self) {
        match (self.features.event_index, self.polls) {
            (false, polls) => self.page.write(self.device_area, &u16::from(polls).to_le_bytes()),
            (true, false) => self.set_avail_event(self.next_available),
            (true, true) => self.set_avail_event(self.next_available.wrapping_sub(1)),
        }
    }

    /// Lets the device poll its queue from now on.
    pub(crate) fn poll_only(&mut self) {
        self.polls = true;
        self.ask_for_notification();
    }

    /// Returns whether a chain is available that the device has not taken.
    pub(crate) fn has_chain(&self) -> bool {
        self.page.read_u16(self.driver_area + 2) != self.next_available
    }

    /// Returns the head and the buffers of the next available chain.
    pub(crate) fn take(&mut self) -> Option<(u16, Vec<Descriptor>)> {
        self.ask_for_notification();
        if !self.has_chain() {
            return None;
        }
        let ring_index = u64::from(self.next_available % self.size);
        let head = self.page.read_u16(self.driver_area + 4 + 2 * ring_index);
        self.next_available = self.next_available.wrapping_add(1);
        self.ask_for_notification();
        assert!(head < self.size, "the chain begins outside the table of descriptors");
        let (addr, len, flags) = self.descriptor(self.descriptors, head);
        if flags & 4 == 0 {
            return Some((head, self.chain(self.descriptors, self.size, head)));
        }
        assert!(self.features.indirect, "INDIRECT_DESC was not negotiated");
        assert_eq!(flags, 4, "an indirect table has other flags (2.7.5.3.1)");
        assert!(len > 0 && len % 16 == 0, "the size of an indirect table is {len}");
        let count = u16::try_from(len / 16).unwrap();
        assert!(count <= self.size, "a chain is longer than the queue (2.7.5.3.1)");
        let buffers = self.chain(addr, count, 0);
        assert_eq!(buffers.len(), count.into(), "the table has unused descriptors");
        Some((head, buffers))
    }

    fn descriptor(&self, table: u64, index: u16) -> (u64, u32, u16) {
        let bytes = self.page.read(table + 16 * u64::from(index), 14);
        let addr = u64::from_le_bytes(bytes[0..8].try_into().unwrap());
        let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        (addr, len, u16::from_le_bytes([bytes[12], bytes[13]]))
    }

    /// Returns the buffers of the chain that begins at `index` of a table with `count` descriptors.
    fn chain(&self, table: u64, count: u16, mut index: u16) -> Vec<Descriptor> {
        let mut buffers = Vec::new();
        loop {
            assert!(
                index < count && buffers.len() < count.into(),
                "the chain does not end inside the table of descriptors"
            );
            let (addr, len, flags) = self.descriptor(table, index);
            assert_eq!(flags & !3, 0, "the descriptor has flags that were not negotiated");
            buffers.push((addr, len, flags & 2 != 0));
            if flags & 1 == 0 {
                return buffers;
            }
            index = self.page.read_u16(table + 16 * u64::from(index) + 14);
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
}
