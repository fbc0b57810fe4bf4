//! A claimed pageblock becomes live: handed out whole, or divided.
//!
//! The bitmaps of a section fill one frame of memory, and it is needed only once a pageblock of the
//! section is *divided*: split for small allocations, or freed in part after it was handed out
//! whole. So it can always be had from what is being divided, and nothing ever fails for want of
//! it:
//! 1. from memory that is never removed, as long as some is free there in split pageblocks;
//! 2. from the pageblock that is being divided.
//!
//! Without bitmaps, every live pageblock of a section is wholly taken; that is what fresh bitmaps
//! say. A section's own bitmap frame does not hinder the section's removal (see
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
    /// The caller owns `block`, and all of it is taken from now on.
    pub(super) fn hand_out(&self, block: &Block<'_>) {
        // If there are none yet, those that come will say so.
        if let Some(bitmap) = block.bitmap() {
            bitmap.write(0..PAGEBLOCK_FRAMES, None);
        }
        block.state.set_live(0);
    }

    /// The caller owns `block`: the frames `taken`, not all, are the caller's from now on, the rest
    /// is free for anybody.
    pub(super) fn divide(&self, block: &Block<'_>, taken: Range<usize>, moves: &mut Moves<'_>) {
        let last = PAGEBLOCK_FRAMES - 1;
        let spare = if taken.contains(&last) { 0 } else { last };
        let Some((bitmap, lent)) = self.bitmap_or_lend(block, spare, moves).known() else { return };
        let free = PAGEBLOCK_FRAMES - taken.len() - usize::from(lent);
        bitmap.write(taken, lent.then_some(spare));
        block.state.set_live(free);
    }

    /// The bitmap of `block`, which the caller owns or has frames of. If the section has no bitmaps
    /// yet, the caller's frame number `spare` of the block may be used for them; says whether it
    /// was.
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
                // It was allocated just now.
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

    /// A frame for bitmaps that can be had without splitting anything, from memory that is never
    /// removed.
    fn frame_for_bitmaps(&self, moves: &mut Moves<'_>) -> Option<Pfn> {
        let request = AllocRequest::frames(1).fixed();
        self.places(&request).find_map(|place| {
            self.own_block(place.zone)
                .and_then(|block| self.take(&block, &request, moves))
                .or_else(|| self.take_partial(place, &request, usize::MAX, moves))
        })
    }

    /// Makes `frame`, which is the caller's, the section's bitmap frame. False if the section has
    /// bitmaps already.
    fn install_bitmaps(&self, block: &Block<'_>, frame: Pfn) -> bool {
        let bitmaps = self.bitmaps_in(frame);
        // SAFETY: the frame is mapped, the caller's alone, and large and aligned enough; any bytes
        // are a valid `BitmapFrame`.
        unsafe { &*bitmaps }.clear();
        // Release pairs with the Acquire in `Section::bitmap`, so that they are seen cleared.
        block
            .section
            .bitmaps
            .compare_exchange(core::ptr::null_mut(), bitmaps, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    /// Where the bitmaps lie that fill this frame.
    pub(crate) fn bitmaps_in(&self, frame: Pfn) -> *mut BitmapFrame {
        self.direct_map().pointer(frame).cast()
    }

    /// The frame that holds the bitmaps of a section.
    pub(crate) fn frame_of_bitmaps(&self, section: SectionRef<'_>) -> Option<Pfn> {
        let bitmaps = section.bitmaps.load(Ordering::Acquire);
        if bitmaps.is_null() { None } else { self.direct_map().frame_at(bitmaps.cast()) }
    }

    /// Boot only, single-threaded: the bitmap frame of a section.
    pub(crate) fn set_bitmaps(&self, section: SectionRef<'_>, frame: Pfn) {
        section.bitmaps.store(self.bitmaps_in(frame), Ordering::Release);
    }

    /// Boot only, single-threaded: a pageblock none of whose frames is free.
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
