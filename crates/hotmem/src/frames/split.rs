//! Makes a claimed pageblock live: allocated as a whole, or divided.
//!
//! The bitmaps of a section fill one frame of memory. The frame is needed only once a pageblock of
//! the section is *divided*: for small allocations, or because it is freed in part after it was
//! allocated as a whole. So it can always be taken from free memory or from the pageblock that is
//! being divided, and no operation ever fails for lack of it. The frame is taken:
//! 1. from boot memory, as long as a divided pageblock there has a free frame;
//! 2. from the pageblock that is being divided.
//!
//! Without bitmaps, all frames of every live pageblock of a section are taken; fresh bitmaps say
//! the same. A section's own bitmap frame does not prevent the section's removal (see
//! `isolate/in_use.rs`).

use super::Frames;
use super::exhaustion::Moves;
use crate::addr::{Pfn, PfnRange};
use crate::frames::request::AllocRequest;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{BitmapFrame, Block, FrameBitmap, SectionRef};
use core::ops::Range;

impl<P: Platform> Frames<P> {
    /// Marks all frames of `block`, which the caller owns, as taken.
    pub(super) fn hand_out(&self, block: &Block<'_>) {
        // A section without bitmaps needs no write: fresh bitmaps say that all frames are taken.
        if let Some(bitmap) = block.bitmap() {
            bitmap.write(0..PAGEBLOCK_FRAMES, None);
        }
        block.state.set_live(0);
    }

    /// Divides `block`, which the caller owns: the caller keeps the frames `taken`, not all of
    /// them, and the other frames become free.
    pub(super) fn divide(&self, block: &Block<'_>, taken: Range<usize>, moves: &mut Moves<'_>) {
        let last = PAGEBLOCK_FRAMES - 1;
        let spare = if taken.contains(&last) { 0 } else { last };
        let Some((bitmap, lent)) = self.bitmap_or_lend(block, spare, moves).known() else { return };
        let free = PAGEBLOCK_FRAMES - taken.len() - usize::from(lent);
        bitmap.write(taken, lent.then_some(spare));
        block.state.set_live(free);
    }

    /// Returns the bitmap of `block`, which the caller owns or has frames of. If the section has no
    /// bitmaps yet, they may be placed in the caller's frame number `spare` of the block; the flag
    /// says whether they were.
    #[inline]
    pub(super) fn bitmap_or_lend<'a>(
        &self,
        block: &Block<'a>,
        spare: usize,
        moves: &mut Moves<'_>,
    ) -> Option<(&'a FrameBitmap, bool)> {
        match block.bitmap() {
            Some(bitmap) => Some((bitmap, false)),
            None => self.first_bitmap(block, spare, moves),
        }
    }

    #[cold]
    fn first_bitmap<'a>(
        &self,
        block: &Block<'a>,
        spare: usize,
        moves: &mut Moves<'_>,
    ) -> Option<(&'a FrameBitmap, bool)> {
        let mut lent = false;
        if let Some(frame) = self.frame_for_bitmaps(moves) {
            if !self.install_bitmaps(block, frame)
                && let Some(unused) = PfnRange::with_len(frame, 1).known()
            {
                self.fill(unused);
                // This call has just allocated it.
                self.free_range(unused).known();
            }
        } else {
            let frame = block.start().checked_add(spare as u64)?;
            lent = self.install_bitmaps(block, frame);
            if !lent && let Some(unused) = PfnRange::with_len(frame, 1) {
                self.fill(unused);
            }
        }
        Some((block.bitmap()?, lent))
    }

    /// Allocates a frame for bitmaps from boot memory, if a divided pageblock has one.
    fn frame_for_bitmaps(&self, moves: &mut Moves<'_>) -> Option<Pfn> {
        let request = AllocRequest::frames(1).fixed();
        self.places(&request).find_map(|place| {
            self.own_block(place.zone)
                .and_then(|block| self.take(&block, &request, moves))
                .or_else(|| self.take_partial(place, &request, usize::MAX, moves))
        })
    }

    /// Makes `frame`, which the caller owns, the section's bitmap frame. Returns false if the
    /// section has bitmaps already.
    fn install_bitmaps(&self, block: &Block<'_>, frame: Pfn) -> bool {
        let bitmaps = self.bitmaps_in(frame);
        // SAFETY: the frame is mapped, large enough and aligned, and only the caller uses it; any
        // bytes are a valid `BitmapFrame`.
        unsafe { &*bitmaps }.clear();
        // Release pairs with the Acquire in `Section::bitmap`, so that readers see the bitmaps
        // cleared.
        block
            .section
            .bitmaps
            .compare_exchange(core::ptr::null_mut(), bitmaps, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    /// Returns the address of the bitmaps that fill this frame.
    pub(crate) fn bitmaps_in(&self, frame: Pfn) -> *mut BitmapFrame {
        self.direct_map().pointer(frame).cast()
    }

    /// Returns the frame that holds the bitmaps of a section.
    pub(crate) fn frame_of_bitmaps(&self, section: SectionRef<'_>) -> Option<Pfn> {
        let bitmaps = section.bitmaps.load(Ordering::Acquire);
        if bitmaps.is_null() { None } else { self.direct_map().frame_at(bitmaps.cast()) }
    }

    /// Sets the bitmap frame of a section. Boot only, single-threaded.
    pub(crate) fn set_bitmaps(&self, section: SectionRef<'_>, frame: Pfn) {
        section.bitmaps.store(self.bitmaps_in(frame), Ordering::Release);
    }

    /// Makes a pageblock live with no frame free. Boot only, single-threaded.
    #[cfg(not(loom))]
    pub(crate) fn set_taken(&self, block: &Block<'_>) {
        // `fill` has given the section its bitmaps.
        if let Some(bitmap) = block.bitmap().known() {
            bitmap.write(0..PAGEBLOCK_FRAMES, None);
            block.state.set_live(0);
        }
    }
}

const _: () = assert!(SECTION_PAGEBLOCKS <= 64);
