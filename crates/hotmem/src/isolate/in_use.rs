//! Finds what keeps isolated memory from being drained.
//!
//! # Metadata
//! A section's bitmap frame (see `frames/split.rs`) is never free, reported or migrated. Once a
//! token holds everything of a section that is online and not kept for descriptors, nobody can
//! reach the bitmaps any more, and they are dropped before the memory leaves. So bitmaps do not
//! hinder the removal of their own section. A smaller part of a section that holds the bitmap frame
//! stays until the rest of the section is free as well. Only the control path drops bitmaps:
//! meanwhile no other part of the section may come online and be divided. Other metadata lies in
//! boot memory, or in memory that was online when boot memory was full, and stays
//! ([`InUse::Metadata`]).

use crate::addr::{Pfn, PfnRange};
use crate::frames::{Frames, kept};
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, Part, SectionRef};

/// A reason why isolated memory is not drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InUse {
    /// These frames, a run within one pageblock, are allocated.
    Frames(PfnRange),
    /// These frames hold metadata: of memory that is still online, or of an announced region.
    Metadata(PfnRange),
    /// An allocation or a free in this pageblock is in flight: look again.
    InFlight(PfnRange),
}

impl InUse {
    /// Returns the frames that the reason names.
    #[must_use]
    pub const fn range(self) -> PfnRange {
        match self {
            InUse::Frames(range) | InUse::Metadata(range) | InUse::InFlight(range) => range,
        }
    }
}

impl<P: Platform> Frames<P> {
    /// Returns what keeps the isolated pageblocks `live` of a section from being drained: the
    /// highest pageblock first, the section's own bitmaps last.
    pub(super) fn what_holds(&self, section: SectionRef<'_>, live: u64) -> Option<InUse> {
        let bitmaps = self.frame_of_bitmaps(section);
        let mut own_bitmaps = None;
        for bit in (0..SECTION_PAGEBLOCKS).rev().filter(|bit| live >> bit & 1 != 0) {
            let block = section.block(bit).known()?;
            let state = block.state.load();
            if !state.is_live() {
                continue;
            }
            if let Some(used) = self.first_used(&block, bitmaps) {
                return Some(self.whose(&block, used));
            }
            // Only bitmaps and poison are left, if the count shows that no operation is in flight.
            let drained = self.drained_count(&block, bitmaps);
            if bitmaps.is_some_and(|frame| block.range().contains(frame)) {
                if state.free_frames() != drained {
                    return Some(InUse::InFlight(block.range()));
                }
                own_bitmaps = bitmaps.and_then(|frame| PfnRange::with_len(frame, 1));
            } else if !block.state.own_drained(drained) {
                return Some(InUse::InFlight(block.range()));
            }
        }
        own_bitmaps.map(InUse::Metadata)
    }

    /// Drops the bitmaps of a section of which the token holds `held`. It does so only if nothing
    /// else of the section is online but pageblocks that are kept for descriptors, and nothing else
    /// of it is in use. The caller keeps the rest of the section from coming online.
    pub(super) fn drop_bitmaps(
        &self,
        Part { section, blocks: held }: Part<'_>,
        live: u64,
    ) -> Option<()> {
        let frame = PfnRange::with_len(self.frame_of_bitmaps(section)?, 1)?;
        let others = section.online.load(Ordering::Acquire) & !held;
        // A kept pageblock is never divided.
        if others != 0 && others & !kept(section) != 0 {
            return None;
        }
        match self.what_holds(section, live) {
            None => {
                section.bitmaps.store(core::ptr::null_mut(), Ordering::Release);
                self.fill(frame);
                // The frame lies in boot memory and was allocated for the bitmaps.
                self.free_range(frame).known()
            }
            Some(InUse::Metadata(own)) if own == frame => {
                let block = self.words().block_of(frame.start())?;
                let drained = self.drained_count(&block, Some(frame.start()));
                if !block.state.own_drained(drained) {
                    return None;
                }
                section.bitmaps.store(core::ptr::null_mut(), Ordering::Release);
                // The memory may stay after all.
                self.fill(frame);
                Some(())
            }
            Some(_) => None,
        }
    }

    /// Returns the count of a live pageblock of which nothing is in use but the section's own
    /// bitmaps, if it has them, and the poisoned frames.
    pub(super) fn drained_count(&self, block: &Block<'_>, bitmaps: Option<Pfn>) -> usize {
        let own = bitmaps.filter(|&frame| block.range().contains(frame));
        let never_free = self.out_in(block.range()).chain(own).count();
        PAGEBLOCK_FRAMES.checked_sub(never_free).known().unwrap_or(0)
    }

    /// Counts the frames that are in use, or hold the section's own bitmaps, in the pageblock of
    /// this frame.
    pub(crate) fn used_of(&self, frame: Pfn) -> u64 {
        match self.words().block_of(frame).map(|block| block.state.load()) {
            Some(state) if state.is_live() => state.used_frames() as u64,
            _ => 0,
        }
    }

    /// Returns the first run of frames in use in a live pageblock, without the section's own
    /// bitmaps.
    pub(crate) fn used_in(&self, block: &Block<'_>) -> Option<PfnRange> {
        self.first_used(block, self.frame_of_bitmaps(block.section))
    }

    /// Returns the first run of frames in use in a pageblock, without the section's own bitmaps and
    /// without frames that are out for poison.
    fn first_used(&self, block: &Block<'_>, bitmaps: Option<Pfn>) -> Option<PfnRange> {
        let own = bitmaps.filter(|&frame| block.range().contains(frame));
        let own = own.map(|frame| block.offset_of(frame));
        let is_marked = block.state.load().has_poison();
        let is_out =
            |at| is_marked && self.out_in(block.range()).any(|frame| block.offset_of(frame) == at);
        // Without bitmaps, the pageblock was allocated as a whole.
        let bitmap = block.bitmap();
        let used = |at: usize| {
            let word =
                bitmap.map_or(0, |l| l.words()[at / BITMAP_WORD_BITS].load(Ordering::Acquire));
            word >> (at % BITMAP_WORD_BITS) & 1 == 0 && own != Some(at) && !is_out(at)
        };
        let first = (0..PAGEBLOCK_FRAMES).find(|&at| used(at))?;
        let end = (first..PAGEBLOCK_FRAMES).find(|&at| !used(at)).unwrap_or(PAGEBLOCK_FRAMES);
        PfnRange::with_len(block.start().checked_add(first as u64)?, (end - first) as u64)
    }

    /// Returns the first of these used frames, up to where their owner, the kernel or the engine,
    /// changes.
    fn whose(&self, block: &Block<'_>, used: PfnRange) -> InUse {
        // Bitmaps of other sections lie only in boot memory, which is rarely removed, so that this
        // usually looks only at the words of the regions.
        let bitmaps = block.is_fixed();
        let engine =
            self.metadata_where(bitmaps).map(|metadata| metadata.frames.intersection(used));
        match engine.filter(|frames| !frames.is_empty()).min_by_key(|frames| frames.start()) {
            None => InUse::Frames(used),
            Some(frames) if frames.start() == used.start() => InUse::Metadata(frames),
            Some(frames) => InUse::Frames(used.split_at(frames.start()).0),
        }
    }
}
