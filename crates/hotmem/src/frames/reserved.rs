//! Records which frames of boot memory are still reserved: they are in use since boot and were
//! never allocated.
//!
//! The allocator does not distinguish a reserved frame from an allocated one. But the managed
//! frames of a zone do not include reserved frames. So a separate bitmap records which frames are
//! reserved. Only sections that had reserved memory at boot have such a bitmap, and only the
//! control path reads or writes it.

use super::Frames;
use super::reserved_bitmaps::offsets;
use crate::addr::PfnRange;
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES};
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};

impl<P: Platform> Frames<P> {
    /// Installs the bitmaps of these sections at `memory`. The sections come in ascending order.
    /// Boot only, single-threaded.
    ///
    /// # Safety
    /// `memory` is aligned to 8 bytes, is large enough for a bitmap of each section, and belongs to
    /// this instance permanently.
    #[cfg(not(loom))]
    pub(crate) unsafe fn install_reserved(
        &self,
        sections: &mut dyn Iterator<Item = PfnRange>,
        memory: *mut u8,
    ) {
        // SAFETY: the caller has made the same promises.
        unsafe { self.reserved.install(sections, memory) };
    }

    /// Marks `range` as reserved. `range` lies in sections with a bitmap. Boot only.
    #[cfg(not(loom))]
    pub(crate) fn reserve(&self, range: PfnRange) {
        self.reserved.set(range);
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
        for block_range in range.chunks(PAGEBLOCK_FRAMES as u64) {
            let refused = |kind| Err(RangeError { range: block_range, kind });
            if self.reserved.count(block_range) != block_range.frames() {
                return refused(RangeErrorKind::NotReserved);
            }
            if !self.words.block_of(block_range.start()).is_some_and(|block| {
                self.is_allocated(block, offsets(block.start(), block_range), block_range)
            }) {
                return refused(RangeErrorKind::NotAllocated);
            }
        }
        for block_range in range.chunks(PAGEBLOCK_FRAMES as u64) {
            // Another CPU may free the same frames at the same time. `freed` must be called for
            // exactly the frames that this call frees. So free the frames in parts that one atomic
            // step frees: either the whole part, or none of it.
            let is_whole_pageblock = block_range.frames() == PAGEBLOCK_FRAMES as u64;
            let part_frames = if is_whole_pageblock { PAGEBLOCK_FRAMES } else { BITMAP_WORD_BITS };
            for part in block_range.chunks(part_frames as u64) {
                self.fill_and_free(part)?;
                self.count_freed(part.frames());
                self.reserved.clear(part);
                freed(part);
            }
        }
        Ok(())
    }
}
