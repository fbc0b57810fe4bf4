//! Captures pageblocks for an isolation token, and releases them to the allocator.

use super::Isolation;
use crate::addr::PfnRange;
use crate::frames::{Frames, Moves};
use crate::known::Known;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::{Ordering, spin_hint};
use crate::words::{Block, Capture, Part, SectionRef};

/// The number of times that the capture reads the block state of a pageblock that is being
/// allocated or freed. After that, the capture fails.
const ATTEMPTS: usize = if cfg!(loom) { 2 } else { 1000 };

impl<P: Platform> Frames<P> {
    /// Isolates all of `range`, which must consist of whole pageblocks that are online.
    ///
    /// Context: any. Cost: O(pageblocks), and a bounded wait for a pageblock that is being
    /// allocated or freed. Calls no hook and holds no lock.
    ///
    /// # Errors
    /// [`RangeError`]; nothing is isolated. If another CPU changes `range` meanwhile, free
    /// pageblocks of `range` may lose their reported state. Such pageblocks are reported to the
    /// host again.
    pub fn isolate(&self, range: PfnRange) -> Result<Isolation<'_, P>, RangeError> {
        RangeError::check_pageblocks(range)?;
        if let Some(error) = self.foreseen_refusal(range) {
            return Err(error);
        }
        // Count a move: if the capture fails half-way, searches cannot find the captured pageblocks
        // until they are released.
        let mut moves = self.new_moves();
        moves.start();
        let mut isolation = Isolation { frames: self, range: PfnRange::EMPTY, was_free: true };
        for piece in range.sections() {
            match self.capture(piece) {
                Ok(was_free) => {
                    isolation.range = range.split_at(piece.end()).0;
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

    /// If a part of `range` is reported, checks by loads alone whether `range` cannot be isolated,
    /// and returns the reason. A capture clears the reported state of a pageblock, and a release
    /// does not restore it. So a refusal that can be foreseen must come before the capture.
    fn foreseen_refusal(&self, range: PfnRange) -> Option<RangeError> {
        // Relaxed: if another CPU changes the words meanwhile, the capture fails instead.
        let reported = |part: &Part<'_>| part.section.reported.load(Ordering::Relaxed);
        if !self.words().parts(range).any(|part| reported(&part) & part.blocks != 0) {
            return None;
        }
        range.sections().find_map(|piece| {
            let Part { section, blocks } = match self.words().part_or_absent(piece) {
                Ok(part) => part,
                Err(absent) => return Some(RangeErrorKind::NotOnline.at(absent)),
            };
            let offline = blocks & !section.online.load(Ordering::Relaxed);
            if offline != 0 {
                return Some(RangeErrorKind::NotOnline.at(section.first_block(offline)));
            }
            let in_use = blocks & !section.free.load(Ordering::Relaxed);
            let held = section.isolated.load(Ordering::Relaxed);
            // The bit of `isolated` is also set for a pageblock that is being reported, so look at
            // that state first.
            section.blocks(in_use).find_map(|block| match block.state().load() {
                state if state.is_reporting() => Some(RangeErrorKind::Reporting.at(block.range())),
                _ if held & block.mask() != 0 => Some(RangeErrorKind::Isolated.at(block.range())),
                _ => None,
            })
        })
    }

    /// Captures all of `piece`, which lies in one section, or nothing. Returns whether all of
    /// `piece` was free or kept for descriptors.
    fn capture(&self, piece: PfnRange) -> Result<bool, RangeError> {
        let part = self
            .words()
            .part_or_absent(piece)
            .map_err(|absent| RangeErrorKind::NotOnline.at(absent))?;
        let Part { section, blocks: wanted } = part;
        // Acquire: makes the words visible that were written before the pageblocks came online.
        let offline = wanted & !section.online.load(Ordering::Acquire);
        if offline != 0 {
            return Err(RangeErrorKind::NotOnline.at(section.first_block(offline)));
        }
        let (mut captured, withdrawn) = section.claim_any(wanted);
        self.wakeup().note_withdrawn(withdrawn);
        section.isolated.fetch_or(captured, Ordering::AcqRel);
        let in_use = wanted & !captured;
        let mut kept = 0;
        for block in section.blocks(in_use) {
            match self.capture_block(&block) {
                how @ (Capture::Owned | Capture::Flagged { .. } | Capture::HoldsDescriptors) => {
                    section.isolated.fetch_or(block.mask(), Ordering::AcqRel);
                    captured |= block.mask();
                    if how == Capture::HoldsDescriptors {
                        kept |= block.mask();
                    }
                }
                failed => {
                    self.release_in(section, captured);
                    let range = block.range();
                    return Err(match failed {
                        Capture::HeldByAnother => RangeErrorKind::Isolated.at(range),
                        Capture::Reporting => RangeErrorKind::Reporting.at(range),
                        _ => RangeErrorKind::Busy.at(range),
                    });
                }
            }
        }
        Ok(in_use == kept)
    }

    /// Captures a pageblock whose `free` bit the caller could not claim.
    fn capture_block(&self, block: &Block<'_>) -> Capture {
        let mut moves = self.new_moves();
        for _ in 0..ATTEMPTS {
            if block.state().load().is_live() && self.take_if_all_free(block, &mut moves) {
                return Capture::Owned;
            }
            match block.state().isolate() {
                Capture::InFlight => {}
                captured => {
                    if captured == (Capture::Flagged { open: true })
                        && let Some(bitmap) = self.bitmap_of(block, &mut moves).known()
                    {
                        bitmap.isolate();
                    }
                    return captured;
                }
            }
            if block.section.isolated.load(Ordering::Acquire) & block.mask() != 0 {
                return Capture::HeldByAnother;
            }
            let (captured, withdrawn) = block.section.claim_any(block.mask());
            self.wakeup().note_withdrawn(withdrawn);
            if captured != 0 {
                return Capture::Owned;
            }
            spin_hint();
        }
        Capture::InFlight
    }

    /// Releases captured pageblocks of a section to the allocator.
    pub(super) fn release_in(&self, section: SectionRef<'_>, captured: u64) {
        let mut moves = self.new_moves();
        moves.start();
        section.isolated.fetch_and(!captured, Ordering::AcqRel);
        let mut owned = 0;
        for block in section.blocks(captured) {
            if !self.release_block(&block, &mut moves) {
                owned |= block.mask();
            }
        }
        let owned = self.divide_around_poison(section, owned, &mut moves);
        if owned != 0 {
            self.show_free(section, owned, &mut moves);
        }
    }

    /// Releases a pageblock if it is live or holds descriptors. Returns false if no frame of the
    /// pageblock is in use, so that the token owns it.
    fn release_block(&self, block: &Block<'_>, moves: &mut Moves<'_>) -> bool {
        let now = block.state().load();
        if !now.is_live() {
            return now.holds_descriptors() && block.state().release().holds_descriptors();
        }
        // A pageblock without a bitmap is allocated as a whole. Clear the flags of the words before
        // the block state: after that, another token may set them.
        let bitmap = self.bitmap_of(block, moves);
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
            && let Some(bitmap) = self.bitmap_of(block, moves).known()
        {
            if before.is_partly_freed() {
                self.open_parts(block, bitmap, before);
            }
            self.show_released(block, bitmap, moves);
        }
        true
    }

    /// Holds `range` for an addition or a removal: sets its bits in `isolated`. `range` is neither
    /// online nor held.
    pub(crate) fn hold(&self, range: PfnRange) {
        for Part { section, blocks } in self.words().parts(range) {
            section.isolated.fetch_or(blocks, Ordering::AcqRel);
        }
    }

    /// Ends the hold of an addition or a removal on `range`.
    pub(crate) fn end_hold(&self, range: PfnRange) {
        for Part { section, blocks } in self.words().parts(range) {
            section.isolated.fetch_and(!blocks, Ordering::AcqRel);
        }
    }
}
