//! Places buffers in guest memory, and notices what a device writes outside of them.

use crate::device::Device;
use crate::failure::Failure;
use crate::ring::{Descriptor, read, write};

/// The size in bytes of the memory for buffers.
const BYTES: usize = 2048;
/// Buffers begin at multiples of this, and are followed by bytes that the device must not write.
const ALIGN: usize = 64;
const MAX_WRITABLE: usize = 8;
/// The contents of memory that is no buffer.
const UNUSED: u8 = 0xee;

/// Memory for the buffers of a few requests, and a copy of it as the device must leave it.
pub(crate) struct Buffers {
    start: u64,
    copy: [u8; BYTES],
    end: usize,
    /// The ranges that the device may write.
    writable: [(usize, usize); MAX_WRITABLE],
    writable_count: usize,
}

impl Buffers {
    /// Makes buffers in guest memory at `start`.
    pub(crate) fn new(device: &mut dyn Device, start: u64) -> Result<Buffers, Failure> {
        let mut buffers = Buffers {
            start,
            copy: [UNUSED; BYTES],
            end: 0,
            writable: [(0, 0); MAX_WRITABLE],
            writable_count: 0,
        };
        buffers.clear(device)?;
        Ok(buffers)
    }

    /// Forgets all buffers. No request may be outstanding.
    pub(crate) fn clear(&mut self, device: &mut dyn Device) -> Result<(), Failure> {
        self.copy = [UNUSED; BYTES];
        (self.end, self.writable_count) = (ALIGN, 0);
        write(device, self.start, &self.copy)
    }

    /// Makes a buffer with contents that the device reads.
    pub(crate) fn readable(
        &mut self,
        device: &mut dyn Device,
        bytes: &[u8],
    ) -> Result<Descriptor, Failure> {
        let (at, descriptor) = self.place(bytes.len(), false);
        self.copy[at..at + bytes.len()].copy_from_slice(bytes);
        write(device, descriptor.addr, bytes)?;
        Ok(descriptor)
    }

    /// Makes a buffer that the device writes.
    pub(crate) fn writable(&mut self, len: usize) -> Descriptor {
        let (at, descriptor) = self.place(len, true);
        self.writable[self.writable_count] = (at, at + len);
        self.writable_count += 1;
        descriptor
    }

    /// Checks that the device has written only buffers that it may write.
    pub(crate) fn check(&self, device: &mut dyn Device) -> Result<(), Failure> {
        for at in (0..BYTES).step_by(ALIGN) {
            let found = read::<ALIGN>(device, self.start + at as u64)?;
            for (at, found) in (at..).zip(found) {
                let may_write = self.writable[..self.writable_count]
                    .iter()
                    .any(|&(start, end)| (start..end).contains(&at));
                if !may_write && found != self.copy[at] {
                    let (addr, expected) = (self.start + at as u64, self.copy[at]);
                    return Err(Failure::WrittenOutside { addr, expected, found });
                }
            }
        }
        Ok(())
    }

    /// Returns the place of `len` bytes and their descriptor.
    ///
    /// # Panics
    /// Panics if a point needs more memory than there is.
    fn place(&mut self, len: usize, device_writes: bool) -> (usize, Descriptor) {
        let at = self.end;
        // At least one byte behind the buffer is unused.
        self.end = (at + len + 1).next_multiple_of(ALIGN);
        assert!(self.end <= BYTES, "a point needs more memory for buffers");
        let len = u32::try_from(len).expect("the memory for buffers is small");
        (at, Descriptor { addr: self.start + at as u64, len, device_writes })
    }
}
