//! Contains memory that a device and the driver access concurrently.

#![allow(unsafe_code)]

use crate::barrier::{order_reads, order_writes};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};

/// Memory shared with a device.
///
/// The device may write to the memory at any time, so the driver makes no references to it. The
/// driver copies bytes by volatile accesses, and does not trust the values that it reads.
#[derive(Debug)]
pub struct DmaMemory {
    start: NonNull<u8>,
    device_addr: u64,
    len: usize,
}

// SAFETY: by the contract of `new`, a `DmaMemory` owns its memory, and memory may be used from any
// thread.
unsafe impl Send for DmaMemory {}

impl DmaMemory {
    /// Takes ownership of memory that a device accesses at `device_addr`.
    ///
    /// # Safety
    /// `start` is valid for reads and writes of `len` bytes for as long as the value or a part of
    /// it exists, and until the device that uses the memory is reset. Nothing else in the program
    /// accesses the memory. A device sees the same bytes at `device_addr`, without cache maintenance:
    /// the device is coherent, or the memory is mapped as uncached memory. It is not mapped as device
    /// registers are, because accesses to it may be unaligned.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, device_addr: u64, len: usize) -> DmaMemory {
        DmaMemory { start, device_addr, len }
    }

    /// Returns the address at which the device sees the memory.
    #[must_use]
    pub fn device_addr(&self) -> u64 {
        self.device_addr
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the size is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether both the driver's and the device's address are multiples of `align` (a power
    /// of two).
    #[must_use]
    pub fn is_aligned(&self, align: usize) -> bool {
        let start = self.start.as_ptr() as usize as u64;
        (start | self.device_addr) & (align as u64 - 1) == 0
    }

    /// Returns the first `len` bytes and the rest, or `None` if the memory is smaller.
    #[must_use]
    pub fn split_at(self, len: usize) -> Option<(DmaMemory, DmaMemory)> {
        let remaining = self.len.checked_sub(len)?;
        let device_addr = self.device_addr.checked_add(len as u64)?;
        let first = DmaMemory { len, ..self };
        // SAFETY: `len` is at most `self.len`, so the pointer stays within the memory or at its
        // end.
        let start = unsafe { self.start.add(len) };
        Some((first, DmaMemory { start, device_addr, len: remaining }))
    }

    /// Returns a pointer to `len` bytes at `offset`.
    ///
    /// # Panics
    /// Panics if the bytes do not lie inside the memory. Offsets come from the driver's own layout,
    /// never from a device.
    fn pointer(&self, offset: usize, len: usize) -> NonNull<u8> {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} exceed the {} bytes of the memory",
            self.len
        );
        // SAFETY: the assertion ensures that `offset` is at most `self.len`.
        unsafe { self.start.add(offset) }
    }

    /// Copies `N` bytes out of the memory at `offset`.
    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let from = self.pointer(offset, N).cast::<[u8; N]>();
        // SAFETY: `pointer` has checked that the N bytes lie in the memory. Any bytes are a valid
        // value, and bytes need no alignment. If the device changes the bytes meanwhile, the value
        // is arbitrary, but the read is sound, because it is volatile and nothing else in the
        // program accesses the bytes.
        unsafe { from.as_ptr().read_volatile() }
    }

    /// Copies `bytes` into the memory at `offset`.
    pub(crate) fn write<const N: usize>(&self, offset: usize, bytes: [u8; N]) {
        let to = self.pointer(offset, N).cast::<[u8; N]>();
        // SAFETY: `pointer` has checked that the N bytes lie in the memory, and bytes need no
        // alignment. The write is volatile, and nothing else in the program accesses the bytes.
        unsafe { to.as_ptr().write_volatile(bytes) }
    }

    /// Reads an index that the device publishes. All writes of the device before the publication
    /// are then visible.
    pub(crate) fn load_index(&self, offset: usize) -> u16 {
        // Acquire pairs with the device's write of the index after the entries that it counts
        // (2.7.8.2).
        let index = self.index(offset).load(Ordering::Acquire);
        order_reads();
        u16::from_le(index)
    }

    /// Publishes an index to the device. All earlier writes are visible to a device that reads the
    /// index.
    pub(crate) fn store_index(&self, offset: usize, value: u16) {
        // Release pairs with the device's read of the index before the entries that it counts
        // (2.7.13.3).
        order_writes();
        self.index(offset).store(value.to_le(), Ordering::Release);
    }

    fn index(&self, offset: usize) -> &AtomicU16 {
        let index = self.pointer(offset, 2).cast::<u16>();
        assert!(index.is_aligned(), "an index must lie at an even address");
        // SAFETY: `pointer` has checked that the two bytes lie in the memory, and the assertion that
        // they are aligned. They stay valid while `self` is borrowed, and the program accesses them
        // only as atomics.
        unsafe { AtomicU16::from_ptr(index.as_ptr()) }
    }
}
