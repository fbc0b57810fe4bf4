//! An exact place: these frames and no others.

use super::free::words_of;
use super::quiet::Moves;
use super::{AllocError, Block, Frames, Want};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::platform::Platform;
use crate::section::ALL;
use core::ops::Range;

impl<P: Platform> Frames<P> {
    /// Allocates exactly the frames from `at` up, pageblock by pageblock; if one is not free, all
    /// before it are freed again.
    pub(super) fn alloc_at(&self, at: Pfn, want: Want) -> Result<PfnRange, AllocError> {
        let range = PfnRange::with_len(at, want.len()).ok_or(AllocError::OutOfMemory)?;
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            if !self.take_piece(piece, &want) {
                let before = range.split_at(piece.start()).0;
                if !before.is_empty() {
                    // Ours since a moment ago, so this cannot fail.
                    let _ = self.free(before);
                }
                return Err(AllocError::NotFree(piece));
            }
        }
        Ok(range)
    }

    /// Takes a part of one pageblock.
    fn take_piece(&self, piece: PfnRange, want: &Want) -> bool {
        let Some(block) = self.block_of(piece.start()) else { return false };
        if !want.zones().contains(&block.zone()) {
            return false;
        }
        let mut moves = self.no_moves_yet();
        moves.start();
        let owned = block.section.claim_all(block.mask())
            || block.counter.own_from(ALL).is_some_and(|isolated| !isolated);
        let whole = piece.frames() == PAGEBLOCK_FRAMES as u64;
        if owned {
            // In part: split with everything free, and then taken from like any other.
            let taken = if whole { PAGEBLOCK_FRAMES } else { 0 };
            if !self.make_live(&block, taken, &mut moves) {
                self.show_free(block.slot, block.index, block.mask(), &mut moves);
                return false;
            }
            if whole {
                return true;
            }
        }
        let first = usize::try_from(piece.start().number() - block.start().number()).unwrap_or(0);
        #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
        let taken = self.take_exactly(&block, first..first + piece.frames() as usize, &mut moves);
        self.show_partial_if_any(&block);
        taken
    }

    /// Takes these frames of a live pageblock, all or none.
    fn take_exactly(&self, block: &Block<'_>, frames: Range<usize>, moves: &mut Moves<'_>) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
        let credit = frames.len() as u16;
        if !block.counter.credit(credit) {
            return false;
        }
        let Some(line) = block.line() else { return false };
        let lost = words_of(frames.clone()).find(|&(word, bits)| !line.take(word, bits));
        if let Some((lost, _)) = lost {
            for (word, bits) in words_of(frames).take_while(|&(word, _)| word < lost) {
                line.give(word, bits);
            }
            self.give_credit(block, credit, moves);
        }
        lost.is_none()
    }
}
