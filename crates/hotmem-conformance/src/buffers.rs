//! Places buffers in guest memory, and notices what a device writes outside of those that it may write.

use crate::device::Device;
use crate::failure::Failure;
use crate::hash::Hash;
use crate::ring::{Descriptor, read, write};

/// The size in bytes of the memory for buffers.
const BYTES: u16 = 2048;
/// Buffers begin at multiples of this. At least one byte behind a buffer is no buffer.
const ALIGN: u16 = 64;
const MAX_BUFFERS: usize = 16;
/// The contents of memory that is no buffer.
const UNUSED: u8 = 0xee;

/// Memory for the buffers of a few requests. Only hashes of the contents are kept, so that a kernel with
/// a small stack can use it.
pub(crate) struct Buffers {
    start: u64,
    buffers: [Buffer; MAX_BUFFERS],
    count: usize,
    end: u16,
}

#[derive(Clone, Copy, Default)]
struct Buffer {
    start: u16,
    end: u16,
    /// The hash of the contents that the device only reads, or `None` if it may write them.
    contents: Option<Hash>,
}

impl Buffers {
    /// Takes guest memory at `start`, which must be cleared before it is used.
    pub(crate) fn new(start: u64) -> Buffers {
        Buffers { start, buffers: [Buffer::default(); MAX_BUFFERS], count: 0, end: ALIGN }
    }

    /// Forgets all buffers. No request may be outstanding.
    pub(crate) fn clear(&mut self, device: &mut dyn Device) -> Result<(), Failure> {
        (self.count, self.end) = (0, ALIGN);
        for at in (0..BYTES).step_by(usize::from(ALIGN)) {
            write(device, self.start + u64::from(at), &[UNUSED; ALIGN as usize])?;
        }
        Ok(())
    }

    /// Makes a buffer with contents that the device reads.
    pub(crate) fn readable(
        &mut self,
        device: &mut dyn Device,
        bytes: &[u8],
    ) -> Result<Descriptor, Failure> {
        let descriptor = self.place(bytes.len(), Some(Hash::of(bytes)));
        write(device, descriptor.addr, bytes)?;
        Ok(descriptor)
    }

    /// Makes a buffer that the device writes.
    pub(crate) fn writable(&mut self, len: usize) -> Descriptor {
        self.place(len, None)
    }

    /// Checks that the device has written only buffers that it may write.
    pub(crate) fn check(&self, device: &mut dyn Device) -> Result<(), Failure> {
        let mut hash = Hash::default();
        for at in (0..BYTES).step_by(usize::from(ALIGN)) {
            let addr = self.start + u64::from(at);
            let bytes = read::<{ ALIGN as usize }>(device, addr)?;
            // No two buffers share these bytes.
            let mut buffers = self.buffers[..self.count].iter();
            let buffer = buffers.find(|buffer| (buffer.start..buffer.end).contains(&at));
            let end = buffer.map_or(at, |buffer| buffer.end);
            let (used, unused) = bytes.split_at(usize::from((end - at).min(ALIGN)));
            if let Some((offset, &found)) = (0..).zip(unused).find(|(_, byte)| **byte != UNUSED) {
                let addr = addr + used.len() as u64 + offset;
                return Err(Failure::WrittenOutside { addr, found });
            }
            let Some(buffer) = buffer else { continue };
            if at == buffer.start {
                hash = Hash::default();
            }
            hash.add(used);
            let is_whole = buffer.end <= at + ALIGN;
            if is_whole && buffer.contents.is_some_and(|contents| contents != hash) {
                let addr = self.start + u64::from(buffer.start);
                return Err(Failure::ReadableWritten { addr });
            }
        }
        Ok(())
    }

    /// Returns the descriptor of the next place for `len` bytes.
    ///
    /// # Panics
    /// Panics if a point needs more memory or more buffers than there are.
    fn place(&mut self, len: usize, contents: Option<Hash>) -> Descriptor {
        let bytes = u16::try_from(len).expect("the memory for buffers is small");
        let start = self.end;
        self.end = (start + bytes + 1).next_multiple_of(ALIGN);
        assert!(self.end <= BYTES, "a point needs more memory for buffers");
        self.buffers[self.count] = Buffer { start, end: start + bytes, contents };
        self.count += 1;
        let addr = self.start + u64::from(start);
        Descriptor { addr, len: bytes.into(), device_writes: contents.is_none() }
    }
}
