//! Implements the driver's side of a split virtqueue (2.7) that hides nothing: chains have any
//! descriptors, and what the device has used is returned as the device has written it.

use crate::device::{Device, Inaccessible};
use crate::failure::{Failure, Stop};
use crate::hash::Hash;
use core::sync::atomic::{Ordering, fence};

/// The largest number of descriptors in a queue of the suite.
pub(crate) const MAX_DESCRIPTORS: u16 = 64;
/// The size in bytes of the memory of a queue.
pub(crate) const RING_BYTES: u64 = 4096;
const MAX_CHAINS: usize = 8;

/// The offsets of the available ring and the used ring.
const AVAIL: u64 = 16 * MAX_DESCRIPTORS as u64;
const USED: u64 = 2048;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A buffer, as a descriptor names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    /// Whether the device writes the buffer. Otherwise it reads it.
    pub(crate) device_writes: bool,
}

/// A chain that the device has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// The first descriptor of the chain.
    pub(crate) head: u16,
    /// The number of bytes that the device reports as written.
    pub(crate) len: u32,
}

#[derive(Clone, Copy)]
struct Chain {
    head: u16,
    /// The number of bytes that the device may write.
    writable: u32,
}

/// A queue in guest memory.
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    number: u16,
    size: u16,
    start: u64,
    next_descriptor: u16,
    avail_index: u16,
    used_index: u16,
    outstanding: [Option<Chain>; MAX_CHAINS],
    /// A hash of the memory that only the driver writes.
    driver_hash: Hash,
}

impl Ring {
    /// Makes an empty queue in [`RING_BYTES`] of memory at `start`. `size` is a power of two, at most
    /// [`MAX_DESCRIPTORS`].
    pub(crate) fn new(
        device: &mut dyn Device,
        number: u16,
        size: u16,
        start: u64,
    ) -> Result<Ring, Failure> {
        let mut ring = Ring {
            number,
            size,
            start,
            next_descriptor: 0,
            avail_index: 0,
            used_index: 0,
            outstanding: [None; MAX_CHAINS],
            driver_hash: Hash::default(),
        };
        for offset in (0..RING_BYTES).step_by(64) {
            write(device, start + offset, &[0; 64])?;
        }
        ring.driver_hash = ring.hash(device)?;
        Ok(ring)
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Returns the addresses of the descriptors, the available ring and the used ring.
    pub(crate) fn areas(&self) -> [u64; 3] {
        [self.start, self.start + AVAIL, self.start + USED]
    }

    /// Makes a chain available, and returns its first descriptor. Skips the point if the queue has too
    /// few descriptors.
    ///
    /// # Panics
    /// Panics if a point makes more chains available at once than the ring remembers.
    pub(crate) fn push(
        &mut self,
        device: &mut dyn Device,
        chain: &[Descriptor],
    ) -> Result<u16, Stop> {
        if self.outstanding_count() == 0 {
            self.next_descriptor = 0;
        }
        if usize::from(self.size - self.next_descriptor) < chain.len() {
            return Err(Stop::Skipped("the queue has too few descriptors"));
        }
        let head = self.next_descriptor;
        for (i, descriptor) in chain.iter().enumerate() {
            let index = self.next_descriptor;
            let next = if i + 1 < chain.len() { NEXT } else { 0 };
            let flags = next | if descriptor.device_writes { WRITE } else { 0 };
            let mut bytes = [0; 16];
            bytes[0..8].copy_from_slice(&descriptor.addr.to_le_bytes());
            bytes[8..12].copy_from_slice(&descriptor.len.to_le_bytes());
            bytes[12..14].copy_from_slice(&flags.to_le_bytes());
            bytes[14..16].copy_from_slice(&(index + 1).to_le_bytes());
            write(device, self.start + 16 * u64::from(index), &bytes)?;
            self.next_descriptor += 1;
        }
        let writable = chain.iter().filter(|buffer| buffer.device_writes);
        let writable = writable.map(|buffer| buffer.len).sum();
        let place = self.outstanding.iter_mut().find(|place| place.is_none());
        *place.expect("a point makes too many chains available") = Some(Chain { head, writable });
        let entry = AVAIL + 4 + 2 * u64::from(self.avail_index % self.size);
        write(device, self.start + entry, &head.to_le_bytes())?;
        self.avail_index = self.avail_index.wrapping_add(1);
        // The device reads the entry after the index (2.7.13.3).
        fence(Ordering::SeqCst);
        write(device, self.start + AVAIL + 2, &self.avail_index.to_le_bytes())?;
        fence(Ordering::SeqCst);
        self.driver_hash = self.hash(device)?;
        Ok(head)
    }

    /// Takes the next chain that the device has used, or `None`.
    pub(crate) fn pop(&mut self, device: &mut dyn Device) -> Result<Option<Used>, Failure> {
        let index = u16::from_le_bytes(read(device, self.start + USED + 2)?);
        fence(Ordering::SeqCst);
        let count = index.wrapping_sub(self.used_index);
        if count == 0 {
            return Ok(None);
        }
        let outstanding = self.outstanding_count();
        if outstanding == 0 {
            return Err(Failure::UnexpectedAnswer { queue: self.number });
        }
        if usize::from(count) > outstanding {
            let limit = self.used_index.wrapping_add(u16::try_from(outstanding).unwrap_or(0));
            return Err(Failure::UsedIndex { limit, found: index });
        }
        let entry = USED + 4 + 8 * u64::from(self.used_index % self.size);
        let id = u32::from_le_bytes(read(device, self.start + entry)?);
        let len = u32::from_le_bytes(read(device, self.start + entry + 4)?);
        let is_used =
            |chain: &&mut Option<Chain>| chain.is_some_and(|chain| u32::from(chain.head) == id);
        let chain = self.outstanding.iter_mut().find(is_used).and_then(Option::take);
        let Some(Chain { head, writable }) = chain else { return Err(Failure::UsedId(id)) };
        // A chain that the device only reads has points of its own.
        if writable != 0 && len > writable {
            return Err(Failure::UsedLength { writable, found: len });
        }
        self.used_index = self.used_index.wrapping_add(1);
        self.check(device)?;
        Ok(Some(Used { head, len }))
    }

    /// Checks that the device has not written what only the driver writes.
    pub(crate) fn check(&self, device: &mut dyn Device) -> Result<(), Failure> {
        if self.hash(device)? == self.driver_hash {
            Ok(())
        } else {
            Err(Failure::RingWritten { queue: self.number })
        }
    }

    fn outstanding_count(&self) -> usize {
        self.outstanding.iter().flatten().count()
    }

    /// Returns the hash of the descriptors and the available ring.
    fn hash(&self, device: &mut dyn Device) -> Result<Hash, Failure> {
        let mut hash = Hash::default();
        for offset in (0..USED).step_by(64) {
            hash.add(&read::<64>(device, self.start + offset)?);
        }
        Ok(hash)
    }
}

/// Copies `N` bytes out of guest memory.
pub(crate) fn read<const N: usize>(device: &mut dyn Device, addr: u64) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    device.read_memory(addr, &mut bytes).map_err(|Inaccessible| Failure::Inaccessible { addr })?;
    Ok(bytes)
}

/// Copies bytes into guest memory.
pub(crate) fn write(device: &mut dyn Device, addr: u64, bytes: &[u8]) -> Result<(), Failure> {
    device.write_memory(addr, bytes).map_err(|Inaccessible| Failure::Inaccessible { addr })
}
