//! A split virtqueue (2.7) that takes addresses instead of references.
//!
//! Memory that a host discards or plugs cannot be lent as a slice, so chains consist of addresses
//! and lengths as the device sees them. Nothing that the device can write is trusted: links and
//! lengths are kept in the driver's own memory, and every used element must name an outstanding
//! chain. A used length that exceeds the chain's is cut to it: QEMU before 7.0 and earlier releases
//! of Cloud Hypervisor report the length that they have read.

use crate::dma::DmaMemory;
use core::fmt;
use core::sync::atomic::{Ordering, fence};

/// A split virtqueue of at most `SIZE` descriptors, a power of two of at most 2¹⁵.
#[derive(Debug)]
pub struct SplitQueue<const SIZE: usize> {
    memory: DmaMemory,
    /// The number of descriptors: a power of two.
    size: u16,
    /// The next descriptor of each one, in its chain or in the free list.
    next: [u16; SIZE],
    /// The chains that the device owns, by their first descriptor, with the number of bytes that it
    /// may write.
    outstanding: [Option<Chain>; SIZE],
    first_free: u16,
    free: u16,
    chains: u16,
    avail_index: u16,
    used_index: u16,
    /// The flags of the available ring.
    flags: u16,
}

/// One buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The address at which the device sees it.
    pub device_addr: u64,
    /// The size in bytes.
    pub len: u32,
    /// Whether the device writes it; otherwise it reads it.
    pub device_writes: bool,
}

/// A chain that the device has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The token that [`SplitQueue::push`] returned for it.
    pub token: u16,
    /// The number of bytes that the device reports as written, at most the number that it may
    /// write.
    pub written: u32,
}

/// An invalid chain, or a violation of the protocol by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// Fewer descriptors are free than the chain has buffers.
    Full,
    /// The chain or one of its buffers is empty, or its length does not fit in 32 bits.
    Length,
    /// A buffer that the device reads follows one that it writes.
    Order,
    /// The used index exceeds the number of outstanding chains.
    UsedIndex(u16),
    /// The used element names a descriptor that starts no outstanding chain.
    UsedId(u32),
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    pieces: u16,
    writable: u32,
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`
const NO_INTERRUPT: u16 = 1;
/// `VIRTQ_USED_F_NO_NOTIFY`
const NO_NOTIFY: u16 = 1;
/// Alignment of the descriptor table, the strictest of the three parts.
const ALIGN: usize = 16;

impl<const SIZE: usize> SplitQueue<SIZE> {
    const SIZE_U16: u16 = {
        assert!(SIZE.is_power_of_two() && SIZE <= 1 << 15);
        #[expect(clippy::cast_possible_truncation, reason = "just asserted")]
        let size = SIZE as u16;
        size
    };
    const AVAIL: usize = 16 * SIZE;
    /// The used ring must start on a multiple of four.
    const USED: usize = (Self::AVAIL + 4 + 2 * SIZE).next_multiple_of(4);
    /// The size in bytes of the shared memory that the queue needs.
    pub const BYTES: usize = (Self::USED + 4 + 8 * SIZE).next_multiple_of(ALIGN);

    /// Makes a queue in the first [`BYTES`](Self::BYTES) of this memory, and returns it with the
    /// rest. Returns `None` if the memory is smaller or not aligned to 16.
    #[must_use]
    pub fn new(memory: DmaMemory) -> Option<(SplitQueue<SIZE>, DmaMemory)> {
        let (memory, rest) = memory.split_at(Self::BYTES)?;
        if !memory.is_aligned(ALIGN) {
            return None;
        }
        let mut queue = SplitQueue {
            memory,
            size: Self::SIZE_U16,
            next: [0; SIZE],
            outstanding: [None; SIZE],
            first_free: 0,
            free: 0,
            chains: 0,
            avail_index: 0,
            used_index: 0,
            flags: 0,
        };
        queue.reset(SIZE);
        Some((queue, rest))
    }

    /// Empties the queue, and limits its descriptors to the number that the device allows. The
    /// device must have been reset, and must not know the queue yet.
    pub fn reset(&mut self, device_allows: usize) {
        let most = u16::try_from(device_allows.clamp(1, SIZE)).unwrap_or(Self::SIZE_U16);
        self.size = 1 << most.ilog2();
        for offset in (0..Self::BYTES).step_by(ALIGN) {
            self.memory.write(offset, [0; ALIGN]);
        }
        self.memory.store_index(Self::AVAIL, self.flags);
        for (link, following) in self.next.iter_mut().zip(1..) {
            *link = following;
        }
        self.outstanding = [None; SIZE];
        (self.first_free, self.free, self.chains) = (0, self.size, 0);
        (self.avail_index, self.used_index) = (0, 0);
    }

    /// Returns the number of descriptors.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the device's address of the descriptor table.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        self.memory.device_addr()
    }

    /// Returns the device's address of the available ring.
    #[must_use]
    pub fn driver_area(&self) -> u64 {
        self.memory.device_addr() + Self::AVAIL as u64
    }

    /// Returns the device's address of the used ring.
    #[must_use]
    pub fn device_area(&self) -> u64 {
        self.memory.device_addr() + Self::USED as u64
    }

    /// Makes a chain available to the device, and returns its token. Costs a few stores for each
    /// buffer.
    ///
    /// # Errors
    /// The chain is invalid, or too few descriptors are free. Nothing has changed.
    ///
    /// # Safety
    /// The device may read or write the buffers, as declared, until [`pop`](Self::pop) returns the
    /// token or the device is reset. Nothing else may rely on their contents meanwhile.
    #[allow(unsafe_code)]
    pub unsafe fn push(&mut self, chain: &[Buffer]) -> Result<u16, QueueError> {
        let pieces = u16::try_from(chain.len()).map_err(|_| QueueError::Full)?;
        if pieces > self.free {
            return Err(QueueError::Full);
        }
        if pieces == 0 || chain.iter().any(|buffer| buffer.len == 0) {
            return Err(QueueError::Length);
        }
        if !chain.is_sorted_by_key(|buffer| buffer.device_writes) {
            return Err(QueueError::Order);
        }
        let writable = chain
            .iter()
            .filter(|buffer| buffer.device_writes)
            .try_fold(0u32, |sum, buffer| sum.checked_add(buffer.len))
            .ok_or(QueueError::Length)?;

        let head = self.first_free;
        for (i, buffer) in chain.iter().enumerate() {
            let descriptor = self.first_free;
            let next = self.next[usize::from(descriptor)];
            let last = i + 1 == chain.len();
            let mut flags = if last { 0 } else { NEXT };
            if buffer.device_writes {
                flags |= WRITE;
            }
            self.write_descriptor(descriptor, buffer, flags, if last { 0 } else { next });
            self.first_free = next;
        }
        self.free -= pieces;
        self.chains += 1;
        self.outstanding[usize::from(head)] = Some(Chain { pieces, writable });

        let slot = usize::from(self.avail_index & (self.size - 1));
        self.memory.write(Self::AVAIL + 4 + 2 * slot, head.to_le_bytes());
        self.avail_index = self.avail_index.wrapping_add(1);
        self.memory.store_index(Self::AVAIL + 2, self.avail_index);
        Ok(head)
    }

    /// Takes back a chain that the device has used, if there is one.
    ///
    /// # Errors
    /// The device has violated the protocol. The queue is unusable from then on: outstanding
    /// buffers belong to the device until it is reset, and every further call returns the same
    /// error.
    pub fn pop(&mut self) -> Result<Option<Used>, QueueError> {
        let index = self.memory.load_index(Self::USED + 2);
        if index == self.used_index {
            return Ok(None);
        }
        if index.wrapping_sub(self.used_index) > self.chains {
            return Err(QueueError::UsedIndex(index));
        }
        let slot = usize::from(self.used_index & (self.size - 1));
        let element = Self::USED + 4 + 8 * slot;
        let id = u32::from_le_bytes(self.memory.read(element));
        let written = u32::from_le_bytes(self.memory.read(element + 4));
        let unknown = QueueError::UsedId(id);
        let token = u16::try_from(id).map_err(|_| unknown)?;
        let outstanding = self.outstanding.get_mut(usize::from(token)).ok_or(unknown)?;
        let chain = outstanding.ok_or(unknown)?;
        *outstanding = None;
        self.recycle(token, chain.pieces);
        self.used_index = self.used_index.wrapping_add(1);
        Ok(Some(Used { token, written: written.min(chain.writable) }))
    }

    /// Returns whether the device must be notified of pushed chains.
    #[must_use]
    pub fn wants_notification(&self) -> bool {
        // Orders the index that `push` has stored before the read of the flag. The device stores
        // the flag and then reads the index again, so one of the two sees the other's store
        // (2.7.13.4.1).
        fence(Ordering::SeqCst);
        self.memory.load_index(Self::USED) & NO_NOTIFY == 0
    }

    /// Asks the device not to interrupt when it has used a chain, because the driver polls the
    /// queue (2.7.7). A device may still interrupt.
    pub fn suppress_interrupts(&mut self) {
        self.flags = NO_INTERRUPT;
        self.memory.store_index(Self::AVAIL, self.flags);
    }

    /// Returns the number of chains that the device owns.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.chains
    }

    fn write_descriptor(&mut self, index: u16, buffer: &Buffer, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&buffer.device_addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&buffer.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..16].copy_from_slice(&next.to_le_bytes());
        self.memory.write(16 * usize::from(index), bytes);
    }

    /// Puts a chain's descriptors at the front of the free list.
    fn recycle(&mut self, head: u16, pieces: u16) {
        let mut last = head;
        for _ in 1..pieces {
            last = self.next[usize::from(last)];
        }
        self.next[usize::from(last)] = self.first_free;
        self.first_free = head;
        self.free += pieces;
        self.chains -= 1;
    }
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            QueueError::Full => write!(f, "too few free descriptors"),
            QueueError::Length => {
                write!(f, "a chain must have 1 to 2^32 - 1 bytes, and no empty buffer")
            }
            QueueError::Order => {
                write!(f, "a buffer that the device reads follows one that it writes")
            }
            QueueError::UsedIndex(index) => {
                write!(f, "used index {index} exceeds the outstanding chains")
            }
            QueueError::UsedId(id) => write!(f, "used id {id} starts no outstanding chain"),
        }
    }
}

impl core::error::Error for QueueError {}
