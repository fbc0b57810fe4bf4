//! How a token comes by memory, and how the allocator comes by it again.

use super::Isolation;
use crate::addr::PfnRange;
use crate::frames::{Block, Frames};
use crate::geometry::bits_of;
use crate::known::Known;
use crate::platform::Platform;
use crate::section::{Capture, KEPT, LIVE, count};
use crate::sync::{Ordering, spin_hint};
use core::fmt;

/// Looks that are taken at a pageblock in somebody's hands before giving up.
const LOOKS: usize = if cfg!(loom) { 2 } else { 1000 };

/// Why memory could not be isolated. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IsolateError {
    /// No frames, or no whole pageblocks.
    Unaligned(PfnRange),
    /// This part of it is not online.
    NotOnline(PfnRange),
    /// Another token holds this pageblock.
    HeldByAnother(PfnRange),
    /// This pageblock is out for reporting: try again when the host is done with it.
    Reporting(PfnRange),
    /// This pageblock is in the middle of an allocation or a free: try again.
    Busy(PfnRange),
}

impl<P: Platform> Frames<P> {
    /// Isolates all of `range`, whole pageblocks that are online.
    ///
    /// Context: any, though it is long: O(pageblocks). Calls nothing back, holds no locks, waits a
    /// bounded time for a pageblock that is changing hands.
    ///
    /// # Errors
    /// [`IsolateError`]; everything is as it was.
    pub fn isolate(&self, range: PfnRange) -> Result<Isolation<'_, P>, IsolateError> {
        if range.is_empty() || !range.is_pageblock_aligned() {
            return Err(IsolateError::Unaligned(range));
        }
        // If it fails half-way, what was captured was hidden all the time.
        let mut moves = self.no_moves_yet();
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

    /// Captures a part of one section, all or nothing. Says whether all of it was wholly free.
    fn capture(&self, piece: PfnRange) -> Result<bool, IsolateError> {
        let Some((slot, index, wanted)) = self.word_of(piece) else {
            return Err(IsolateError::NotOnline(piece));
        };
        let section = self.section(slot, index).ok_or(IsolateError::NotOnline(piece))?;
        // Acquire: the words that came with being online.
        let offline = wanted & !section.online.load(Ordering::Acquire);
        if offline != 0 {
            return Err(IsolateError::NotOnline(self.first_block(slot, index, offline)));
        }
        let (mut captured, withdrawn) = section.claim_any(wanted);
        self.bell().note_withdrawn(withdrawn);
        section.isolated.fetch_or(captured, Ordering::AcqRel);
        let in_use = wanted & !captured;
        let mut kept = 0;
        for bit in bits_of(in_use) {
            let Some(block) = self.block(slot, index, bit).known() else { continue };
            match self.capture_block(&block) {
                how @ (Capture::Owned | Capture::Flagged | Capture::Kept) => {
                    section.isolated.fetch_or(block.mask(), Ordering::AcqRel);
                    captured |= block.mask();
                    if how == Capture::Kept {
                        kept |= block.mask();
                    }
                }
                failed => {
                    self.release_in(slot, index, captured);
                    let range = self.first_block(slot, index, block.mask());
                    return Err(match failed {
                        Capture::HeldByAnother => IsolateError::HeldByAnother(range),
                        Capture::Reporting => IsolateError::Reporting(range),
                        _ => IsolateError::Busy(range),
                    });
                }
            }
        }
        Ok(in_use == kept)
    }

    /// Captures a pageblock that was not free when it was looked at.
    fn capture_block(&self, block: &Block<'_>) -> Capture {
        for _ in 0..LOOKS {
            match block.counter.isolate() {
                Capture::InFlight => {}
                captured => return captured,
            }
            if block.section.isolated.load(Ordering::Acquire) & block.mask() != 0 {
                return Capture::HeldByAnother;
            }
            let (captured, withdrawn) = block.section.claim_any(block.mask());
            self.bell().note_withdrawn(withdrawn);
            if captured != 0 {
                return Capture::Owned;
            }
            spin_hint();
        }
        Capture::InFlight
    }

    /// Gives captured pageblocks of a section back to the allocator.
    pub(super) fn release_in(&self, slot: usize, index: usize, captured: u64) {
        let Some(section) = self.section(slot, index).known() else { return };
        let mut moves = self.no_moves_yet();
        moves.start();
        section.isolated.fetch_and(!captured, Ordering::AcqRel);
        let mut owned = 0;
        for bit in bits_of(captured) {
            let Some(block) = self.block(slot, index, bit).known() else { continue };
            let before = block.counter.release();
            if before & (LIVE | KEPT) == 0 {
                owned |= block.mask();
            } else if count(before) > 0 {
                self.show_partial(&block);
            }
        }
        let owned = self.divide_around_poison(slot, index, owned, &mut moves);
        if owned != 0 {
            self.show_free(slot, index, owned, &mut moves);
        }
    }

    /// Holds `range`, which is not online and not held, for an addition or a removal.
    pub(crate) fn hold(&self, range: PfnRange) {
        for (slot, index, blocks) in self.words_of(range) {
            if let Some(section) = self.section(slot, index).known() {
                section.isolated.fetch_or(blocks, Ordering::AcqRel);
            }
        }
    }

    /// Whoever held `range` is done with it.
    pub(crate) fn let_go(&self, range: PfnRange) {
        for (slot, index, blocks) in self.words_of(range) {
            if let Some(section) = self.section(slot, index).known() {
                section.isolated.fetch_and(!blocks, Ordering::AcqRel);
            }
        }
    }
}

impl fmt::Display for IsolateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IsolateError::Unaligned(range) => write!(f, "{range} is not whole pageblocks"),
            IsolateError::NotOnline(range) => write!(f, "{range} is not online"),
            IsolateError::HeldByAnother(range) => write!(f, "{range} is isolated already"),
            IsolateError::Reporting(range) => write!(f, "{range} is out for reporting"),
            IsolateError::Busy(range) => write!(f, "{range} is changing hands, try again"),
        }
    }
}

impl core::error::Error for IsolateError {}
