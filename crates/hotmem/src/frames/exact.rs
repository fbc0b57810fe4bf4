//! Allocates the frames at an exact place.

use super::exhaustion::Moves;
use super::small::is_on_required_node;
use super::{AllocError, AllocRequest, Frames};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_WORDS, PAGEBLOCK_FRAMES};
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, FrameBitmap, NodeId, Zone, bitmap_words_of};
use core::ops::Range;

/// A part of one pageblock.
struct Part<'a> {
    block: Block<'a>,
    frames: Range<usize>,
    /// The zone of the pageblock when it was read.
    zone: Zone,
    /// The node that the request requires.
    only_on: Option<NodeId>,
}

impl<P: Platform> Frames<P> {
    /// Allocates exactly the frames that begin at `at`, pageblock by pageblock. If a part is not
    /// free, frees the parts before it again. Like every allocation, the frames must lie within one
    /// region.
    pub(super) fn alloc_at(&self, at: Pfn, request: &AllocRequest) -> Result<PfnRange, AllocError> {
        let range = PfnRange::with_len(at, request.len()).known().ok_or(AllocError::OutOfMemory)?;
        if !self.words.covers(range) {
            return Err(AllocError::NotFree(range));
        }
        let pieces = || range.chunks(PAGEBLOCK_FRAMES as u64);
        // Check all pieces first, so that a failed request divides no pageblock.
        let refused = pieces().find(|&piece| {
            let part = self.part(piece, request);
            !part.is_some_and(|part| self.looks_free(&part.block, part.frames))
        });
        if let Some(refused) = refused {
            return Err(AllocError::NotFree(refused));
        }
        // Count a move: if frames are freed again below, searches cannot find them until then.
        let mut moves = self.new_moves();
        moves.start();
        for piece in pieces() {
            if !self.part(piece, request).is_some_and(|part| self.take_part(&part, &mut moves)) {
                let before = range.split_at(piece.start()).0;
                if !before.is_empty() {
                    // This call has just allocated these frames, so freeing them cannot fail.
                    self.free_range(before).known();
                }
                return Err(AllocError::NotFree(piece));
            }
        }
        Ok(range)
    }

    /// Returns the part of a pageblock that `piece` covers, if its zone, its node and its kind of
    /// memory suit the request.
    fn part(&self, piece: PfnRange, request: &AllocRequest) -> Option<Part<'_>> {
        let block = self.words.block_of(piece.start())?;
        let first = usize::try_from(piece.start().number() - block.start().number()).ok()?;
        let frames = first..first + usize::try_from(piece.frames()).ok()?;
        let zone = block.zone();
        let only_on = request.only_node();
        let is_right = request.zones().contains(&zone)
            && is_on_required_node(&block, only_on)
            && (!request.needs_boot_memory() || block.is_boot());
        is_right.then_some(Part { block, frames, zone, only_on })
    }

    /// Returns whether `frames` of a pageblock are free at this moment.
    fn looks_free(&self, block: &Block<'_>, frames: Range<usize>) -> bool {
        let state = block.state().load();
        if !state.is_live() {
            return block.section.free.load(Ordering::Relaxed) & block.mask() != 0;
        }
        let are_free = |bitmap: &FrameBitmap| {
            bitmap_words_of(frames).all(|(word, bits)| bitmap.takeable_in(word) & bits == bits)
        };
        self.with_bitmap(block, |bitmap| bitmap.is_some_and(are_free))
    }

    /// Takes one frame of a pageblock. The caller has started a move.
    pub(super) fn take_frame(&self, block: &Block<'_>, at: usize, moves: &mut Moves<'_>) -> bool {
        let part = Part { block: *block, frames: at..at + 1, zone: block.zone(), only_on: None };
        self.take_part(&part, moves)
    }

    /// Takes a part of one pageblock. The caller has started a move.
    fn take_part(&self, part: &Part<'_>, moves: &mut Moves<'_>) -> bool {
        let Part { block, frames, zone, only_on } = part;
        let owned = block.section.claim_all(block.mask()) || self.take_if_all_free(block, moves);
        if !owned {
            let taken = self.take_exactly(part, moves);
            self.show_partial_if_any(block, moves);
            return taken;
        }
        if !self.is_for(block, block.mask(), *zone, *only_on) {
            return false;
        }
        if frames.len() == PAGEBLOCK_FRAMES {
            self.hand_out(block);
        } else {
            self.divide(block, frames.clone(), moves);
            self.show_partial_if_any(block, moves);
        }
        true
    }

    /// Takes the frames of `part` out of a live pageblock, all or none.
    fn take_exactly(&self, part: &Part<'_>, moves: &mut Moves<'_>) -> bool {
        let Part { block, frames, zone, only_on } = part;
        let Some(bitmap) = self.bitmap_of(block, moves) else { return false };
        let words = bitmap_words_of(frames.clone());
        let lost = words.clone().find(|&(word, bits)| !bitmap.take(word, bits));
        let is_right = || block.zone() == *zone && is_on_required_node(block, *only_on);
        if lost.is_none() && is_right() {
            return true;
        }
        let end = lost.map_or(BITMAP_WORDS, |(word, _)| word);
        for (word, bits) in words.take_while(|&(word, _)| word < end) {
            self.put_back_bits(block, word, bits, moves);
        }
        false
    }
}
