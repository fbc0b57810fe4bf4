//! Records which frames of boot memory are still reserved: they are in use since boot and were
//! never allocated.
//!
//! The allocator does not distinguish a reserved frame from an allocated one. So a separate bitmap
//! records the reserved frames, by which the managed frames of a zone are counted exactly. Only
//! sections that had reserved memory at boot have such a bitmap, and only the control path reads or
//! writes it.

use super::Frames;
use super::reserved_bitmaps::offsets;
use crate::addr::PfnRange;
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES};
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::words::Block;

impl<P: Platform> Frames<P> {
    /// Installs the bitmaps of these sections at `memory`. The sections come in ascending order.
    /// Boot only, single-threaded.
    ///
    /// # Safety
    /// `memory` is aligned to 8 bytes, is large enough for a bitmap of each section, and belongs to
    /// this machine permanently.
    #[cfg(not(loom))]
    pub(crate) unsafe fn install_reserved(
        &self,
        sections: impl Iterator<Item = PfnRange>,
        memory: *mut u8,
    ) {
        // SAFETY: the caller has made the same promises.
        unsafe { self.reserved.install(sections, memory) };
    }

    /// Marks `range` as reserved. `range` lies in sections with a bitmap. Returns the number of
    /// frames that were not reserved before. Boot only.
    #[cfg(not(loom))]
    pub(crate) fn reserve(&self, range: PfnRange) -> u64 {
        self.reserved.set(range)
    }

    /// Marks `range` as not reserved, even if frames of it are in use. Returns the number of frames
    /// that were reserved before.
    pub(crate) fn unreserve(&self, range: PfnRange) -> u64 {
        self.reserved.clear(range)
    }

    /// Frees `range`, whose frames must all be reserved and in use. Calls `freed` for each part
    /// that it has freed.
    pub(crate) fn free_reserved(
        &self,
        range: PfnRange,
        mut freed: impl FnMut(PfnRange),
    ) -> Result<(), RangeError> {
        if range.is_empty() {
            return Err(RangeError { range, kind: RangeErrorKind::Empty });
        }
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            let refused = |kind| Err(RangeError { range: piece, kind });
            if self.reserved.count(piece) != piece.frames() {
                return refused(RangeErrorKind::NotReserved);
            }
            if !self.words.block_of(piece.start()).is_some_and(|block| self.is_used(&block, piece))
            {
                return refused(RangeErrorKind::NotAllocated);
            }
        }
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            // Free the piece in parts that one step frees as a whole or not at all, even if another
            // CPU frees the same frames: then `freed` is called for exactly the freed frames.
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
