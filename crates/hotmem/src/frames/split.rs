//! Makes a claimed pageblock live: allocates it as a whole, or divides it.
//!
//! The bitmaps of 32 pageblocks fill one frame of memory. This frame is needed once one of these
//! pageblocks is *divided*: for small allocations, or because a part of it is freed after it was
//! allocated as a whole. At that moment, a frame can always be found, so no operation fails because
//! it has no frame for bitmaps. The frame is taken:
//! 1. from boot memory, as long as that has a free frame;
//! 2. else from the pageblock that is being divided. If this is not boot memory, the bitmaps are
//!    *self-hosted bitmaps* (see `words/bitmaps.rs`).
//!
//! While there are no bitmaps, all frames of every live pageblock are taken. So new bitmaps record
//! all frames as taken. Self-hosted bitmaps do not prevent the removal of the memory that they
//! describe (see `isolate/in_use.rs`).

use super::Frames;
use super::exhaustion::HidingSteps;
use crate::addr::{Pfn, PfnRange};
use crate::frames::request::AllocRequest;
use crate::geometry::{BITMAP_GROUP, PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::invariant::OrViolation;
use crate::platform::Platform;
use crate::sync::{Ordering, fence};
use crate::words::{BitmapFrame, Block, FrameBitmap, SectionRef};
use core::ops::Range;

impl<P: Platform> Frames<P> {
    /// Allocates `block` as a whole: marks all its frames as taken. The caller owns `block`.
    #[inline(never)]
    pub(super) fn hand_out(&self, block: Block<'_>) {
        // If there is no bitmap, there is nothing to write: a new bitmap records all frames as
        // taken. A self-hosted bitmap is not dropped meanwhile, because the caller owns a pageblock
        // that it describes.
        self.with_bitmap(block, |bitmap| bitmap.map(FrameBitmap::write_taken));
        block.state().set_whole();
    }

    /// Divides `block`, which the caller owns. The caller keeps the frames of `kept_frames`; the
    /// others, at least one, become free. The caller then makes the free frames findable.
    pub(super) fn divide(
        &self,
        block: Block<'_>,
        kept_frames: Range<usize>,
        hiding_steps: &mut HidingSteps<'_>,
    ) {
        let last_frame = PAGEBLOCK_FRAMES - 1;
        let spare = if kept_frames.contains(&last_frame) { 0 } else { last_frame };
        let Some((bitmap, spare_used)) =
            self.bitmap_or_install(block, spare, hiding_steps).or_violation()
        else {
            return;
        };
        bitmap.write(kept_frames, spare_used.then_some(spare));
        block.state().set_divided();
        bitmap.open(block.zone());
    }

    /// Returns the bitmap of `block`, if it has one. If the bitmap is a self-hosted bitmap, starts
    /// a hiding step of `hiding_steps`; the caller must not use the bitmap after the end of that
    /// hiding step.
    #[inline(never)]
    pub(crate) fn bitmap_of<'a>(
        &self,
        block: Block<'a>,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<&'a FrameBitmap> {
        match block.lasting_bitmap() {
            None if block.section().bitmaps.is_self_hosted(block.bit()) => {
                self.self_hosted_bitmap_of(block, hiding_steps)
            }
            lasting => lasting,
        }
    }

    /// Calls `look` with the bitmap of `block`, if it has one.
    pub(crate) fn with_bitmap<T>(
        &self,
        block: Block<'_>,
        look: impl FnOnce(Option<&FrameBitmap>) -> T,
    ) -> T {
        look(self.bitmap_of(block, &mut self.new_hiding_steps()))
    }

    #[cold]
    fn self_hosted_bitmap_of<'a>(
        &self,
        block: Block<'a>,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<&'a FrameBitmap> {
        hiding_steps.start();
        fence(Ordering::SeqCst); // pairs with the fence in `BitmapPtr::hide`
        // SAFETY: a hiding step is counted in `hiding_steps`, and the caller does not use the
        // bitmap after the end of that hiding step.
        unsafe { block.section().words().bitmaps.lasting_or_self_hosted(block.bit()) }
    }

    /// Returns the bitmap of `block`, and makes it if there is none. The caller owns `block` or
    /// frames of it. It also owns frame number `spare` of the pageblock, in which the bitmaps are
    /// put if there is no other frame for them. The flag says whether they were put there.
    #[inline(never)]
    pub(super) fn bitmap_or_install<'a>(
        &self,
        block: Block<'a>,
        spare: usize,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<(&'a FrameBitmap, bool)> {
        match self.bitmap_of(block, hiding_steps) {
            Some(bitmap) => Some((bitmap, false)),
            None => self.install_first_bitmap(block, spare, hiding_steps),
        }
    }

    #[cold]
    fn install_first_bitmap<'a>(
        &self,
        block: Block<'a>,
        spare: usize,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<(&'a FrameBitmap, bool)> {
        let mut spare_used = false;
        if let Some(frame) = self.alloc_bitmap_frame(block, hiding_steps) {
            if !self.install_bitmaps(block.section(), block.bit(), frame, false)
                && let Some(unused) = PfnRange::with_len(frame, 1).or_violation()
            {
                self.fill_as_free(unused);
                // This call has just allocated the frame, so freeing it cannot fail.
                self.free_range(unused).or_violation();
            }
        } else {
            let frame = block.start().checked_add(spare as u64)?;
            let (section, bit) = (block.section(), block.bit());
            spare_used = self.install_bitmaps(section, bit, frame, !block.is_boot(&self.words));
            if !spare_used && let Some(unused) = PfnRange::with_len(frame, 1) {
                self.fill_as_free(unused);
            }
        }
        Some((self.bitmap_of(block, hiding_steps)?, spare_used))
    }

    /// Allocates a frame of boot memory for the bitmaps of `block`. If `block` is boot memory
    /// itself, does not divide another pageblock for this.
    fn alloc_bitmap_frame(
        &self,
        block: Block<'_>,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<Pfn> {
        let request = AllocRequest::frames(1).in_boot_memory();
        let may_divide = !block.is_boot(&self.words);
        self.search_small(&request, may_divide, hiding_steps)
    }

    /// Makes `frame` the frame of bitmaps of the group that has pageblock number `bit` of
    /// `section`. The caller owns `frame`. Returns false if the group has bitmaps already.
    #[inline(never)]
    pub(crate) fn install_bitmaps(
        &self,
        section: SectionRef<'_>,
        bit: usize,
        frame: Pfn,
        is_self_hosted: bool,
    ) -> bool {
        let bitmaps = self.bitmaps_in(frame);
        // SAFETY: `frame` is mapped, and only the caller uses it. A frame is large enough and
        // aligned for a `BitmapFrame`, for which any bytes are valid.
        unsafe { &*bitmaps }.clear(section.start_of_bitmaps(bit));
        section.bitmaps.pointer_of(bit).install(bitmaps, is_self_hosted)
    }

    /// Returns the address of the bitmaps in `frame`.
    pub(crate) fn bitmaps_in(&self, frame: Pfn) -> *mut BitmapFrame {
        self.direct_map().pointer(frame).cast()
    }

    /// Returns the frames that hold the bitmaps of a section. Each comes with the numbers of the
    /// pageblocks that its bitmaps describe, and with a flag that is true for self-hosted bitmaps.
    pub(crate) fn frames_of_bitmaps<'s>(
        &'s self,
        section: SectionRef<'s>,
    ) -> impl Iterator<Item = (Pfn, Range<usize>, bool)> + 's {
        let words = section.words();
        words.bitmaps.pointers().filter_map(move |(first, bitmaps)| {
            let (bitmaps, is_self_hosted) = bitmaps.load();
            let frame = (!bitmaps.is_null()).then(|| self.direct_map().frame_at(bitmaps.cast()));
            Some((frame??, first..first + BITMAP_GROUP, is_self_hosted))
        })
    }

    /// Returns the frame of `block` that holds self-hosted bitmaps, if there is one.
    pub(crate) fn self_hosted_bitmaps_in(&self, block: Block<'_>) -> Option<Pfn> {
        let (bitmaps, is_self_hosted) = block.section().bitmaps.pointer_of(block.bit()).load();
        let frame = if is_self_hosted { self.direct_map().frame_at(bitmaps.cast()) } else { None };
        frame.filter(|&frame| block.range().contains(frame))
    }

    /// Makes a pageblock live and divided, with all frames taken. Boot only, single-threaded.
    #[cfg(not(loom))]
    pub(crate) fn divide_as_taken(&self, block: Block<'_>) {
        // `bring_region_online` has set the bitmaps of the section.
        if let Some(bitmap) = block.lasting_bitmap().or_violation() {
            bitmap.write(0..PAGEBLOCK_FRAMES, None);
            block.state().set_divided();
            bitmap.open(block.zone());
        }
    }
}

const _: () = assert!(SECTION_PAGEBLOCKS <= 64);
