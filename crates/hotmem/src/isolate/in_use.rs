//! Finds what keeps isolated memory from being drained.
//!
//! # Metadata
//! Self-hosted bitmaps (see `words/bitmaps.rs`) are never free, reported or migrated. They do not
//! prevent the removal of the memory that they describe: if a token owns all online memory that they
//! describe, apart from the pageblocks that hold descriptors, they are dropped before the memory is
//! removed. If a hiding step is in flight, which may have found them, they are dropped at a later
//! attempt. If only a part of that memory is to be removed, and that part holds the bitmaps, the part
//! cannot be removed until the rest is free too. Only the control path drops bitmaps: while it runs,
//! no other part of the section can come online and be divided.
//!
//! The word reserve and the table reserve move to other kernel memory, if some is free.
//!
//! Memory that holds other metadata cannot be removed ([`BlockerKind::Metadata`]). This is boot
//! memory, or memory that was online when boot memory was full.

use crate::addr::{Pfn, PfnRange};
use crate::blocker::{Blocker, BlockerKind};
use crate::frames::{CallContext, Metadata, bitmaps_of, descriptor_pageblocks, frames_of_bitmaps};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, mask};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, FrameBitmap, SectionPart, SectionRef};

impl<P: Platform> CallContext<'_, P> {
    /// Returns what keeps a section's isolated pageblocks from being drained. `live_mask` has a bit
    /// for each pageblock to look at. Looks at the highest pageblock first. Names a poisoned frame in
    /// use only if no other frame is in use, and self-hosted bitmaps only if nothing else is in use.
    /// Makes the token the owner of each pageblock in which
    /// it finds no frame in use.
    pub(super) fn find_blocker(&self, section: SectionRef<'_>, live_mask: u64) -> Option<Blocker> {
        let (mut self_hosted_bitmaps, mut poisoned) = (None, None);
        for bit in (0..SECTION_PAGEBLOCKS).rev().filter(|bit| live_mask >> bit & 1 != 0) {
            let block = section.block(bit).or_record_violation()?;
            let state = block.state().load();
            if !state.is_live() {
                continue;
            }
            // The pageblock was freed as a whole, and the free will find the isolation.
            if state.is_whole() && block.is_free() {
                return Some(BlockerKind::Busy.at(block.range()));
            }
            if let Some(used) = self.used_in(block) {
                return Some(self.classify_owner(block, used));
            }
            if state.has_poison()
                && let Some(frame) = self.poisoned_in_use(block.range())
            {
                poisoned = Some(frame);
                continue;
            }
            // Only self-hosted bitmaps and poisoned frames are left. A held bitmap has two causes:
            // the pageblock was allocated whole and is partly freed, or an allocation or a free is
            // under way. Only an allocation or a free under way is a reason to wait.
            let is_held =
                self.with_bitmap(block, |bitmap| bitmap.is_some_and(FrameBitmap::is_held));
            if is_held && !state.is_partly_freed() {
                return Some(BlockerKind::Busy.at(block.range()));
            }
            if let Some(bitmap_frame) = self.self_hosted_bitmaps_in(block) {
                self_hosted_bitmaps = PfnRange::with_len(bitmap_frame, 1);
            } else if !block.state().take_drained() {
                return Some(BlockerKind::Busy.at(block.range()));
            }
        }
        let poisoned = poisoned.map(|frame| BlockerKind::Poisoned.at(frame));
        poisoned.or(self_hosted_bitmaps.map(|range| BlockerKind::Metadata.at(range)))
    }

    /// Drops self-hosted bitmaps of a section of which the token owns the pageblocks `held`.
    /// Bitmaps are dropped if the token owns all online memory that they describe, apart from the
    /// pageblocks that hold descriptors, and if no frame of that memory is in use. `live_mask` has
    /// a bit for each pageblock that may be in use. The caller keeps the rest of the section from
    /// coming online.
    pub(super) fn drop_bitmaps(
        &self,
        SectionPart { section, blocks: held }: SectionPart<'_>,
        live_mask: u64,
    ) {
        let online_elsewhere =
            section.online.load(Ordering::Acquire) & !held & !descriptor_pageblocks(section);
        for (frame, blocks, is_self_hosted) in frames_of_bitmaps(section, self.frames.direct_map())
        {
            let described = mask(blocks.end) & !mask(blocks.start);
            if is_self_hosted && online_elsewhere & described == 0 {
                self.drop_bitmap_frame(section, frame, live_mask & described);
            }
        }
    }

    fn drop_bitmap_frame(&self, section: SectionRef<'_>, frame: Pfn, live_mask: u64) -> Option<()> {
        let bitmap_range = PfnRange::with_len(frame, 1)?;
        if self.find_blocker(section, live_mask) != Some(BlockerKind::Metadata.at(bitmap_range)) {
            return None;
        }
        let block = self.words().block_of(frame)?;
        let bitmaps = section.bitmaps.pointer_of(block.bit());
        let hidden = bitmaps.hide()?;
        // If no hiding step is in flight, no CPU uses the self-hosted bitmaps; and since they are
        // hidden now, no look-up finds them.
        if !self.frames.no_hiding_step_in_flight() || !block.state().take_drained() {
            bitmaps.restore(hidden);
            return None;
        }
        bitmaps.drop_hidden();
        // Give the frame the contents of free memory: the removal may be abandoned, and then the
        // frame is allocated again.
        self.fill_as_free(bitmap_range);
        Some(())
    }

    /// Counts the frames that are in use or hold self-hosted bitmaps, in the pageblock of `frame`.
    pub(crate) fn used_in_pageblock_of(&self, frame: Pfn) -> u64 {
        self.words().block_of(frame).map_or(0, |block| self.used_frames(block))
    }

    /// Counts the frames that are not free in a live pageblock; returns 0 for any other pageblock.
    pub(crate) fn used_frames(&self, block: Block<'_>) -> u64 {
        if block.live_state().is_none() {
            return 0;
        }
        let free = self.with_bitmap(block, |bitmap| bitmap.map_or(0, FrameBitmap::free_frames));
        (PAGEBLOCK_FRAMES as u64).saturating_sub(free)
    }

    /// Counts the frames of a live pageblock that would have to move: those in use, except
    /// self-hosted bitmaps and quarantined frames.
    pub(super) fn frames_to_move(&self, block: Block<'_>) -> u64 {
        let bitmaps = u64::from(self.self_hosted_bitmaps_in(block).is_some());
        let unmovable = self.quarantined_in(block.range()).count() as u64 + bitmaps;
        self.used_frames(block).saturating_sub(unmovable)
    }

    /// Returns the first run of frames in use in a live pageblock, except self-hosted bitmaps and
    /// poisoned frames.
    pub(crate) fn used_in(&self, block: Block<'_>) -> Option<PfnRange> {
        let bitmap_frame = self.self_hosted_bitmaps_in(block).map(|frame| block.offset_of(frame));
        let has_poison = block.state().load().has_poison();
        let is_poisoned = |offset| {
            has_poison
                && self
                    .poisoned_in(block.range())
                    .any(|(frame, _)| block.offset_of(frame) == offset)
        };
        // If there are no bitmaps, the pageblock was allocated as a whole, so all its frames are in
        // use.
        let run = self.with_bitmap(block, |bitmap| {
            let is_used = |offset: usize| {
                let is_free = bitmap.is_some_and(|bitmap| bitmap.is_free(offset));
                !is_free && bitmap_frame != Some(offset) && !is_poisoned(offset)
            };
            let mut run = 0..0;
            for offset in 0..PAGEBLOCK_FRAMES {
                if is_used(offset) {
                    run = if run.is_empty() { offset } else { run.start }..offset + 1;
                } else if !run.is_empty() {
                    break;
                }
            }
            run
        });
        let range =
            PfnRange::with_len(block.start().checked_add(run.start as u64)?, run.len() as u64)?;
        (!range.is_empty()).then_some(range)
    }

    /// Returns the first frames of `used` that have one owner, and names the owner: the kernel, if
    /// they are allocated, or the engine, if they are metadata.
    fn classify_owner(&self, block: Block<'_>, used: PfnRange) -> Blocker {
        let mut blocker = None;
        // The part of `used` below its first frame that is metadata or no RAM.
        let mut allocated = used;
        if let Some(not_ram) = self.first_not_ram(used) {
            allocated = used.split_at(not_ram.start()).0;
            if allocated.is_empty() {
                return BlockerKind::Unmovable("no RAM").at(not_ram);
            }
        }
        // To look through all metadata takes O(sections), so do it only where there may be some.
        if !block.section().may_hold_metadata(block.mask()) {
            return BlockerKind::Allocated.at(allocated);
        }
        // Loops that call a function take less code than an iterator over all metadata.
        let visit: &mut dyn FnMut(Metadata) = &mut |metadata| {
            let frames = metadata.frames.intersection(used);
            if frames.contains(used.start()) {
                blocker = Some(BlockerKind::Metadata.at(frames));
            } else if !frames.is_empty() {
                allocated = allocated.split_at(frames.start()).0;
            }
        };
        self.visit_metadata_except_bitmaps(visit);
        // Bitmaps of other sections lie only in boot memory, which is rarely isolated.
        if block.is_boot(self.words()) {
            let sections = self.words().sections();
            let direct_map = self.frames.direct_map();
            sections.for_each(|section| bitmaps_of(section, direct_map).for_each(&mut *visit));
        }
        blocker.unwrap_or(BlockerKind::Allocated.at(allocated))
    }
}
