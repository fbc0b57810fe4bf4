//! Implements a split virtqueue (2.7) whose buffers are addresses instead of references.
//!
//! A slice must not refer to memory that a host discards or plugs, so a chain consists of addresses
//! and lengths as the device sees them. Nothing that the device can write is trusted: links and
//! lengths are kept in the driver's own memory, and every used element must name an outstanding
//! chain. A device that reports more written bytes than it may write in the chain violates the
//! protocol. The exception is a chain that the device only reads, for which QEMU before 7.0 and
//! earlier releases of Cloud Hypervisor report the number of bytes that they have read.

use crate::barrier::order_all;
use crate::dma::DmaMemory;
use core::fmt;

/// A split virtqueue of at most `SIZE` descriptors. `SIZE` is a power of two, at most 2¹⁵.
#[derive(Debug)]
pub struct SplitQueue<const SIZE: usize> {
    memory: DmaMemory,
    /// The number of descriptors: a power of two.
    size: u16,
    /// For each descriptor, the next one in its chain or in the free list.
    next_descriptors: [u16; SIZE],
    /// The chains that the device owns, indexed by their first descriptor.
    outstanding_chains: [Option<Chain>; SIZE],
    first_free: u16,
    free_count: u16,
    outstanding_count: u16,
    avail_index: u16,
    used_index: u16,
    /// The flags of the available ring.
    flags: u16,
}

/// One buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The buffer's address as the device sees it.
    pub device_addr: u64,
    /// The size in bytes.
    pub len: u32,
    /// Whether the device writes the buffer. Otherwise the device reads it.
    pub device_writes: bool,
}

/// A chain that the device has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The token that [`SplitQueue::push`] returned for the chain.
    pub token: u16,
    /// The number of bytes that the device reports as written: 0 for a chain that the device only
    /// reads.
    pub written: u32,
}

/// An invalid chain, or a violation of the protocol by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// Fewer descriptors are free than the chain has buffers.
    Full,
    /// The chain or one of its buffers is empty, or its length does not fit in 32 bits.
    Length,
    /// A buffer that the device reads follows a buffer that the device writes.
    Order,
    /// The used index exceeds the number of outstanding chains.
    UsedIndex(u16),
    /// The used element names a descriptor that is not the first of an outstanding chain.
    UsedId(u32),
    /// The used element of this chain reports more bytes than the device was given.
    UsedLength {
        /// The token of the chain.
        token: u16,
        /// The number of bytes that the device reports.
        reported: u32,
        /// The number of bytes that the device may write, or may read if it may write none.
        given: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    buffer_count: u16,
    writable_bytes: u32,
    readable_bytes: u32,
}

/// `VIRTQ_DESC_F_NEXT`
const NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`
const WRITE: u16 = 2;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`
const NO_INTERRUPT: u16 = 1;
/// `VIRTQ_USED_F_NO_NOTIFY`
const NO_NOTIFY: u16 = 1;
/// The alignment of the descriptor table in bytes. The two rings need less.
const ALIGN: usize = 16;

impl<const SIZE: usize> SplitQueue<SIZE> {
    const SIZE_U16: u16 = {
        assert!(SIZE.is_power_of_two() && SIZE <= 1 << 15);
        #[expect(clippy::cast_possible_truncation, reason = "just asserted")]
        let size = SIZE as u16;
        size
    };
    /// The offset of the available ring.
    const AVAIL_OFFSET: usize = 16 * SIZE;
    /// The offset of the used ring, a multiple of four.
    const USED_OFFSET: usize = (Self::AVAIL_OFFSET + 4 + 2 * SIZE).next_multiple_of(4);
    /// The size in bytes of the shared memory that the queue needs.
    pub const BYTES: usize = (Self::USED_OFFSET + 4 + 8 * SIZE).next_multiple_of(ALIGN);

    /// Makes a queue in the first [`BYTES`](Self::BYTES) of `memory`. Returns the queue and the
    /// rest of the memory, or `None` if `memory` is smaller or not aligned to 16 bytes.
    #[must_use]
    pub fn new(memory: DmaMemory) -> Option<(SplitQueue<SIZE>, DmaMemory)> {
        let (memory, remaining) = memory.split_at(Self::BYTES)?;
        if !memory.is_aligned(ALIGN) {
            return None;
        }
        let mut queue = SplitQueue {
            memory,
            size: Self::SIZE_U16,
            next_descriptors: [0; SIZE],
            outstanding_chains: [None; SIZE],
            first_free: 0,
            free_count: 0,
            outstanding_count: 0,
            avail_index: 0,
            used_index: 0,
            flags: 0,
        };
        queue.reset(SIZE);
        Some((queue, remaining))
    }

    /// Empties the queue, and limits its number of descriptors to `device_allows`, rounded down to
    /// a power of two. Call this only after the device was reset, and before the device is told the
    /// addresses of the queue.
    pub fn reset(&mut self, device_allows: usize) {
        let max = u16::try_from(device_allows.clamp(1, SIZE)).unwrap_or(Self::SIZE_U16);
        self.size = 1 << max.ilog2();
        for offset in (0..Self::BYTES).step_by(ALIGN) {
            self.memory.write(offset, [0; ALIGN]);
        }
        self.memory.store_index(Self::AVAIL_OFFSET, self.flags);
        for (link, following) in self.next_descriptors.iter_mut().zip(1..) {
            *link = following;
        }
        self.outstanding_chains = [None; SIZE];
        (self.first_free, self.free_count, self.outstanding_count) = (0, self.size, 0);
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
        self.memory.device_addr() + Self::AVAIL_OFFSET as u64
    }

    /// Returns the device's address of the used ring.
    #[must_use]
    pub fn device_area(&self) -> u64 {
        self.memory.device_addr() + Self::USED_OFFSET as u64
    }

    /// Makes a chain available to the device, and returns its token. Costs a few stores for each
    /// buffer.
    ///
    /// # Errors
    /// The chain is invalid, or too few descriptors are free. Nothing has changed.
    ///
    /// # Safety
    /// Until [`pop`](Self::pop) returns the token or the device is reset, the device may read the
    /// buffers, and write those with `device_writes`. Until then no other code relies on the
    /// contents of the buffers.
    #[allow(unsafe_code)]
    pub unsafe fn push(&mut self, chain: &[Buffer]) -> Result<u16, QueueError> {
        let buffer_count = u16::try_from(chain.len()).map_err(|_| QueueError::Full)?;
        if buffer_count > self.free_count {
            return Err(QueueError::Full);
        }
        if buffer_count == 0 || chain.iter().any(|buffer| buffer.len == 0) {
            return Err(QueueError::Length);
        }
        if !chain.is_sorted_by_key(|buffer| buffer.device_writes) {
            return Err(QueueError::Order);
        }
        let sum = |device_writes| {
            chain
                .iter()
                .filter(|buffer| buffer.device_writes == device_writes)
                .try_fold(0u32, |sum, buffer| sum.checked_add(buffer.len))
                .ok_or(QueueError::Length)
        };
        let (writable_bytes, readable_bytes) = (sum(true)?, sum(false)?);

        let head = self.first_free;
        for (i, buffer) in chain.iter().enumerate() {
            let descriptor = self.first_free;
            let next = self.next_descriptors[usize::from(descriptor)];
            let last = i + 1 == chain.len();
            let mut flags = if last { 0 } else { NEXT };
            if buffer.device_writes {
                flags |= WRITE;
            }
            self.write_descriptor(descriptor, buffer, flags, if last { 0 } else { next });
            self.first_free = next;
        }
        self.free_count -= buffer_count;
        self.outstanding_count += 1;
        self.outstanding_chains[usize::from(head)] =
            Some(Chain { buffer_count, writable_bytes, readable_bytes });

        let ring_index = usize::from(self.avail_index & (self.size - 1));
        self.memory.write(Self::AVAIL_OFFSET + 4 + 2 * ring_index, head.to_le_bytes());
        self.avail_index = self.avail_index.wrapping_add(1);
        self.memory.store_index(Self::AVAIL_OFFSET + 2, self.avail_index);
        Ok(head)
    }

    /// Takes back the next chain that the device has used, or returns `None` if the device has used
    /// none.
    ///
    /// # Errors
    /// The device has violated the protocol. The queue is unusable from then on: outstanding
    /// buffers belong to the device until the device is reset, and every further call returns the
    /// same error.
    pub fn pop(&mut self) -> Result<Option<Used>, QueueError> {
        let index = self.memory.load_index(Self::USED_OFFSET + 2);
        if index == self.used_index {
            return Ok(None);
        }
        if index.wrapping_sub(self.used_index) > self.outstanding_count {
            return Err(QueueError::UsedIndex(index));
        }
        let ring_index = usize::from(self.used_index & (self.size - 1));
        let element = Self::USED_OFFSET + 4 + 8 * ring_index;
        let id = u32::from_le_bytes(self.memory.read(element));
        let reported = u32::from_le_bytes(self.memory.read(element + 4));
        let unknown = QueueError::UsedId(id);
        let token = u16::try_from(id).map_err(|_| unknown)?;
        let outstanding = self.outstanding_chains.get_mut(usize::from(token)).ok_or(unknown)?;
        let chain = outstanding.ok_or(unknown)?;
        let only_reads = chain.writable_bytes == 0;
        let given = if only_reads { chain.readable_bytes } else { chain.writable_bytes };
        if reported > given {
            return Err(QueueError::UsedLength { token, reported, given });
        }
        *outstanding = None;
        self.recycle(token, chain.buffer_count);
        self.used_index = self.used_index.wrapping_add(1);
        Ok(Some(Used { token, written: if only_reads { 0 } else { reported } }))
    }

    /// Returns whether the device must be notified after chains were pushed.
    #[must_use]
    pub fn wants_notification(&self) -> bool {
        // Orders the index that `push` has stored before the read of the flag. The device stores
        // the flag and then reads the index again, so one of the two sees the other's store
        // (2.7.13.4.1). Also orders all that was written to memory before the notification.
        order_all();
        self.memory.load_index(Self::USED_OFFSET) & NO_NOTIFY == 0
    }

    /// Asks the device not to interrupt when it has used a chain, because the driver polls the
    /// queue (2.7.7). A device may still interrupt.
    pub fn suppress_interrupts(&mut self) {
        self.flags = NO_INTERRUPT;
        self.memory.store_index(Self::AVAIL_OFFSET, self.flags);
    }

    /// Returns the number of chains that the device owns.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.outstanding_count
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
    fn recycle(&mut self, head: u16, buffer_count: u16) {
        let mut last = head;
        for _ in 1..buffer_count {
            last = self.next_descriptors[usize::from(last)];
        }
        self.next_descriptors[usize::from(last)] = self.first_free;
        self.first_free = head;
        self.free_count += buffer_count;
        self.outstanding_count -= 1;
    }
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            QueueError::Full => {
                write!(f, "the queue has fewer free descriptors than the chain has buffers")
            }
            QueueError::Length => {
                write!(f, "a chain must have 1 to 2^32 - 1 bytes, and no empty buffer")
            }
            QueueError::Order => {
                write!(f, "a buffer that the device reads follows a buffer that the device writes")
            }
            QueueError::UsedIndex(index) => {
                write!(f, "the used index {index} exceeds the number of outstanding chains")
            }
            QueueError::UsedId(id) => {
                write!(f, "the used id {id} is not the first descriptor of an outstanding chain")
            }
            QueueError::UsedLength { token, reported, given } => {
                write!(
                    f,
                    "the device was given {given} bytes by chain {token}, and reports {reported}"
                )
            }
        }
    }
}

impl core::error::Error for QueueError {}
