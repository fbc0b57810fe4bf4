//! Finds what keeps isolated memory from being drained.
//!
//! # Metadata
//! Own bitmaps (see `words/bitmaps.rs`) are never free, reported or migrated. A token may hold all
//! the memory that they describe, apart from what is offline or kept for descriptors. Then no new
//! call looks them up, and they are dropped before the memory leaves, unless a move is in flight
//! that may have looked them up before. So own bitmaps do not prevent the removal of the memory
//! that they describe. If only a part of that memory leaves, and it holds the bitmaps, it stays
//! until the rest is free as well. Only the control path drops bitmaps, because no other part of
//! the section may come online and be divided meanwhile. Other metadata lies in boot memory, or in
//! memory that was online when boot memory was full, and stays ([`Why::Metadata`]).

use crate::addr::{Pfn, PfnRange};
use crate::blocker::{Blocker, Why};
use crate::frames::{Frames, kept};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, mask};
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, FrameBitmap, Part, SectionRef};

impl<P: Platform> Frames<P> {
    /// Returns what keeps the isolated pageblocks `live` of a section from being drained. The
    /// highest pageblock comes first, and own bitmaps come last.
    pub(super) fn what_holds(&self, section: SectionRef<'_>, live: u64) -> Option<Blocker> {
        let mut own_bitmaps = None;
        for bit in (0..SECTION_PAGEBLOCKS).rev().filter(|bit| live >> bit & 1 != 0) {
            let block = section.block(bit).known()?;
            let state = block.state().load();
            if !state.is_live() {
                continue;
            }
            if let Some(used) = self.used_in(&block) {
                return Some(self.whose(&block, used));
            }
            // Only own bitmaps and poison are left. A pageblock of which only parts were freed is
            // held until it is released; any other pageblock that is held is being allocated or
            // freed.
            let is_held =
                self.with_bitmap(&block, |bitmap| bitmap.is_some_and(FrameBitmap::is_held));
            if is_held && !state.is_parted() {
                return Some(Why::Busy.at(block.range()));
            }
            if let Some(own) = self.own_bitmaps_in(&block) {
                own_bitmaps = PfnRange::with_len(own, 1);
            } else if !block.state().own_drained() {
                return Some(Why::Busy.at(block.range()));
            }
        }
        own_bitmaps.map(|own| Why::Metadata.at(own))
    }

    /// Drops the own bitmaps of a section, of which the token holds the pageblocks `held`. Bitmaps
    /// are dropped if the token holds all the memory that they describe, apart from what is offline
    /// or kept for descriptors, and if no frame of that memory is in use. The caller keeps the rest
    /// of the section from coming online.
    pub(super) fn drop_bitmaps(&self, Part { section, blocks: held }: Part<'_>, live: u64) {
        let others = section.online.load(Ordering::Acquire) & !held & !kept(section);
        for (frame, blocks, own) in self.frames_of_bitmaps(section) {
            let described = mask(blocks.end) & !mask(blocks.start);
            if own && others & described == 0 {
                self.drop_own_bitmaps(section, frame, live & described);
            }
        }
    }

    fn drop_own_bitmaps(&self, section: SectionRef<'_>, frame: Pfn, live: u64) -> Option<()> {
        let own = PfnRange::with_len(frame, 1)?;
        if self.what_holds(section, live) != Some(Why::Metadata.at(own)) {
            return None;
        }
        let block = self.words().block_of(frame)?;
        let bitmaps = section.bitmaps.of(block.bit());
        let hidden = bitmaps.hide()?;
        // A CPU that has counted no move uses no own bitmaps, and from now on a look-up finds none.
        if !self.is_quiet() || !block.state().own_drained() {
            bitmaps.restore(hidden);
            return None;
        }
        // The memory may stay in the allocator after all.
        self.fill(own);
        Some(())
    }

    /// Counts the frames, in the pageblock of this frame, that are in use or hold own bitmaps.
    pub(crate) fn used_of(&self, frame: Pfn) -> u64 {
        self.words().block_of(frame).map_or(0, |block| self.used_frames(&block))
    }

    /// Counts the frames that are not free in a live pageblock; returns 0 for any other pageblock.
    pub(crate) fn used_frames(&self, block: &Block<'_>) -> u64 {
        if !block.state().load().is_live() {
            return 0;
        }
        let free = self.with_bitmap(block, |bitmap| bitmap.map_or(0, FrameBitmap::free_frames));
        PAGEBLOCK_FRAMES.saturating_sub(free) as u64
    }

    /// Counts the frames of a live pageblock that would have to move: those in use, without own
    /// bitmaps and without frames that are out for poison.
    pub(super) fn frames_to_move(&self, block: &Block<'_>) -> u64 {
        let stay = self.out_in(block.range()).chain(self.own_bitmaps_in(block)).count();
        self.used_frames(block).saturating_sub(stay as u64)
    }

    /// Returns the first run of frames in use in a live pageblock, without own bitmaps and without
    /// frames that are out for poison.
    pub(crate) fn used_in(&self, block: &Block<'_>) -> Option<PfnRange> {
        let own = self.own_bitmaps_in(block).map(|frame| block.offset_of(frame));
        let is_marked = block.state().load().has_poison();
        let is_out =
            |at| is_marked && self.out_in(block.range()).any(|frame| block.offset_of(frame) == at);
        // Without bitmaps, the pageblock was allocated as a whole.
        let run = self.with_bitmap(block, |bitmap| {
            let is_free = |at| bitmap.is_some_and(|bitmap| bitmap.is_free(at));
            let used = |at: usize| !is_free(at) && own != Some(at) && !is_out(at);
            let first = (0..PAGEBLOCK_FRAMES).find(|&at| used(at))?;
            let end = (first..PAGEBLOCK_FRAMES).find(|&at| !used(at));
            Some(first..end.unwrap_or(PAGEBLOCK_FRAMES))
        })?;
        PfnRange::with_len(block.start().checked_add(run.start as u64)?, run.len() as u64)
    }

    /// Returns the first of these used frames that have the same owner: the kernel, if they are
    /// allocated, or the engine, if they are metadata.
    fn whose(&self, block: &Block<'_>, used: PfnRange) -> Blocker {
        // Bitmaps of other sections lie only in boot memory, which is rarely isolated, so that this
        // usually reads only the list of the regions' words.
        let bitmaps = block.is_boot();
        // The part of `used` below the first frame of the engine.
        let mut below = used;
        for metadata in self.metadata_where(bitmaps) {
            let engine = metadata.frames.intersection(used);
            if engine.contains(used.start()) {
                return Why::Metadata.at(engine);
            }
            if !engine.is_empty() {
                below = below.split_at(engine.start()).0;
            }
        }
        Why::Allocated.at(below)
    }
}
