//! Makes a claimed pageblock live: allocates it as a whole, or divides it.
//!
//! A pageblock is *divided* for small allocations, or because a part of it is freed after it was
//! allocated as a whole. Then it needs a bitmap: see `divide/first_bitmaps.rs`.
//!
//! While there are no bitmaps, all frames of every live pageblock are taken. So new bitmaps record
//! all frames as taken. Self-hosted bitmaps do not prevent the removal of the memory that they
//! describe (see `isolate/in_use.rs`).

mod first_bitmaps;

use super::call::CallContext;
use crate::addr::Pfn;
use crate::geometry::{BITMAP_GROUP, PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::{Ordering, fence, mutant};
use crate::words::{Block, DirectMap, FrameBitmap, SectionRef};
use core::ops::Range;

impl<P: Platform> CallContext<'_, P> {
    /// Allocates `block` as a whole: marks all its frames as taken. The caller owns `block`.
    pub(super) fn hand_out(&self, block: Block<'_>) {
        // If there is no bitmap, there is nothing to write: a new bitmap records all frames as
        // taken. A self-hosted bitmap is not dropped meanwhile, because the caller owns a pageblock
        // that it describes.
        if let Some(bitmap) = self.bitmap_of(block) {
            bitmap.write_taken();
        }
        block.state().set_whole();
    }

    /// Divides `block`, which the caller owns, and whose frames are zero if `is_zero`. The caller keeps
    /// the frames of `kept_frames`; the others, at least one, become free. The caller then makes the
    /// free frames findable.
    pub(super) fn divide(&self, block: Block<'_>, kept_frames: Range<usize>, is_zero: bool) {
        let (below, above) = (0..kept_frames.start, kept_frames.end..PAGEBLOCK_FRAMES);
        // New bitmaps may be written to frames of this pageblock.
        let is_unwritten = self.bitmap_of(block).is_some();
        let spare = if below.len() > above.len() { below } else { above };
        let Some((bitmap, bitmap_frames)) =
            self.bitmap_or_install(block, spare).or_record_violation()
        else {
            return;
        };
        mutant!("a division forgets that it has written bitmaps to its pageblock" => {
            let is_zero = self.set_zero_words(block, is_zero);
            bitmap.write(kept_frames, bitmap_frames, is_zero);
            block.state().set_divided();
            return self.open_written(block, bitmap);
        });
        let is_zero = self.set_zero_words(block, is_zero && is_unwritten);
        bitmap.write(kept_frames, bitmap_frames, is_zero);
        block.state().set_divided();
        self.open_written(block, bitmap);
    }

    /// Returns the bitmap of `block`, if it has one. If the bitmap is a self-hosted bitmap, starts a
    /// hiding step: until the call ends, the bitmap is not dropped.
    pub(crate) fn bitmap_of<'a>(&'a self, block: Block<'a>) -> Option<&'a FrameBitmap> {
        match block.lasting_bitmap() {
            None if block.section().bitmaps.is_self_hosted(block.bit()) => {
                self.self_hosted_bitmap_of(block)
            }
            lasting => lasting,
        }
    }

    #[cold]
    fn self_hosted_bitmap_of<'a>(&'a self, block: Block<'a>) -> Option<&'a FrameBitmap> {
        self.start_hiding();
        fence(Ordering::SeqCst); // pairs with the fence in `BitmapPtr::hide`
        // SAFETY: a hiding step is counted, which ends with the call, and the result cannot outlive
        // the call.
        unsafe { block.section().words().bitmaps.lasting_or_self_hosted(block.bit()) }
    }

    /// Makes a pageblock live and divided, with all frames taken. Boot only, single-threaded.
    #[cfg(not(loom))]
    pub(crate) fn divide_as_taken(&self, block: Block<'_>) {
        // `bring_region_online` has set the bitmaps of the section.
        if let Some(bitmap) = block.lasting_bitmap().or_record_violation() {
            bitmap.write(0..PAGEBLOCK_FRAMES, 0..0, false);
            block.state().set_divided();
            self.open_written(block, bitmap);
        }
    }

    /// Calls `look` with the bitmap of `block`, if it has one. Has ended its hiding step when it
    /// returns.
    pub(crate) fn with_bitmap<T>(
        &self,
        block: Block<'_>,
        look: impl FnOnce(Option<&FrameBitmap>) -> T,
    ) -> T {
        look(self.frames.call_on(self.cpu).bitmap_of(block))
    }

    /// Returns the frame of `block` that holds self-hosted bitmaps, if there is one.
    pub(crate) fn self_hosted_bitmaps_in(&self, block: Block<'_>) -> Option<Pfn> {
        let (bitmaps, is_self_hosted) = block.section().bitmaps.pointer_of(block.bit()).load();
        let frame =
            if is_self_hosted { self.frames.direct_map().frame_at(bitmaps.cast()) } else { None };
        frame.filter(|&frame| block.range().contains(frame))
    }
}

/// Returns the frames that hold the bitmaps of a section. Each comes with the numbers of the
/// pageblocks that its bitmaps describe, and with a flag that is true for self-hosted bitmaps.
pub(crate) fn frames_of_bitmaps(
    section: SectionRef<'_>,
    direct_map: DirectMap,
) -> impl Iterator<Item = (Pfn, Range<usize>, bool)> {
    section.words().bitmaps.pointers().filter_map(move |(first, bitmaps)| {
        let (bitmaps, is_self_hosted) = bitmaps.load();
        let frame = (!bitmaps.is_null()).then(|| direct_map.frame_at(bitmaps.cast()));
        Some((frame??, first..first + BITMAP_GROUP, is_self_hosted))
    })
}

const _: () = assert!(SECTION_PAGEBLOCKS <= 64);
