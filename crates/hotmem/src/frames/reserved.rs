//! Which frames of boot memory are still reserved: in use by nobody whom the allocator knows.
//!
//! To the allocator a reserved frame is like one that is allocated. A bitmap tells them apart, so
//! that what a zone manages is counted exactly; only sections that had reserved memory at boot have
//! one. Nothing but the control path reads or writes it.

use super::reserved_bitmaps::offsets;
use super::{Frames, FreeError, FreeErrorKind};
use crate::addr::PfnRange;
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES};
use crate::platform::Platform;
use crate::words::Block;

impl<P: Platform> Frames<P> {
    /// Boot only, single-threaded: the bitmaps of these sections, which are named in ascending
    /// order, lie at `memory`.
    ///
    /// # Safety
    /// `memory` is aligned to 8 bytes, has room for a bitmap of each section, and belongs to this
    /// machine for good.
    #[cfg(not(loom))]
    pub(crate) unsafe fn install_reserved(
        &self,
        sections: impl Iterator<Item = PfnRange>,
        memory: *mut u8,
    ) {
        // SAFETY: by the caller's promise.
        unsafe { self.reserved.install(sections, memory) };
    }

    /// Boot only: `range`, which lies in sections with a bitmap, is reserved. How many frames of it
    /// were not before.
    #[cfg(not(loom))]
    pub(crate) fn reserve(&self, range: PfnRange) -> u64 {
        self.reserved.set(range)
    }

    /// Frames of `range` are reserved no more, though they may be in use: how many were.
    pub(crate) fn unreserve(&self, range: PfnRange) -> u64 {
        self.reserved.clear(range)
    }

    /// Frees `range`, all of which is reserved and in use. `freed` hears of each part that was.
    pub(crate) fn free_reserved(
        &self,
        range: PfnRange,
        mut freed: impl FnMut(PfnRange),
    ) -> Result<(), FreeError> {
        if range.is_empty() {
            return Err(FreeError { range, kind: FreeErrorKind::Empty });
        }
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            let refused = |kind| Err(FreeError { range: piece, kind });
            if self.reserved.count(piece) != piece.frames() {
                return refused(FreeErrorKind::NotReserved);
            }
            if !self.words.block_of(piece.start()).is_some_and(|block| self.is_used(&block, piece))
            {
                return refused(FreeErrorKind::NotAllocated);
            }
        }
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            // Each part is freed as a whole or not at all, whoever else frees the same meanwhile.
            let whole = piece.frames() == PAGEBLOCK_FRAMES as u64;
            let part = if whole { PAGEBLOCK_FRAMES } else { BITMAP_WORD_BITS };
            for part in piece.chunks(part as u64) {
                self.free_filled(part)?;
                self.reserved.clear(part);
                freed(part);
            }
        }
        Ok(())
    }

    fn is_used(&self, block: &Block<'_>, piece: PfnRange) -> bool {
        self.is_allocated(block, offsets(block.start(), piece), piece)
    }
}
