//! A claimed pageblock becomes live: split for small allocations, or handed out whole.
//!
//! Both write the pageblock's line of frame bits and publish it by its counter. The lines of a
//! section fill one frame of memory, and it is needed only once something of the section is first
//! taken. It comes, in this order, from
//! 1. memory that is never removed, as long as some is free there in split pageblocks;
//! 2. the pageblock that is being split: its last frame;
//! 3. anywhere, for a pageblock that is handed out whole.
//!
//! A section's own frame of lines does not hinder the section's removal (see `isolate.rs`).

use super::quiet::Moves;
use super::{Block, Frames};
use crate::addr::{Pfn, PfnRange};
use crate::frames::want::Want;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::platform::Platform;
use crate::section::{ALL, LineFrame};
use crate::sync::Ordering;

impl<P: Platform> Frames<P> {
    /// The caller owns `block`: its first `taken` frames are the caller's, the rest is free for
    /// anybody. False if there is no memory for the section's lines; the caller still owns it.
    ///
    /// With `taken` below a whole pageblock the rest may lend a frame for the lines.
    pub(super) fn make_live(&self, block: &Block<'_>, taken: usize, moves: &mut Moves<'_>) -> bool {
        let mut rest = taken..PAGEBLOCK_FRAMES;
        if block.line().is_none() {
            let lent = if taken < PAGEBLOCK_FRAMES {
                self.frame_for_lines(moves).is_some_and(|frame| self.give_lines(block, frame))
                    || block.start().checked_add(PAGEBLOCK_FRAMES as u64 - 1).is_some_and(|last| {
                        let lent = self.install_lines(block, last);
                        rest.end -= usize::from(lent);
                        lent || block.line().is_some()
                    })
            } else {
                self.frame_for_lines(moves)
                    .or_else(|| self.frame_from_elsewhere(moves))
                    .is_some_and(|frame| self.give_lines(block, frame))
            };
            if !lent {
                return false;
            }
        }
        let Some(line) = block.line() else { return false };
        #[allow(clippy::cast_possible_truncation, reason = "at most 512")]
        let free = rest.len() as u16;
        line.write(rest);
        block.counter.set_live(free);
        true
    }

    /// A frame for lines that can be had without splitting anything, from memory that is never
    /// removed.
    fn frame_for_lines(&self, moves: &mut Moves<'_>) -> Option<Pfn> {
        let want = Want::frames(1).fixed();
        want.zones().iter().find_map(|&zone| {
            self.own_block(zone)
                .filter(|block| block.region.is_fixed())
                .and_then(|block| self.take(&block, &want, moves))
                .or_else(|| self.take_partial(zone, &want, usize::MAX, moves))
        })
    }

    /// Any frame at all, for the lines of a pageblock that is wanted whole. Splitting for it does
    /// not come back here: a split finds the frame in what it splits.
    fn frame_from_elsewhere(&self, moves: &mut Moves<'_>) -> Option<Pfn> {
        let fixed = Want::frames(1).fixed();
        let wants = [fixed, fixed.movable(), Want::frames(1), Want::frames(1).movable()];
        wants.into_iter().find_map(|want| self.search_small(&want, moves))
    }

    /// Makes `frame` the section's frame of lines, or gives it back if there is one by now.
    fn give_lines(&self, block: &Block<'_>, frame: Pfn) -> bool {
        if !self.install_lines(block, frame)
            && let Some(unused) = PfnRange::with_len(frame, 1)
        {
            // It was allocated just now, so this cannot fail.
            let _ = self.free(unused);
        }
        true
    }

    /// False if the section has lines already.
    fn install_lines(&self, block: &Block<'_>, frame: Pfn) -> bool {
        // Release pairs with the Acquire in `Section::line`. What the frame holds does not matter:
        // each line is written by the owner of its pageblock before it is read.
        let lines = self.lines_in(frame);
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

    /// The frame that holds the lines of section `index` of region `slot`.
    pub(crate) fn frame_of_lines(&self, slot: usize, index: usize) -> Option<Pfn> {
        let lines = self.slots().get(slot)?.section(index)?.lines.load(Ordering::Acquire);
        if lines.is_null() { None } else { self.direct_map().frame_at(lines.cast()) }
    }

    /// Boot only, single-threaded: the line frame of a section.
    pub(crate) fn set_lines(&self, slot: usize, index: usize, frame: Pfn) {
        if let Some(section) = self.slots().get(slot).and_then(|region| region.section(index)) {
            section.lines.store(self.lines_in(frame), Ordering::Release);
        }
    }

    /// Boot only, single-threaded: a pageblock none of whose frames is free.
    pub(crate) fn set_taken(&self, block: &Block<'_>) {
        if let Some(line) = block.line() {
            line.write(0..0);
            block.counter.set_live(0);
        }
    }
}

const _: () = assert!(SECTION_PAGEBLOCKS <= 64 && ALL as usize == PAGEBLOCK_FRAMES);
