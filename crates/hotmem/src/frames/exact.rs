//! An exact place: these frames and no others.

use super::free::words_of;
use super::quiet::Moves;
use super::{AllocError, Block, Frames, Want};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::platform::Platform;
use crate::section::{ALL, ISOLATED, LIVE, count};
use crate::sync::Ordering;
use core::ops::Range;

impl<P: Platform> Frames<P> {
    /// Allocates exactly the frames from `at` up, pageblock by pageblock; if one is not free, all
    /// before it are freed again. They lie within one region, as everything that is allocated.
    pub(super) fn alloc_at(&self, at: Pfn, want: &Want) -> Result<PfnRange, AllocError> {
        let range = PfnRange::with_len(at, want.len()).ok_or(AllocError::OutOfMemory)?;
        if !self.regions().iter().any(|r| r.range().is_some_and(|all| all.covers(range))) {
            return Err(AllocError::NotFree(range));
        }
        let pieces = || range.chunks(PAGEBLOCK_FRAMES as u64);
        // All of it is looked at first, so that a refusal leaves no newly divided pageblock behind.
        let refused = pieces().find(|&piece| {
            let part = self.part(piece, want);
            !part.is_some_and(|(block, frames)| self.looks_free(&block, frames))
        });
        if let Some(refused) = refused {
            return Err(AllocError::NotFree(refused));
        }
        // What is undone was hidden all the time.
        let mut moves = self.no_moves_yet();
        moves.start();
        for piece in pieces() {
            let part = self.part(piece, want);
            if !part.is_some_and(|(block, frames)| self.take_part(&block, frames, &mut moves)) {
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

    /// A part of one pageblock, if the wish may have it.
    fn part(&self, piece: PfnRange, want: &Want) -> Option<(Block<'_>, Range<usize>)> {
        let block = self.block_of(piece.start())?;
        let first = usize::try_from(piece.start().number() - block.start().number()).ok()?;
        let frames = first..first + usize::try_from(piece.frames()).ok()?;
        want.zones().contains(&block.zone()).then_some((block, frames))
    }

    /// Whether these frames are free now.
    fn looks_free(&self, block: &Block<'_>, frames: Range<usize>) -> bool {
        let counter = block.counter.load();
        if counter & LIVE == 0 {
            return block.section.free.load(Ordering::Relaxed) & block.mask() != 0;
        }
        if counter & ISOLATED != 0 || usize::from(count(counter)) < frames.len() {
            return false;
        }
        // The line may be looked at only with a credit in hand.
        let mut moves = self.no_moves_yet();
        moves.start();
        if !block.counter.credit(1) {
            return false;
        }
        let free = block.line().is_some_and(|line| {
            words_of(frames)
                .all(|(word, bits)| line.words()[word].load(Ordering::Relaxed) & bits == bits)
        });
        self.give_credit(block, 1, &mut moves);
        free
    }

    /// Takes a part of one pageblock, in a move that has started.
    fn take_part(&self, block: &Block<'_>, frames: Range<usize>, moves: &mut Moves<'_>) -> bool {
        let owned = block.section.claim_all(block.mask())
            || block.counter.own_from(ALL).is_some_and(|isolated| !isolated);
        if owned && frames.len() == PAGEBLOCK_FRAMES {
            self.hand_out(block);
            return true;
        }
        if owned {
            self.divide(block, frames, moves);
        } else if !self.take_exactly(block, frames, moves) {
            return false;
        }
        self.show_partial_if_any(block);
        true
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
