//! Makes the bitmaps of pageblocks, when a pageblock of their group is first divided.
//!
//! The bitmaps of a *group*, 32 pageblocks, fill one frame of memory. As long as other memory is in
//! use, this frame cannot lie beside the frames of bitmaps that were made before. And it stays in
//! use, so that its pageblock never becomes wholly free again. So that few pageblocks have such
//! frames, the first division of a group also makes the bitmaps of all other groups of the same GiB
//! that have memory, in one run of frames. Where memory is only allocated in whole pageblocks, no
//! bitmaps are made.
//!
//! A frame for bitmaps can always be found, so no operation fails because it has none. The frames are
//! taken:
//! 1. from boot memory, in one run. If the pageblock that is being divided is boot memory, no other
//!    pageblock is divided for the run; the run may come from this one;
//! 2. else from boot memory, one frame for the group of the pageblock that is being divided;
//! 3. else from the pageblock that is being divided, one frame. If this is not boot memory, the
//!    bitmaps are *self-hosted bitmaps* (see `words/bitmaps.rs`).

use crate::addr::{Pfn, PfnRange};
use crate::frames::CallContext;
use crate::frames::request::AllocRequest;
use crate::geometry::{BITMAP_GROUP, NEIGHBOURHOOD_FRAMES, SECTION_PAGEBLOCKS, mask};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{BitmapFrame, Block, FrameBitmap, Grain, SectionPart, SectionRef};
use core::ops::Range;

impl<'f, P: Platform> CallContext<'f, P> {
    /// Returns the bitmap of `block`, and makes it if there is none. The caller owns `block` or
    /// frames of it. It also owns the frames `spare` of the pageblock, at least one, in which the
    /// bitmaps may be put. Returns which of them hold bitmaps now: the last ones, or none.
    pub(in crate::frames) fn bitmap_or_install<'a>(
        &'a self,
        block: Block<'a>,
        spare: Range<usize>,
    ) -> Option<(&'a FrameBitmap, Range<usize>)> {
        match self.bitmap_of(block) {
            Some(bitmap) => Some((bitmap, spare.end..spare.end)),
            None => self.install_first_bitmap(block, spare),
        }
    }

    #[cold]
    fn install_first_bitmap<'a>(
        &'a self,
        block: Block<'a>,
        spare: Range<usize>,
    ) -> Option<(&'a FrameBitmap, Range<usize>)> {
        let is_boot = block.is_boot(self.words());
        let groups = self.groups_without_bitmaps(block).count().max(1);
        let own = |len: usize| {
            let first = block.start().checked_add((spare.end - len) as u64)?;
            PfnRange::with_len(first, len as u64)
        };
        let mut allocated = self.alloc_bitmap_run(groups, !is_boot);
        let run = match allocated {
            Some(run) => run,
            None if is_boot && spare.len() >= groups => own(groups)?,
            None => {
                allocated = self.alloc_bitmap_frame(!is_boot);
                allocated.or_else(|| own(1))?
            }
        };
        let installed = self.install_in(run, block, allocated.is_none() && !is_boot);
        let used_of_spare = match allocated {
            None => installed,
            Some(run) => {
                let (unused, _) = last_frames(run, installed);
                if !unused.is_empty() {
                    // This call has just allocated the frames, so freeing them cannot fail.
                    self.frames.free_range(unused).or_record_violation();
                }
                0
            }
        };
        Some((self.bitmap_of(block)?, spare.end - used_of_spare..spare.end))
    }

    /// Allocates a run of boot memory for the bitmaps of `groups` groups. Divides a pageblock for this
    /// only if `may_divide`.
    ///
    /// Unlike `search_small`, this tries only a few pageblocks before it divides one: there may be no
    /// such run in all of boot memory.
    fn alloc_bitmap_run(&self, groups: usize, may_divide: bool) -> Option<PfnRange> {
        let request = &AllocRequest::frames(groups as u64).in_boot_memory();
        let grain = Grain::Frame;
        self.start_hiding();
        let start = self.search_steps(request).find_map(|step| {
            self.hinted_block_in(step, grain)
                .and_then(|block| self.take(block, request))
                .or_else(|| self.take_partial(step, step.from, request, Some(grain)))
                .or_else(|| may_divide.then(|| self.split_for(step, request))?)
        });
        PfnRange::with_len(start?, groups as u64)
    }

    /// Allocates a frame of boot memory for bitmaps. Divides a pageblock for this only if
    /// `may_divide`.
    fn alloc_bitmap_frame(&self, may_divide: bool) -> Option<PfnRange> {
        let request = &AllocRequest::frames(1).in_boot_memory();
        PfnRange::with_len(self.search_small(request, may_divide)?, 1)
    }

    /// Returns the groups of the GiB of `block` that have memory and no bitmaps, each as its section
    /// and its first pageblock. The group of `block` comes first.
    fn groups_without_bitmaps(
        &self,
        block: Block<'f>,
    ) -> impl Iterator<Item = (SectionRef<'f>, usize)> {
        let own = (block.section(), block.bit() / BITMAP_GROUP * BITMAP_GROUP);
        let start = block.start().align_down(NEIGHBOURHOOD_FRAMES);
        let neighbourhood = PfnRange::with_len(start, NEIGHBOURHOOD_FRAMES);
        let parts = self.words().section_parts(neighbourhood.unwrap_or(PfnRange::EMPTY));
        let others = parts.flat_map(|SectionPart { section, .. }| {
            (0..SECTION_PAGEBLOCKS).step_by(BITMAP_GROUP).map(move |first| (section, first))
        });
        let others = others.filter(move |&(section, first)| {
            let group = mask(first + BITMAP_GROUP) & !mask(first);
            // Relaxed: if memory comes or goes meanwhile, it gets bitmaps later, or has them already.
            let has_memory = section.present.load(Ordering::Relaxed) & group != 0;
            has_memory && (section, first) != own
        });
        core::iter::once(own)
            .chain(others)
            .filter(|&(section, first)| section.bitmaps.is_missing(first))
    }

    /// Makes the last frames of `run` the bitmaps of groups without bitmaps, that of `block` first.
    /// Returns the number of these frames. The caller owns `run`.
    fn install_in(&self, run: PfnRange, block: Block<'_>, is_self_hosted: bool) -> usize {
        let mut installed = 0;
        for (section, first) in self.groups_without_bitmaps(block) {
            let (_, frame) = last_frames(last_frames(run, installed).0, 1);
            if frame.is_empty() {
                break;
            }
            if self.install_bitmaps(section, first, frame.start(), is_self_hosted) {
                installed += 1;
            } else {
                // Another CPU has made these bitmaps.
                self.fill_as_free(frame);
            }
        }
        installed
    }

    /// Makes `frame` the frame of bitmaps of the group that has pageblock number `bit` of
    /// `section`. The caller owns `frame`. Returns false if the group has bitmaps already.
    pub(crate) fn install_bitmaps(
        &self,
        section: SectionRef<'_>,
        bit: usize,
        frame: Pfn,
        is_self_hosted: bool,
    ) -> bool {
        self.note_metadata(PfnRange::with_len(frame, 1).unwrap_or(PfnRange::EMPTY));
        let bitmaps = self.bitmaps_in(frame);
        // SAFETY: `frame` is mapped, and only the caller uses it. A frame is large enough and
        // aligned for a `BitmapFrame`, for which any bytes are valid.
        unsafe { &*bitmaps }.clear(section.start_of_bitmaps(bit));
        section.bitmaps.pointer_of(bit).install(bitmaps, is_self_hosted)
    }

    /// Returns the address of the bitmaps in `frame`.
    fn bitmaps_in(&self, frame: Pfn) -> *mut BitmapFrame {
        self.frames.direct_map().pointer(frame).cast()
    }
}

/// Divides `range` into all but the last `frames` frames, and these.
fn last_frames(range: PfnRange, frames: usize) -> (PfnRange, PfnRange) {
    let below = range.frames().saturating_sub(frames as u64);
    range.split_at(range.start().checked_add(below).unwrap_or(range.end()))
}
