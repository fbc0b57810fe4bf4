//! A claimed pageblock becomes live: handed out whole, or divided.
//!
//! The lines of a section fill one frame of memory, and it is needed only once a pageblock of the
//! section is *divided*: split for small allocations, or freed in part after it was handed out
//! whole. So it can always be had from what is being divided, and nothing ever fails for want of
//! it:
//! 1. from memory that is never removed, as long as some is free there in split pageblocks;
//! 2. from the pageblock that is being divided.
//!
//! Without lines, every live pageblock of a section is wholly taken; that is what fresh lines say.
//! A section's own frame of lines does not hinder the section's removal (see `isolate/in_use.rs`).

use super::Frames;
use super::quiet::Moves;
use crate::addr::{Pfn, PfnRange};
use crate::frames::want::Want;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, Line, LineFrame, SectionRef};
use core::ops::Range;

impl<P: Platform> Frames<P> {
    /// The caller owns `block`, and all of it is taken from now on.
    pub(super) fn hand_out(&self, block: &Block<'_>) {
        // If there are none yet, those that come will say so.
        if let Some(line) = block.line() {
            line.write(0..PAGEBLOCK_FRAMES, None);
        }
        block.counter.set_live(0);
    }

    /// The caller owns `block`: the frames `taken`, not all, are the caller's from now on, the rest
    /// is free for anybody.
    pub(super) fn divide(&self, block: &Block<'_>, taken: Range<usize>, moves: &mut Moves<'_>) {
        let last = PAGEBLOCK_FRAMES - 1;
        let spare = if taken.contains(&last) { 0 } else { last };
        let Some((line, lent)) = self.line_or_lend(block, spare, moves).known() else { return };
        let free = PAGEBLOCK_FRAMES - taken.len() - usize::from(lent);
        line.write(taken, lent.then_some(spare));
        block.counter.set_live(free);
    }

    /// The line of `block`, which the caller owns or has frames of. If the section has no lines
    /// yet, the caller's frame number `spare` of the block may be used for them; says whether it
    /// was.
    #[inline]
    pub(super) fn line_or_lend<'a>(
        &self,
        block: &Block<'a>,
        spare: usize,
        moves: &mut Moves<'_>,
    ) -> Option<(&'a Line, bool)> {
        match block.line() {
            Some(line) => Some((line, false)),
            None => self.first_line(block, spare, moves),
        }
    }

    #[cold]
    fn first_line<'a>(
        &self,
        block: &Block<'a>,
        spare: usize,
        moves: &mut Moves<'_>,
    ) -> Option<(&'a Line, bool)> {
        let mut lent = false;
        if let Some(frame) = self.frame_for_lines(moves) {
            if !self.install_lines(block, frame)
                && let Some(unused) = PfnRange::with_len(frame, 1).known()
            {
                self.fill(unused);
                // It was allocated just now.
                self.free_range(unused).known();
            }
        } else {
            let frame = block.start().checked_add(spare as u64)?;
            lent = self.install_lines(block, frame);
            if !lent && let Some(unused) = PfnRange::with_len(frame, 1) {
                self.fill(unused);
            }
        }
        Some((block.line()?, lent))
    }

    /// A frame for lines that can be had without splitting anything, from memory that is never
    /// removed.
    fn frame_for_lines(&self, moves: &mut Moves<'_>) -> Option<Pfn> {
        let want = Want::frames(1).fixed();
        self.places(&want).find_map(|place| {
            self.own_block(place.zone)
                .and_then(|block| self.take(&block, &want, moves))
                .or_else(|| self.take_partial(place, &want, usize::MAX, moves))
        })
    }

    /// Makes `frame`, which is the caller's, the section's frame of lines. False if the section has
    /// lines already.
    fn install_lines(&self, block: &Block<'_>, frame: Pfn) -> bool {
        let lines = self.lines_in(frame);
        // SAFETY: the frame is mapped, the caller's alone, and large and aligned enough; any bytes
        // are a valid `LineFrame`.
        unsafe { &*lines }.clear();
        // Release pairs with the Acquire in `Section::line`, so that they are seen cleared.
        block
            .section
            .lines
            .compare_exchange(core::ptr::null_mut(), lines, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    /// Where the lines lie that fill this frame.
    pub(crate) fn lines_in(&self, frame: Pfn) -> *mut LineFrame {
        self.direct_map().pointer(frame).cast()
    }

    /// The frame that holds the lines of a section.
    pub(crate) fn frame_of_lines(&self, section: SectionRef<'_>) -> Option<Pfn> {
        let lines = section.lines.load(Ordering::Acquire);
        if lines.is_null() { None } else { self.direct_map().frame_at(lines.cast()) }
    }

    /// Boot only, single-threaded: the line frame of a section.
    pub(crate) fn set_lines(&self, section: SectionRef<'_>, frame: Pfn) {
        section.lines.store(self.lines_in(frame), Ordering::Release);
    }

    /// Boot only, single-threaded: a pageblock none of whose frames is free.
    #[cfg(not(loom))]
    pub(crate) fn set_taken(&self, block: &Block<'_>) {
        // `fill` has given the section its lines.
        if let Some(line) = block.line().known() {
            line.write(0..PAGEBLOCK_FRAMES, None);
            block.counter.set_live(0);
        }
    }
}

const _: () = assert!(SECTION_PAGEBLOCKS <= 64);
