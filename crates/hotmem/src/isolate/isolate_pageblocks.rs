//! Isolates pageblocks for an isolation token, and releases them to the allocator.

use super::Isolation;
use crate::addr::PfnRange;
use crate::frames::{CallContext, Frames};
use crate::geometry::SECTION_FRAMES;
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::{Ordering, mutant, sequential, spin_hint};
use crate::words::{Block, IsolateOutcome, SectionPart, SectionRef};

/// The number of times that an isolation reads the block state of a pageblock that is being
/// allocated or freed. After that, the isolation fails.
const ATTEMPTS: usize = if cfg!(loom) { 2 } else { 1000 };

impl<P: Platform> Frames<P> {
    /// Does the same as [`isolate_range`](Self::isolate_range), for tests and benches.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn isolate(&self, range: PfnRange) -> Result<Isolation<'_, P>, RangeError> {
        self.call().isolate_range(range)
    }
}

impl<'f, P: Platform> CallContext<'f, P> {
    /// Isolates all of `range`, which must consist of whole pageblocks that are online. Ends the call,
    /// so that the caller can drop bitmaps, for which no hiding step may be in flight.
    ///
    /// Context: any. Cost: O(pageblocks), and a bounded wait for a pageblock that is being
    /// allocated or freed. Calls no hook and holds no lock.
    ///
    /// # Errors
    /// [`RangeError`]; nothing is isolated.
    pub(crate) fn isolate_range(self, range: PfnRange) -> Result<Isolation<'f, P>, RangeError> {
        RangeError::check_pageblocks(range)?;
        // Count a hiding step: if the isolation fails half-way, searches cannot find the isolated
        // pageblocks until they are released.
        self.start_hiding();
        let mut isolation =
            Isolation { frames: self.frames, range: PfnRange::EMPTY, was_free: true };
        for section_range in range.chunks(SECTION_FRAMES as u64) {
            match self.isolate_in_section(section_range) {
                Ok(was_free) => {
                    isolation.range = range.split_at(section_range.end()).0;
                    isolation.was_free &= was_free;
                }
                Err(error) => {
                    isolation.release();
                    return Err(error);
                }
            }
        }
        Ok(isolation)
    }

    /// Isolates all of `section_range`, which lies in one section, or nothing. Returns whether all
    /// of `section_range` was free or holds descriptors.
    fn isolate_in_section(&self, section_range: PfnRange) -> Result<bool, RangeError> {
        let part = self
            .words()
            .section_part_or_absent(section_range)
            .map_err(|absent| RangeErrorKind::NotOnline.at(absent))?;
        let SectionPart { section, blocks: wanted } = part;
        // Acquire: makes the words visible that were written before the pageblocks came online.
        let offline = wanted & !section.online.load(Ordering::Acquire);
        if offline != 0 {
            return Err(RangeErrorKind::NotOnline.at(section.first_block(offline)));
        }
        let mut isolated = self.claim_for_token(section, wanted);
        section.isolated.fetch_or(isolated, Ordering::AcqRel);
        let in_use = wanted & !isolated;
        let mut descriptor_blocks = 0;
        for block in section.blocks(in_use) {
            match self.isolate_block(block) {
                outcome @ (IsolateOutcome::Owned
                | IsolateOutcome::Flagged { .. }
                | IsolateOutcome::HoldsDescriptors) => {
                    section.isolated.fetch_or(block.mask(), Ordering::AcqRel);
                    isolated |= block.mask();
                    if outcome == IsolateOutcome::HoldsDescriptors {
                        descriptor_blocks |= block.mask();
                    }
                }
                failed => {
                    self.release_in(section, isolated);
                    let range = block.range();
                    return Err(match failed {
                        IsolateOutcome::HeldByAnother => RangeErrorKind::Isolated.at(range),
                        IsolateOutcome::Reporting => RangeErrorKind::Reporting.at(range),
                        _ => RangeErrorKind::Busy.at(range),
                    });
                }
            }
        }
        Ok(in_use == descriptor_blocks)
    }

    /// Isolates a pageblock whose `free` bit the caller could not claim.
    fn isolate_block(&self, block: Block<'_>) -> IsolateOutcome {
        for _ in 0..ATTEMPTS {
            if block.state().load().is_live() && self.take_if_all_free(block) {
                return IsolateOutcome::Owned;
            }
            match block.state().isolate() {
                IsolateOutcome::InFlight => {}
                outcome => {
                    if outcome == (IsolateOutcome::Flagged { open: true })
                        && let Some(bitmap) = self.bitmap_of(block).or_record_violation()
                    {
                        bitmap.isolate();
                    }
                    if outcome == (IsolateOutcome::Flagged { open: false })
                        && self.take_flagged_if_freed(block)
                    {
                        return IsolateOutcome::Owned;
                    }
                    return outcome;
                }
            }
            if block.section().isolated.load(Ordering::Acquire) & block.mask() != 0 {
                return IsolateOutcome::HeldByAnother;
            }
            if self.claim_for_token(block.section(), block.mask()) != 0 {
                return IsolateOutcome::Owned;
            }
            spin_hint();
        }
        IsolateOutcome::InFlight
    }

    /// Takes a pageblock for its token, if it was freed as a whole before the caller has flagged
    /// its block state: see `frames/whole/stale.rs`.
    fn take_flagged_if_freed(&self, block: Block<'_>) -> bool {
        mutant!("isolation does not look whether the pageblock is free" => return false);
        sequential();
        let is_owned = block.is_free() && block.section().claim_all(block.mask()).is_some();
        is_owned && block.state().take_drained()
    }

    /// Releases isolated pageblocks of a section to the allocator.
    pub(super) fn release_in(&self, section: SectionRef<'_>, isolated: u64) {
        self.start_hiding();
        section.isolated.fetch_and(!isolated, Ordering::AcqRel);
        let mut owned = 0;
        for block in section.blocks(isolated) {
            if !self.release_block(block) {
                owned |= block.mask();
            }
        }
        let owned = self.divide_around_poison(section, owned);
        if owned != 0 {
            self.publish_blocks(section, owned);
        }
    }

    /// Marks `range` as held by an addition or a removal: sets its bits in `isolated`. `range` is
    /// neither online nor held.
    pub(crate) fn mark_held(&self, range: PfnRange) {
        for SectionPart { section, blocks } in self.words().section_parts(range) {
            section.isolated.fetch_or(blocks, Ordering::AcqRel);
        }
    }

    /// Marks `range` as no longer held by an addition or a removal.
    pub(crate) fn clear_held(&self, range: PfnRange) {
        for SectionPart { section, blocks } in self.words().section_parts(range) {
            section.isolated.fetch_and(!blocks, Ordering::AcqRel);
        }
    }

    /// Marks `range`, which is offline, present and held, as memory whose removal was dropped.
    pub(crate) fn mark_orphaned(&self, range: PfnRange) {
        for SectionPart { section, blocks } in self.words().section_parts(range) {
            // Release: pairs with the Acquire of `orphaned_blocks`. The owner of the removal may
            // drop it on another CPU than that of the control path.
            section.reported.fetch_or(blocks, Ordering::Release);
        }
    }

    /// Clears the marks of memory whose removal was dropped. It is still held.
    pub(crate) fn clear_orphaned(&self, range: PfnRange) {
        for SectionPart { section, blocks } in self.words().section_parts(range) {
            // Relaxed: only the control path, which makes this call, relies on the marks.
            section.reported.fetch_and(!blocks, Ordering::Relaxed);
        }
    }

    /// Releases a pageblock if it is live or holds descriptors. Returns false if no frame of the
    /// pageblock is in use, so that the token owns it.
    fn release_block(&self, block: Block<'_>) -> bool {
        let now = block.state().load();
        if !now.is_live() {
            return now.holds_descriptors() && block.state().release().holds_descriptors();
        }
        // A pageblock without a bitmap is allocated as a whole. Clear the flags of the words before
        // the block state: after that, another token may set them.
        let bitmap = self.bitmap_of(block);
        if let Some(bitmap) = bitmap {
            bitmap.release();
        }
        let before = block.state().release();
        // The token owns the pageblock if another CPU has freed it as a whole meanwhile.
        if !before.is_live() {
            return false;
        }
        // Another CPU may have freed parts of the pageblock meanwhile, and made a bitmap for that.
        if !before.is_whole()
            && let Some(bitmap) = self.bitmap_of(block).or_record_violation()
        {
            if before.is_partly_freed() {
                self.open_partly_freed(block, bitmap, before);
            }
            self.publish_or_make_findable(block, bitmap);
        }
        true
    }
}
