//! Makes a claimed pageblock live: allocates it as a whole, or divides it.
//!
//! The bitmaps of 32 pageblocks fill one frame of memory. This frame is needed only once one of
//! these pageblocks is *divided*: for small allocations, or because it is freed in part after it
//! was allocated as a whole. At that moment there is always a frame for it, and no operation ever
//! fails for lack of one. The frame is taken:
//! 1. from boot memory, as long as that has a free frame;
//! 2. else from the pageblock that is being divided. If this is not boot memory, the bitmaps are
//!    *own bitmaps* (see `words/bitmaps.rs`).
//!
//! While there are no bitmaps, all frames of every live pageblock are taken, and new bitmaps record
//! the same. Own bitmaps do not prevent the removal of the memory that they describe (see
//! `isolate/in_use.rs`).

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
    /// Marks all frames of `block`, which the caller owns, as taken.
    pub(super) fn hand_out(&self, block: &Block<'_>) {
        // Without a bitmap there is nothing to write: new bitmaps record that all frames are taken.
        // An own bitmap is not dropped while the caller owns a pageblock that it describes.
        self.with_bitmap(block, |bitmap| bitmap.map(FrameBitmap::write_taken));
        block.state().set_whole();
    }

    /// Divides `block`, which the caller owns. The caller keeps the frames of `taken`, which are
    /// not all frames of the pageblock; the others become free. The caller makes these findable.
    pub(super) fn divide(&self, block: &Block<'_>, taken: Range<usize>, moves: &mut Moves<'_>) {
        let last = PAGEBLOCK_FRAMES - 1;
        let spare = if taken.contains(&last) { 0 } else { last };
        let Some((bitmap, in_spare)) = self.bitmap_or_place(block, spare, moves).known() else {
            return;
        };
        bitmap.write(taken, in_spare.then_some(spare));
        block.state().set_divided();
        bitmap.open(block.zone());
    }

    /// Returns the bitmap of `block`, if it has one. If it is an own bitmap, this starts `moves`,
    /// and the bitmap must not be used after the end of the move.
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
        // SAFETY: the move is counted, and callers do not use the bitmap after its end.
        unsafe { block.section.words().bitmaps.lasting_or_own(block.bit()) }
    }

    /// Returns the bitmap of `block`, which the caller owns or has frames of. If there is none yet,
    /// frame number `spare` of the pageblock, which is the caller's, may be used for bitmaps; the
    /// flag says whether it was.
    #[inline]
    pub(super) fn bitmap_or_place<'a>(
        &self,
        block: &Block<'a>,
        spare: usize,
        moves: &mut Moves<'_>,
    ) -> Option<(&'a FrameBitmap, bool)> {
        match self.bitmap_of(block, moves) {
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
        let mut in_spare = false;
        if let Some(frame) = self.frame_for_bitmaps(block, moves) {
            if !self.install_bitmaps(block, frame, false)
                && let Some(unused) = PfnRange::with_len(frame, 1).known()
            {
                self.fill_as_free(unused);
                // This call has just allocated it.
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
    /// itself, does not divide another pageblock for it.
    fn frame_for_bitmaps(&self, block: &Block<'_>, moves: &mut Moves<'_>) -> Option<Pfn> {
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

    /// Makes `frame`, which the caller owns, the bitmap frame of `block` and of its neighbours.
    /// Returns false if they have bitmaps already.
    fn install_bitmaps(&self, block: &Block<'_>, frame: Pfn, own: bool) -> bool {
        let bitmaps = self.bitmaps_in(frame);
        // SAFETY: the frame is mapped, large enough and aligned, and only the caller uses it; any
        // bytes are a valid `BitmapFrame`.
        unsafe { &*bitmaps }.clear(block.section.start_of_bitmaps(block.bit()));
        block.section.bitmaps.pointer_of(block.bit()).install(bitmaps, own)
    }

    /// Returns the address of the bitmaps that fill this frame.
    pub(crate) fn bitmaps_in(&self, frame: Pfn) -> *mut BitmapFrame {
        self.direct_map().pointer(frame).cast()
    }

    /// Returns the frames that hold the bitmaps of a section, each with the pageblocks that they
    /// describe, and whether they are own bitmaps.
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

    /// Returns the frame with own bitmaps that lies in `block`.
    pub(crate) fn own_bitmaps_in(&self, block: &Block<'_>) -> Option<Pfn> {
        let (bitmaps, own) = block.section.bitmaps.pointer_of(block.bit()).load();
        let frame = if own { self.direct_map().frame_at(bitmaps.cast()) } else { None };
        frame.filter(|&frame| block.range().contains(frame))
    }

    /// Sets the bitmap frame of the pageblocks of a section that begin with number `first`. Boot
    /// only, single-threaded.
    pub(crate) fn set_bitmaps(&self, section: SectionRef<'_>, first: usize, frame: Pfn) {
        let bitmaps = self.bitmaps_in(frame);
        // SAFETY: as in `install_bitmaps`.
        unsafe { &*bitmaps }.clear(section.start_of_bitmaps(first));
        section.bitmaps.pointer_of(first).install(bitmaps, false);
    }

    /// Makes a pageblock live and divided with no frame free. Boot only, single-threaded.
    #[cfg(not(loom))]
    pub(crate) fn set_taken(&self, block: &Block<'_>) {
        // `fill` has given the section its bitmaps.
        if let Some(bitmap) = block.lasting_bitmap().known() {
            bitmap.write(0..PAGEBLOCK_FRAMES, None);
            block.state().set_divided();
            bitmap.open(block.zone());
        }
    }
}

const _: () = assert!(SECTION_PAGEBLOCKS <= 64);
