//! Holds the memory of a model's guest: RAM, and the region of a memory device.

use crate::device::{Inaccessible, SCRATCH_BYTES};
use std::ops::Range;

/// The address of RAM.
const RAM: u64 = 1 << 30;

/// Two pieces of memory.
pub(super) struct Ram {
    pieces: [(u64, Vec<u8>); 2],
}

impl Ram {
    /// Makes RAM, and `region` behind it.
    pub(super) fn new(region: Range<u64>) -> Ram {
        let piece = |start, len: u64| (start, vec![0; usize::try_from(len).expect("it is small")]);
        let region = piece(region.start, region.end - region.start);
        Ram { pieces: [piece(RAM, SCRATCH_BYTES), region] }
    }

    /// Returns the addresses of RAM.
    pub(super) fn ram(&self) -> Range<u64> {
        RAM..RAM + SCRATCH_BYTES
    }

    pub(super) fn read(&self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        for (start, bytes) in &self.pieces {
            if let Some(range) = range(*start, bytes.len(), addr, data.len()) {
                data.copy_from_slice(&bytes[range]);
                return Ok(());
            }
        }
        Err(Inaccessible)
    }

    pub(super) fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        self.slice(addr, data.len()).ok_or(Inaccessible)?.copy_from_slice(data);
        Ok(())
    }

    /// Fills memory, as far as it exists.
    pub(super) fn fill(&mut self, addr: u64, len: u64, byte: u8) {
        if let Some(bytes) = usize::try_from(len).ok().and_then(|len| self.slice(addr, len)) {
            bytes.fill(byte);
        }
    }

    fn slice(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        let piece = self.pieces.iter_mut();
        piece.into_iter().find_map(|(start, bytes)| {
            let range = range(*start, bytes.len(), addr, len)?;
            bytes.get_mut(range)
        })
    }
}

/// Returns the indices of `len` bytes at `addr` in a piece of memory, if all of them lie in it.
fn range(start: u64, piece_len: usize, addr: u64, len: usize) -> Option<Range<usize>> {
    let offset = usize::try_from(addr.checked_sub(start)?).ok()?;
    let end = offset.checked_add(len)?;
    (end <= piece_len).then_some(offset..end)
}
