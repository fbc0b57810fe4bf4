//! Implements the isolation token: the exclusive right to pageblocks that nobody can allocate any
//! more.
//!
//! A request that takes memory offline isolates the memory first. Then it releases the memory, or
//! takes it out of the allocator: one of the token's exits consumes the token. Isolating a free
//! pageblock claims it. Isolating a pageblock in use flags its block state and the words of its
//! bitmap: after that, no frame of the pageblock can be allocated, and the token owns the pageblock
//! once all its frames are free. The word `isolated` says which pageblocks belong to a token. A
//! bit of `isolated` is set after the other steps of the isolation. So a pageblock that is neither
//! free nor live nor `isolated` is being allocated, freed or isolated at that moment.

mod in_use;
mod isolate_pageblocks;
#[cfg(any(test, feature = "internals"))]
mod mark_reported;
mod park;

use crate::addr::{Pfn, PfnRange};
use crate::blocker::Blocker;
use crate::frames::Frames;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::invariant::{OrRecordViolation, check_invariant};
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::SectionPart;
use core::fmt;
pub(crate) use park::ParkedIsolation;

/// The right to whole pageblocks that nobody can allocate. A frame in them that is still in use can
/// be freed as usual, and stays isolated.
///
/// There are two exits: [`release`](Self::release) and `leave_allocator`.
/// A token that is forgotten or dropped leaves its pageblocks isolated and counted, never reused.
#[must_use = "dropping it leaves the memory isolated for good"]
pub struct Isolation<'f, P> {
    frames: &'f Frames<P>,
    range: PfnRange,
    /// Whether each pageblock was wholly free, or held descriptors, when it was isolated, or has been
    /// drained since: then no frame of it is in use.
    was_free: bool,
}

impl<'f, P: Platform> Isolation<'f, P> {
    /// Returns the isolated frames.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// Returns frames that are in use, those of the highest pageblock first, or `None` if no frame
    /// is in use. The reason is [allocated](crate::BlockerKind::Allocated),
    /// [metadata](crate::BlockerKind::Metadata) or [busy](crate::BlockerKind::Busy).
    ///
    /// Cost: O(pageblocks) from the highest down to the first that is in use; O(1) if all
    /// pageblocks were free when they were isolated.
    #[must_use]
    pub fn in_use(&self) -> Option<Blocker> {
        if self.was_free {
            return None;
        }
        let mut parts = self.section_parts().rev();
        parts.find_map(|part| self.frames.call().find_blocker(part.section, part.blocks))
    }

    /// Drops the self-hosted bitmaps that describe only memory of this token. For the control path
    /// only: it does not bring other memory of these sections online meanwhile.
    pub(crate) fn drop_bitmaps(&self) {
        for part in self.section_parts() {
            let live_mask = if self.was_free { 0 } else { part.blocks };
            self.frames.call().drop_bitmaps(part, live_mask);
        }
    }

    /// Gives the pageblocks back to the allocator, whether they are free or in use. An exit. Those
    /// that were reported when they were isolated are still reported.
    ///
    /// Context: any. Cost: O(pageblocks).
    pub fn release(self) {
        for part in self.section_parts() {
            self.frames.call().release_in(part.section, part.blocks);
        }
    }

    /// Takes the memory out of the allocator. An exit. The memory is then present and offline,
    /// keeps its zone, and is held until [`CallContext::clear_held`](crate::frames::CallContext::clear_held). For the control path only: see
    /// [`drop_bitmaps`](Self::drop_bitmaps).
    ///
    /// # Errors
    /// Returns the token and the frames that are in use, if any are.
    pub(crate) fn leave_allocator(self) -> Result<PfnRange, (Isolation<'f, P>, Blocker)> {
        self.drop_bitmaps();
        if let Some(in_use) = self.in_use() {
            return Err((self, in_use));
        }
        for SectionPart { section, blocks: held } in self.section_parts() {
            // Only the owner of the token can change these bits. Release: all earlier accesses to
            // the pageblock happen before the accesses of a reader that finds it offline.
            section.partial.fetch_and(!held, Ordering::AcqRel);
            self.frames.call().withdraw_reported(section, held);
            section.online.fetch_and(!held, Ordering::AcqRel);
        }
        self.frames.call().forget_hints(self.range);
        Ok(self.range)
    }

    /// Divides the token at the pageblock boundary at or below `pfn`, into one for the lower part
    /// and one for the upper part.
    pub fn split_at(self, pfn: Pfn) -> (Isolation<'f, P>, Isolation<'f, P>) {
        let at = pfn.align_down(PAGEBLOCK_FRAMES as u64);
        let (low, high) = self.range.split_at(at);
        let frames = self.frames;
        let part = |range| Isolation { frames, range, was_free: self.was_free };
        (part(low), part(high))
    }

    /// Joins this token with the token of the range right above it.
    pub(crate) fn join(self, above: Isolation<'f, P>) -> Isolation<'f, P> {
        check_invariant(self.range.end() == above.range.start());
        let range = PfnRange::new(self.range.start(), above.range.end());
        let range = range.or_record_violation().unwrap_or(self.range);
        Isolation { frames: self.frames, range, was_free: self.was_free && above.was_free }
    }

    /// Returns whether each pageblock was wholly free, or held descriptors, when it was isolated. If
    /// so, no frame of them is in use.
    pub(crate) fn was_free(&self) -> bool {
        self.was_free
    }

    /// Records that [`in_use`](Self::in_use) has returned `None`. This stays true: the token owns each
    /// pageblock in which no frame is in use.
    pub(crate) fn mark_drained(self) -> Isolation<'f, P> {
        Isolation { was_free: true, ..self }
    }

    /// Counts the frames that are in use and would have to move. Self-hosted bitmaps do not count.
    pub(crate) fn frames_in_use(&self) -> u64 {
        self.frames_in_use_in(self.range)
    }

    /// Counts these frames in a part of the isolated memory.
    pub(crate) fn frames_in_use_in(&self, part: PfnRange) -> u64 {
        let mut frames = 0;
        for SectionPart { section, blocks: held } in self.frames.words().section_parts(part) {
            section
                .blocks(held)
                .for_each(|block| frames += self.frames.call().frames_to_move(block));
        }
        frames
    }

    /// Returns whether the instance of `frames` made the token.
    #[cfg(feature = "internals")]
    pub(crate) fn is_of(&self, frames: &Frames<P>) -> bool {
        self.frames.id() == frames.id()
    }

    fn section_parts(&self) -> impl DoubleEndedIterator<Item = SectionPart<'f>> {
        self.frames.words().section_parts(self.range)
    }
}

impl<P> fmt::Debug for Isolation<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Isolation").field(&self.range).finish()
    }
}
