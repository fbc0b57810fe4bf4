//! Checks that the engine's metadata is consistent: words, block states, frame bitmaps, hints and
//! trees.

use crate::addr::PfnRange;
use crate::frames::{CallContext, Counts, Frames};
use crate::geometry::{BITMAP_WORDS, SECTION_MASK};
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, BlockState, Class, FrameBitmap, Zone};
use core::fmt;

/// An inconsistency in the engine's metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inconsistency {
    /// The pageblock that has the inconsistency. Empty if no single pageblock has it.
    pub range: PfnRange,
    /// The inconsistency.
    pub description: &'static str,
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.range, self.description)
    }
}

impl core::error::Error for Inconsistency {}

impl<P: Platform> Frames<P> {
    /// Checks all metadata of the instance for inconsistencies, and returns the counts. For tests
    /// and debugging. Cost: O(pageblocks).
    ///
    /// # Errors
    /// The first [`Inconsistency`].
    ///
    /// # Safety
    /// Until this function returns, no other code uses this instance's [`Frames`] or
    /// [`Hotplug`](crate::Hotplug). Otherwise, the frame bitmaps that the function reads could be
    /// freed or unmapped.
    pub unsafe fn validate(&self) -> Result<Counts, Inconsistency> {
        let call = self.call();
        for section in self.words.sections() {
            section.blocks(SECTION_MASK).try_for_each(|block| call.validate_block(block))?;
        }
        for metadata in self.metadata() {
            let is_noted = |block: Block<'_>| {
                block.section().may_hold_metadata(block.mask())
                    || block.state().load().holds_descriptors()
            };
            let mut parts = self.words.section_parts(metadata.frames);
            if !parts.all(|part| part.section.blocks(part.blocks).all(is_noted)) {
                let description = "metadata in a pageblock that has no mark of it";
                return Err(Inconsistency { range: metadata.frames, description });
            }
        }
        let counts = self.counts();
        if call.ensure_free(&Zone::ALL, u64::MAX) != Err(counts.free) {
            let description = "the count of free frames is not the number that searches find";
            return Err(Inconsistency { range: PfnRange::EMPTY, description });
        }
        #[cfg(not(loom))]
        for reserved in call.reserve_metadata() {
            let description = "in the word reserve, but free";
            let inconsistency = Inconsistency { range: reserved.frames, description };
            call.check_allocated(reserved.frames).map_err(|_| inconsistency)?;
        }
        Ok(counts)
    }
}

impl<P: Platform> CallContext<'_, P> {
    fn validate_block(&self, block: Block<'_>) -> Result<(), Inconsistency> {
        let has_bit =
            |word: &crate::sync::AtomicU64| word.load(Ordering::Acquire) & block.mask() != 0;
        let section = block.section();
        let (present, online, free) =
            (has_bit(&section.present), has_bit(&section.online), has_bit(&section.free));
        let isolated = has_bit(&section.isolated);
        let state = block.state().load();
        let (live, holds_descriptors) = (block.live_state().is_some(), state.holds_descriptors());
        let bitmap = self.bitmap_of(block);
        let claimable = bitmap.is_some_and(FrameBitmap::has_takeable);
        let is_free = |frame| bitmap.is_some_and(|bitmap| bitmap.is_free(block.offset_of(frame)));
        let poisoned = self.poisoned_in(block.range()).count() > 0;
        let known = present || isolated || has_bit(&section.movable);
        // Call `covers`, which is slow, only for pageblocks in use.
        let announced = known && self.words().covers(block.range());
        let checks = [
            (announced || !present, "present outside the announced range"),
            (present || !online, "online but not present"),
            (online || !free, "free but not online"),
            (announced || !has_bit(&section.movable), "device memory outside the announced range"),
            (online || !live, "live but not online"),
            (announced || !isolated, "held outside the announced range"),
            (free || isolated || !has_bit(&section.reported), "reported, but in use"),
            (
                free || !online || section.zeroed_blocks() & block.mask() == 0,
                "marked as zero, but in use",
            ),
            (!free || state.is_unused() || is_stale(state), "free, but its block state is in use"),
            (!free || !isolated, "free and isolated"),
            (
                if holds_descriptors {
                    (isolated || !online) == state.is_isolated()
                } else {
                    isolated == state.is_isolated() || (isolated && !live)
                },
                "the block state does not agree with the isolation",
            ),
            (
                !online || free || live || isolated || holds_descriptors,
                "neither free nor live nor isolated, and without descriptors: lost",
            ),
            (present || !holds_descriptors, "holds descriptors, but is not present"),
            (
                !bitmap.is_some_and(FrameBitmap::is_all_free) || self.is_hinted(block),
                "wholly free and no CPU's hint, but still divided",
            ),
            (live || !claimable, "its bitmap offers frames, but it is not live"),
            (!live || state.is_whole() || bitmap.is_some(), "divided, but it has no bitmap"),
            (
                bitmap.is_none_or(|bitmap| bitmap.describes(block.start().number(), block.zone())),
                "its bitmap describes other frames or another zone",
            ),
            (
                !live || bitmap.is_none_or(|bitmap| flags_agree(state, bitmap)),
                "the flags of the bitmap do not agree with the block state",
            ),
            (!free || !poisoned, "free, but some of its frames are poisoned"),
            (!live || poisoned == state.has_poison(), "live, but its mark for poison is wrong"),
            (
                !live || !self.quarantined_in(block.range()).any(is_free),
                "a frame is quarantined, but free",
            ),
            (!free || self.leads_to_free(block), "free, but no search finds it"),
            (!claimable || self.leads_to_partial(block), "has free frames, but no search finds it"),
            (
                !live || bitmap.is_none_or(|bitmap| self.leads_to_runs(block, bitmap)),
                "may have runs of free frames, but searches for runs pass it",
            ),
            (
                !free || has_bit(&section.reported) || self.leads_to_unreported(block),
                "free and not reported, but the reporter does not find it",
            ),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, description)) => Err(Inconsistency { range: block.range(), description }),
        }
    }

    fn leads_to_free(&self, block: Block<'_>) -> bool {
        let zone = block.zone();
        block.section().is_findable(self.words(), Class::free(zone))
            || self.hinted_sections(zone).any(|hint| hint == block.section())
    }

    fn leads_to_unreported(&self, block: Block<'_>) -> bool {
        !self.frames.wakeup().is_on()
            || block.section().is_findable(self.words(), Class::unreported(block.zone()))
    }

    fn leads_to_partial(&self, block: Block<'_>) -> bool {
        let zone = block.zone();
        let in_partial = block.section().partial.load(Ordering::Acquire) & block.mask() != 0;
        (in_partial && block.section().is_findable(self.words(), Class::partial(zone)))
            || self.is_hinted(block)
            || self.are_at_cursors(block)
    }

    /// Returns whether a search for runs finds a live pageblock if its `partial` bit is set, or all
    /// words of its bitmap are marked as words without runs. A held word is not marked.
    fn leads_to_runs(&self, block: Block<'_>, bitmap: &FrameBitmap) -> bool {
        let section = block.section();
        if section.may_have_runs.load(Ordering::Acquire) & block.mask() == 0 {
            return bitmap.is_held() || bitmap.is_marked();
        }
        section.partial.load(Ordering::Acquire) & block.mask() == 0
            || section.is_findable(self.words(), Class::partial_with_runs(block.zone()))
    }

    /// Returns whether cursors point to all words of a pageblock of which some frames may be taken.
    fn are_at_cursors(&self, block: Block<'_>) -> bool {
        let (section, bit) = (block.section().words(), block.bit());
        let has_cursor = |word| {
            let word = section.bitmaps.lasting_word(bit, word);
            word.is_some_and(|word| self.has_cursor_at(block, word))
        };
        block.lasting_bitmap().is_some_and(|bitmap| {
            (0..BITMAP_WORDS).all(|word| bitmap.takeable_in(word) == 0 || has_cursor(word))
        })
    }

    fn is_hinted(&self, block: Block<'_>) -> bool {
        self.hinted_blocks(block.zone()).any(|hinted| hinted.to_hint() == block.to_hint())
    }
}

/// Returns whether a free pageblock may have this block state because it was freed as a whole.
fn is_stale(state: BlockState) -> bool {
    state.is_whole() && !state.is_isolated() && !state.has_poison()
}

/// Returns whether the words of a live pageblock's bitmap have the right flags.
fn flags_agree(state: BlockState, bitmap: &FrameBitmap) -> bool {
    if state.is_whole() {
        return bitmap.is_held() && bitmap.free_frames() == 0;
    }
    if state.is_partly_freed() {
        return bitmap.is_held() && state.is_isolated();
    }
    !bitmap.is_held() && bitmap.isolation() == Some(state.is_isolated())
}
