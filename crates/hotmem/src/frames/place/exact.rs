//! Allocates the frames at an exact place.

use crate::addr::{Pfn, PfnRange};
use crate::frames::CallContext;
use crate::frames::suitable::{ZoneAndNode, is_on_required_node};
use crate::frames::{AllocError, AllocRequest, Frames};
use crate::geometry::{BITMAP_WORDS, PAGEBLOCK_FRAMES};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::words::{Block, FrameBitmap, Zeroed, bitmap_words_of};
use core::ops::Range;

/// A part of one pageblock.
struct BlockPart<'a> {
    block: Block<'a>,
    frames: Range<usize>,
    /// The zone that the pageblock had when this value was made, and the node that it must be on.
    wanted: ZoneAndNode,
}

impl<P: Platform> Frames<P> {
    /// Allocates the `request.frames` frames from `start` on, pageblock by pageblock. If those of a
    /// pageblock are not free, frees those below it again. Like every allocation, the frames must
    /// lie within one region. Also returns whether all whole pageblocks among them are known to be zero.
    pub(in crate::frames) fn alloc_at(
        &self,
        start: Pfn,
        request: &AllocRequest,
    ) -> Result<(PfnRange, bool), AllocError> {
        let range = PfnRange::with_len(start, request.frames)
            .or_record_violation()
            .ok_or(AllocError::OutOfMemory)?;
        if !self.words.covers(range) {
            return Err(AllocError::NotFree(range));
        }
        let block_ranges = || range.chunks(PAGEBLOCK_FRAMES as u64);
        let call = self.call();
        // Check all pageblocks first, so that a failed request divides no pageblock.
        let refused = block_ranges().find(|&block_range| {
            let part = call.part(block_range, request);
            !part.is_some_and(|part| call.looks_free(part.block, part.frames))
        });
        if let Some(refused) = refused {
            return Err(AllocError::NotFree(refused));
        }
        // Count a hiding step: if a later pageblock is not free, the frames taken before it are
        // freed again, and searches cannot find them until then.
        call.start_hiding();
        let mut is_zero = true;
        for block_range in block_ranges() {
            let part = call.part(block_range, request);
            let Some(part_is_zero) = part.and_then(|part| call.take_part(&part)) else {
                let taken = range.split_at(block_range.start()).0;
                if !taken.is_empty() {
                    // This call has just allocated these frames, so freeing them cannot fail.
                    self.free_range(taken).or_record_violation();
                }
                return Err(AllocError::NotFree(block_range));
            };
            is_zero &= part_is_zero;
        }
        Ok((range, is_zero))
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Returns the part of a pageblock that `block_range` covers, if its zone, its node and its
    /// kind of memory suit the request.
    fn part(&self, block_range: PfnRange, request: &AllocRequest) -> Option<BlockPart<'_>> {
        let block = self.words().block_of(block_range.start())?;
        let first = usize::try_from(block_range.start().number() - block.start().number()).ok()?;
        let frames = first..first + usize::try_from(block_range.frames()).ok()?;
        let wanted = ZoneAndNode::new(block.zone(), request);
        let is_suitable = request.zones().contains(&wanted.zone)
            && is_on_required_node(self.words(), block, wanted.required_node)
            && (!request.boot_only || block.is_boot(self.words()));
        is_suitable.then_some(BlockPart { block, frames, wanted })
    }

    /// Returns whether `frames` of a pageblock are free at this moment.
    fn looks_free(&self, block: Block<'_>, frames: Range<usize>) -> bool {
        if block.live_state().is_none() {
            return block.is_free();
        }
        let are_free = |bitmap: &FrameBitmap| {
            bitmap_words_of(frames).all(|(word, bits)| bitmap.takeable_in(word) & bits == bits)
        };
        self.with_bitmap(block, |bitmap| bitmap.is_some_and(are_free))
    }

    /// Takes one frame of a pageblock. The caller must have started a hiding step.
    pub(in crate::frames) fn take_frame(&self, block: Block<'_>, frame: usize) -> bool {
        let wanted = ZoneAndNode { zone: block.zone(), required_node: None };
        self.take_part(&BlockPart { block, frames: frame..frame + 1, wanted }).is_some()
    }

    /// Takes a part of one pageblock. Returns `None` if it cannot be taken, and false if it is a whole
    /// pageblock that is not known to be zero; a smaller part has the marks of its words. The caller must
    /// have started a hiding step.
    fn take_part(&self, part: &BlockPart<'_>) -> Option<bool> {
        let BlockPart { block, frames, wanted } = part;
        let claimed = self
            .claim_all(block.section(), block.mask())
            .or_else(|| self.take_if_all_free(*block).then_some(Zeroed::NONE));
        let Some(zeroed) = claimed else {
            let is_taken = self.take_exactly(part);
            self.set_partial_if_takeable(*block);
            return is_taken.then_some(frames.len() < PAGEBLOCK_FRAMES);
        };
        if !self.suits_or_put_back(*block, block.mask(), zeroed, *wanted) {
            return None;
        }
        let is_zero = zeroed.has_all(block.mask());
        if frames.len() == PAGEBLOCK_FRAMES {
            self.hand_out(*block);
            return Some(is_zero);
        }
        self.divide(*block, frames.clone(), is_zero);
        self.set_partial_if_takeable(*block);
        Some(true)
    }

    /// Takes the frames of `part` out of a live pageblock, all or none.
    fn take_exactly(&self, part: &BlockPart<'_>) -> bool {
        let BlockPart { block, frames, wanted } = part;
        let Some(bitmap) = self.bitmap_of(*block) else { return false };
        let words = bitmap_words_of(frames.clone());
        let first_refused = words.clone().find(|&(word, bits)| !bitmap.take(word, bits));
        if first_refused.is_none() && wanted.has(self.words(), *block, block.mask()) {
            return true;
        }
        let end = first_refused.map_or(BITMAP_WORDS, |(word, _)| word);
        for (word, bits) in words.take_while(|&(word, _)| word < end) {
            self.put_back_bits(*block, word, bits);
        }
        false
    }
}
