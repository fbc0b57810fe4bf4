//! Makes a claimed pageblock live: allocates it as a whole, or divides it.
//!
//! The bitmaps of 32 pageblocks fill one frame of memory. This frame is needed once one of these
//! pageblocks is *divided*: for small allocations, or because a part of it is freed after it was
//! allocated as a whole. At that moment, a frame can always be found, so no operation fails because
//! it has no frame for bitmaps. The frame is taken:
//! 1. from boot memory, as long as that has a free frame;
//! 2. else from the pageblock that is being divided. If this is not boot memory, the bitmaps are
//!    *own bitmaps* (see `words/bitmaps.rs`).
//!
//! While there are no bitmaps, all frames of every live pageblock are taken. So new bitmaps record
//! all frames as taken. Own bitmaps do not prevent the removal of the memory that they describe
//! (see `isolate/in_use.rs`).

use super::Frames;
use super::exhaustion::Moves;
use crate::addr::{Pfn, PfnRange};
use crate::frames::request::AllocRequest;
use crate::geometry::{BITMAP_GROUP, PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::{Ordering, fence};
use crate::words::{BitmapFrame, Block, FrameBitmap, Grain, SectionRef};
use core::ops::Range;

impl<P: Platform> Frames<P> {
    /// Allocates `block` as a whole: marks all its frames as taken. The caller owns `block`.
    pub(super) fn hand_out(&self, block: &Block<'_>) {
        // If there is no bitmap, there is nothing to write: a new bitmap records all frames as
        // taken. An own bitmap is not dropped meanwhile, because the caller owns a pageblock that
        // it describes.
        self.with_bitmap(block, |bitmap| bitmap.map(FrameBitmap::write_taken));
        block.state().set_whole();
    }

    /// Divides `block`, which the caller owns. The caller keeps the frames of `taken`; the others,
    /// at least one, become free. The caller then makes the free frames findable.
    pub(super) fn divide(&self, block: &Block<'_>, taken: Range<usize>, moves: &mut Moves<'_>) {
        let last = PAGEBLOCK_FRAMES - 1;
        let spare = if taken.contains(&last) { 0 } else { last };
        let Some((bitmap, in_spare)) = self.bitmap_or_install(block, spare, moves).known() else {
            return;
        };
        bitmap.write(taken, in_spare.then_some(spare));
        block.state().set_divided();
        bitmap.open(block.zone());
    }

    /// Returns the bitmap of `block`, if it has one. If the bitmap is an own bitmap, starts a move
    /// of `moves`; the caller must not use the bitmap after the end of that move.
    #[inline]
    pub(crate) fn bitmap_of<'a>(
        &self,
        block: &Block<'a>,
        moves: &mut Moves<'_>,
    ) -> Option<&'a FrameBitmap> {
        match block.lasting_bitmap() {
            None if block.section.bitmaps.is_own(block.bit()) => self.own_bitmap_of(block, moves),
            lasting => lasting,
        }
    }

    /// Calls `look` with the bitmap of `block`, if it has one.
    #[inline]
    pub(crate) fn with_bitmap<T>(
        &self,
        block: &Block<'_>,
        look: impl FnOnce(Option<&FrameBitmap>) -> T,
    ) -> T {
        match block.lasting_bitmap() {
            None if block.section.bitmaps.is_own(block.bit()) => {
                let mut moves = self.new_moves();
                look(self.own_bitmap_of(block, &mut moves))
            }
            lasting => look(lasting),
        }
    }

    #[cold]
    fn own_bitmap_of<'a>(
        &self,
        block: &Block<'a>,
        moves: &mut Moves<'_>,
    ) -> Option<&'a FrameBitmap> {
        moves.start();
        fence(Ordering::SeqCst); // pairs with the fence in `BitmapPtr::hide`
        // SAFETY: a move is counted in `moves`, and the caller does not use the bitmap after the
        // end of that move.
        unsafe { block.section.words().bitmaps.lasting_or_own(block.bit()) }
    }

    /// Returns the bitmap of `block`, and makes it if there is none. The caller owns `block` or
    /// frames of it. It also owns frame number `spare` of the pageblock, in which the bitmaps are
    /// put if there is no other frame for them. The flag says whether they were put there.
    #[inline]
    pub(super) fn bitmap_or_install<'a>(
        &self,
        block: &Block<'a>,
        spare: usize,
        moves: &mut Moves<'_>,
    ) -> Option<(&'a FrameBitmap, bool)> {
        match self.bitmap_of(block, moves) {
            Some(bitmap) => Some((bitmap, false)),
            None => self.install_first_bitmap(block, spare, moves),
        }
    }

    #[cold]
    fn install_first_bitmap<'a>(
        &self,
        block: &Block<'a>,
        spare: usize,
        moves: &mut Moves<'_>,
    ) -> Option<(&'a FrameBitmap, bool)> {
        let mut in_spare = false;
        if let Some(frame) = self.alloc_bitmap_frame(block, moves) {
            if !self.install_bitmaps(block, frame, false)
                && let Some(unused) = PfnRange::with_len(frame, 1).known()
            {
                self.fill_as_free(unused);
                // This call has just allocated the frame, so freeing it cannot fail.
                self.free_range(unused).known();
            }
        } else {
            let frame = block.start().checked_add(spare as u64)?;
            in_spare = self.install_bitmaps(block, frame, !block.is_boot());
            if !in_spare && let Some(unused) = PfnRange::with_len(frame, 1) {
                self.fill_as_free(unused);
            }
        }
        Some((self.bitmap_of(block, moves)?, in_spare))
    }

    /// Allocates a frame of boot memory for the bitmaps of `block`. If `block` is boot memory
    /// itself, does not divide another pageblock for this.
    fn alloc_bitmap_frame(&self, block: &Block<'_>, moves: &mut Moves<'_>) -> Option<Pfn> {
        let request = AllocRequest::frames(1).in_boot_memory();
        let divides = !block.is_boot();
        for place in self.places(&request) {
            let found = self
                .own_block(place.zone, Grain::Frame)
                .and_then(|own| self.take(&own, &request, moves))
                .or_else(|| self.take_partial(place, &request, None, moves))
                .or_else(|| {
                    let mut named = self.blocks_of_hints_and_cursors(place.zone);
                    named.find_map(|block| {
                        place.includes(block.section).then(|| self.take(&block, &request, moves))?
                    })
                })
                .or_else(|| if divides { self.split_for(place, &request, moves) } else { None });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Makes `frame` the frame of bitmaps of `block` and its group. The caller owns `frame`.
    /// Returns false if the group has bitmaps already.
    fn install_bitmaps(&self, block: &Block<'_>, frame: Pfn, own: bool) -> bool {
        let bitmaps = self.bitmaps_in(frame);
        // SAFETY: `frame` is mapped, and only the caller uses it. A frame is large enough and
        // aligned for a `BitmapFrame`, for which any bytes are valid.
        unsafe { &*bitmaps }.clear(block.section.start_of_bitmaps(block.bit()));
        block.section.bitmaps.pointer_of(block.bit()).install(bitmaps, own)
    }

    /// Returns the address of the bitmaps in `frame`.
    pub(crate) fn bitmaps_in(&self, frame: Pfn) -> *mut BitmapFrame {
        self.direct_map().pointer(frame).cast()
    }

    /// Returns the frames that hold the bitmaps of a section. Each comes with the numbers of the
    /// pageblocks that its bitmaps describe, and with a flag that is true for own bitmaps.
    pub(crate) fn frames_of_bitmaps<'s>(
        &'s self,
        section: SectionRef<'s>,
    ) -> impl Iterator<Item = (Pfn, Range<usize>, bool)> + 's {
        let words = section.words();
        words.bitmaps.pointers().filter_map(move |(first, bitmaps)| {
            let (bitmaps, own) = bitmaps.load();
            let frame = (!bitmaps.is_null()).then(|| self.direct_map().frame_at(bitmaps.cast()));
            Some((frame??, first..first + BITMAP_GROUP, own))
        })
    }

    /// Returns the frame of `block` that holds own bitmaps, if there is one.
    pub(crate) fn own_bitmaps_in(&self, block: &Block<'_>) -> Option<Pfn> {
        let (bitmaps, own) = block.section.bitmaps.pointer_of(block.bit()).load();
        let frame = if own { self.direct_map().frame_at(bitmaps.cast()) } else { None };
        frame.filter(|&frame| block.range().contains(frame))
    }

    /// Makes `frame` the frame of bitmaps of the group of pageblocks that begins with number
    /// `first`. Boot only, single-threaded.
    pub(crate) fn set_bitmaps(&self, section: SectionRef<'_>, first: usize, frame: Pfn) {
        let bitmaps = self.bitmaps_in(frame);
        // SAFETY: `frame` is mapped, and only boot uses it. A frame is large enough and aligned for
        // a `BitmapFrame`, for which any bytes are valid.
        unsafe { &*bitmaps }.clear(section.start_of_bitmaps(first));
        section.bitmaps.pointer_of(first).install(bitmaps, false);
    }

    /// Makes a pageblock live and divided, with all frames taken. Boot only, single-threaded.
    #[cfg(not(loom))]
    pub(crate) fn divide_as_taken(&self, block: &Block<'_>) {
        // `bring_region_online` has set the bitmaps of the section.
        if let Some(bitmap) = block.lasting_bitmap().known() {
            bitmap.write(0..PAGEBLOCK_FRAMES, None);
            block.state().set_divided();
            bitmap.open(block.zone());
        }
    }
}

const _: () = assert!(SECTION_PAGEBLOCKS <= 64);
