//! Implements a split virtqueue (2.7) whose buffers are addresses instead of references.
//!
//! A slice must not refer to memory that a host discards or plugs, so a chain consists of addresses
//! and lengths as the device sees them. Nothing that the device can write is trusted: links and
//! lengths are kept in the driver's own memory, and every used element must name an outstanding
//! chain. A device that reports more written bytes than it may write in the chain violates the
//! protocol. The exception is a chain that the device only reads, for which QEMU before 7.0 and
//! earlier releases of Cloud Hypervisor report the number of bytes that they have read.

mod error;
mod features;

pub use error::QueueError;
pub use features::QueueFeatures;

use crate::barrier::order_all;
use crate::dma::DmaMemory;

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
    features: QueueFeatures,
    suppresses_interrupts: bool,
    /// Whether an outstanding chain has its descriptors in the indirect table.
    is_table_used: bool,
    /// The available index when [`wants_notification`](SplitQueue::wants_notification) was last called.
    notified_index: u16,
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

#[derive(Clone, Copy, Debug)]
struct Chain {
    /// The number of descriptors of the queue's own table.
    descriptor_count: u16,
    /// Whether the buffers are named by the indirect table.
    uses_table: bool,
    writable_bytes: u32,
    readable_bytes: u32,
}

/// `VIRTQ_DESC_F_NEXT`
const NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`
const WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT`
const INDIRECT: u16 = 4;
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
    /// The offset of the indirect table, in which one chain at a time has its descriptors.
    const TABLE_OFFSET: usize = 16 * SIZE;
    /// The offset of the available ring.
    const AVAIL_OFFSET: usize = Self::TABLE_OFFSET + 16 * SIZE;
    /// The offset of the used ring, a multiple of four.
    const USED_OFFSET: usize = (Self::AVAIL_OFFSET + 6 + 2 * SIZE).next_multiple_of(4);
    /// The size in bytes of the shared memory that the queue needs.
    pub const BYTES: usize = (Self::USED_OFFSET + 6 + 8 * SIZE).next_multiple_of(ALIGN);

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
            features: QueueFeatures::default(),
            suppresses_interrupts: false,
            is_table_used: false,
            notified_index: 0,
        };
        queue.reset(SIZE, QueueFeatures::default());
        Some((queue, remaining))
    }

    /// Empties the queue, limits its number of descriptors to `device_allows`, rounded down to a power
    /// of two, and gives it the negotiated features. Call this only after the device was reset, and
    /// before the device is told the addresses of the queue.
    pub fn reset(&mut self, device_allows: usize, features: QueueFeatures) {
        let max = u16::try_from(device_allows.clamp(1, SIZE)).unwrap_or(Self::SIZE_U16);
        self.size = 1 << max.ilog2();
        for offset in (0..Self::BYTES).step_by(ALIGN) {
            self.memory.write(offset, [0; ALIGN]);
        }
        for (link, following) in self.next_descriptors.iter_mut().zip(1..) {
            *link = following;
        }
        self.outstanding_chains = [None; SIZE];
        (self.first_free, self.free_count, self.outstanding_count) = (0, self.size, 0);
        (self.avail_index, self.used_index, self.notified_index) = (0, 0, 0);
        (self.features, self.is_table_used) = (features, false);
        self.ask_for_interrupt();
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
        let uses_table = self.features.indirect && buffer_count > 1 && !self.is_table_used;
        let descriptor_count = if uses_table { 1 } else { buffer_count };
        // A chain must not be longer than the queue, also in an indirect table (2.7.5.3.1).
        if descriptor_count > self.free_count || buffer_count > self.size {
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
        // A chain must not have more than 2³² bytes in total (2.7.5.2).
        writable_bytes.checked_add(readable_bytes).ok_or(QueueError::Length)?;

        let head = self.first_free;
        if uses_table {
            self.write_to_table(head, chain);
        } else {
            self.write_descriptors(chain);
        }
        self.free_count -= descriptor_count;
        self.outstanding_count += 1;
        self.outstanding_chains[usize::from(head)] =
            Some(Chain { descriptor_count, uses_table, writable_bytes, readable_bytes });

        let ring_index = usize::from(self.avail_index & (self.size - 1));
        self.memory.write(Self::AVAIL_OFFSET + 4 + 2 * ring_index, head.to_le_bytes());
        self.avail_index = self.avail_index.wrapping_add(1);
        self.memory.store_index(Self::AVAIL_OFFSET + 2, self.avail_index);
        Ok(head)
    }

    /// Takes back the next chain that the device has used, or returns `None` if the device has used
    /// none. Call it until it returns `None` before you wait for an interrupt: with `EVENT_IDX`, the
    /// device interrupts only for the first chain that no call has returned.
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
        self.is_table_used &= !chain.uses_table;
        self.recycle(token, chain.descriptor_count);
        self.used_index = self.used_index.wrapping_add(1);
        if self.features.event_index {
            self.ask_for_interrupt();
        }
        Ok(Some(Used { token, written: if only_reads { 0 } else { reported } }))
    }

    /// Returns whether the device must be notified of the chains that were pushed since the last call.
    pub fn wants_notification(&mut self) -> bool {
        // Orders the index that `push` has stored before the read of what the device wants. The device
        // stores that and then reads the index again, so one of the two sees the other's store
        // (2.7.13.4.1). Also orders all that was written to memory before the notification.
        order_all();
        let earlier = core::mem::replace(&mut self.notified_index, self.avail_index);
        match self.features.event_index {
            false => self.memory.load_index(Self::USED_OFFSET) & NO_NOTIFY == 0,
            // The device wants to be notified when the chain with this number is made available. The
            // flag must be ignored (2.7.10.1).
            true => {
                let event = self.memory.load_index(self.avail_event_offset());
                let pushed = self.avail_index.wrapping_sub(earlier);
                self.avail_index.wrapping_sub(event).wrapping_sub(1) < pushed
            }
        }
    }

    /// Returns whether the device may be notified again of chains that it has not used. A device with
    /// `EVENT_IDX` can only ask for notifications of later chains, so that nothing forbids it.
    #[must_use]
    pub fn allows_notification(&self) -> bool {
        self.features.event_index || self.memory.load_index(Self::USED_OFFSET) & NO_NOTIFY == 0
    }

    /// Asks the device not to interrupt when it has used a chain, because the driver polls the
    /// queue (2.7.7). A device may still interrupt.
    pub fn suppress_interrupts(&mut self) {
        self.suppresses_interrupts = true;
        self.ask_for_interrupt();
    }

    /// Tells the device to interrupt when it uses the next chain, or never if interrupts are
    /// suppressed.
    fn ask_for_interrupt(&mut self) {
        if !self.features.event_index {
            let flags = if self.suppresses_interrupts { NO_INTERRUPT } else { 0 };
            return self.memory.store_index(Self::AVAIL_OFFSET, flags);
        }
        // The device interrupts when it uses the chain with this number (2.7.7.2). The number of the
        // chain that it has used last comes again only after all others.
        let next = self.used_index;
        let event = if self.suppresses_interrupts { next.wrapping_sub(1) } else { next };
        self.memory.store_index(self.used_event_offset(), event);
        // Orders this store before the next read of the used index. The device stores that index and
        // then reads the event, so either it interrupts, or the next `pop` finds its chain (2.7.14).
        order_all();
    }

    /// Returns the number of chains that the device owns.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.outstanding_count
    }

    /// Returns the offset of `used_event`, which follows the entries of the available ring.
    fn used_event_offset(&self) -> usize {
        Self::AVAIL_OFFSET + 4 + 2 * usize::from(self.size)
    }

    /// Returns the offset of `avail_event`, which follows the entries of the used ring.
    fn avail_event_offset(&self) -> usize {
        Self::USED_OFFSET + 4 + 8 * usize::from(self.size)
    }

    /// Writes the buffers to free descriptors.
    fn write_descriptors(&mut self, chain: &[Buffer]) {
        for (i, buffer) in chain.iter().enumerate() {
            let descriptor = self.first_free;
            let next = self.next_descriptors[usize::from(descriptor)];
            let has_next = i + 1 < chain.len();
            self.write_descriptor(16 * usize::from(descriptor), buffer, has_next.then_some(next));
            self.first_free = next;
        }
    }

    /// Writes the buffers to the indirect table, and one descriptor that names the table.
    fn write_to_table(&mut self, head: u16, chain: &[Buffer]) {
        for ((i, buffer), next) in chain.iter().enumerate().zip(1..) {
            let has_next = i + 1 < chain.len();
            let offset = Self::TABLE_OFFSET + 16 * i;
            self.write_descriptor(offset, buffer, has_next.then_some(next));
        }
        let table_addr = self.memory.device_addr() + Self::TABLE_OFFSET as u64;
        let bytes = u32::try_from(16 * chain.len()).unwrap_or(u32::MAX);
        self.write_raw_descriptor(16 * usize::from(head), table_addr, bytes, INDIRECT, 0);
        self.first_free = self.next_descriptors[usize::from(head)];
        self.is_table_used = true;
    }

    fn write_descriptor(&mut self, offset: usize, buffer: &Buffer, next: Option<u16>) {
        let next_flag = next.map_or(0, |_| NEXT);
        let flags = next_flag | if buffer.device_writes { WRITE } else { 0 };
        let Buffer { device_addr, len, .. } = *buffer;
        self.write_raw_descriptor(offset, device_addr, len, flags, next.unwrap_or(0));
    }

    fn write_raw_descriptor(&mut self, offset: usize, addr: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..16].copy_from_slice(&next.to_le_bytes());
        self.memory.write(offset, bytes);
    }

    /// Puts a chain's descriptors at the front of the free list.
    fn recycle(&mut self, head: u16, descriptor_count: u16) {
        let mut last = head;
        for _ in 1..descriptor_count {
            last = self.next_descriptors[usize::from(last)];
        }
        self.next_descriptors[usize::from(last)] = self.first_free;
        self.first_free = head;
        self.free_count += descriptor_count;
        self.outstanding_count -= 1;
    }
}
