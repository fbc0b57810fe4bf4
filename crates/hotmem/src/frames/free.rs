//! Frees any sub-range of allocated frames, from any CPU.
//!
//! One compare-exchange sets the bits of a word, if none of them is set already. Most frees need no
//! more. A free that sets the first or the last bit of a word looks whether the pageblock must be
//! made findable or has become wholly free (see `frames/findable.rs`).

use super::cpu::Cpu;
use super::exhaustion::Moves;
use super::{Frames, FreeError, FreeErrorKind};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES};
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, FrameBitmap, Given, Section, SectionRef, WordPtr, hint_at, words_of};
use core::ops::Range;

const BLOCK: u64 = PAGEBLOCK_FRAMES as u64;

/// Whether a frame or a pageblock was freed by a fast path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Freed {
    Yes,
    /// Yes, and the word of this frame has no other frame in use now.
    Last,
    /// No, and nothing has changed.
    No,
}

impl<P: Platform> Frames<P> {
    /// Frees frames that the caller owns by number. Callers inside the crate keep the promises of
    /// [`free_raw`](Self::free_raw).
    ///
    /// A range is only numbers. The call fails for a range that only another machine has allocated.
    /// If the same frames are allocated here as well, it frees them: no count becomes wrong, but
    /// their owner here has lost them.
    ///
    /// # Errors
    /// [`FreeError`] if a frame of `range` is not allocated, detected before anything is freed. A
    /// double free that races with other frees of the same frames is detected after a part was
    /// freed; one that races with a new use of the pageblock is detected, not undone.
    #[inline(always)]
    pub(crate) fn free_range(&self, range: PfnRange) -> Result<(), FreeError> {
        let freed = match range.frames() {
            1 => self.free_frame(range.start()),
            BLOCK if range.is_pageblock_aligned() => self.free_block(range.start()),
            _ => Freed::No,
        };
        match freed {
            Freed::Yes => {}
            Freed::Last => self.after_last(range.start()),
            Freed::No => return self.free_slowly(range),
        }
        Ok(())
    }

    /// Frees one frame, if that needs no more than setting a bit. It calls nothing, and so saves no
    /// registers.
    #[inline(never)]
    fn free_frame(&self, frame: Pfn) -> Freed {
        let cpu = self.cpu_inlined();
        let given = match cpu.last_freed.give(frame) {
            Some(given) => given,
            None => {
                let Some((section, block)) = self.words.words_at(frame) else { return Freed::No };
                let (word, bit) = bit_of(frame);
                let Some(at) = section.bitmaps.lasting_word(block, word) else { return Freed::No };
                let Some(given) = at.would_give(bit) else { return Freed::No };
                if !given.is_beside_free() {
                    return self.free_into_full(cpu, section, at, frame);
                }
                // The frame is still the caller's.
                cpu.last_freed.set(at);
                if !at.give(given) {
                    return Freed::No;
                }
                given
            }
        };
        // Most often, a last frame is that of a pageblock that this CPU is alone in.
        let stays = !given.fills() || (!given.is_lent() && cpu.keeps(hint_at(frame)));
        if stays { Freed::Yes } else { Freed::Last }
    }

    /// Frees one frame of a word of which no other frame is free, or which has flags.
    ///
    /// Random traffic does nothing else: then the CPU's cursor goes to this word, without a call.
    #[inline(never)]
    fn free_into_full(&self, cpu: &Cpu, section: &Section, at: WordPtr, frame: Pfn) -> Freed {
        let Some(given) = at.would_give(bit_of(frame).1) else { return Freed::No };
        if !given.is_plain_first() || !cpu.is_seen() {
            return self.free_beside_nothing(frame);
        }
        let mut moves = Moves::none_yet(cpu);
        moves.start();
        if !at.give(given) {
            drop(moves);
            return self.free_beside_nothing(frame);
        }
        let cursor = cpu.cursor(given.zone());
        if cursor.names(at) {
            Freed::Yes
        } else if self.may_follow(cpu, section, frame, given.zone()) {
            match cursor.swap(Some(at)) {
                None => Freed::Yes,
                Some(left) => self.retire_left(left, moves),
            }
        } else if section.is_partial(frame) {
            Freed::Yes
        } else {
            self.show_freed(frame, moves)
        }
    }

    /// Makes a word findable that a cursor named, after a free.
    #[cold]
    fn retire_left(&self, left: Pfn, moves: Moves<'_>) -> Freed {
        self.retire_word(left, &moves);
        Freed::Yes
    }

    /// Makes a frame findable that the caller has freed.
    #[inline(never)]
    fn show_freed(&self, frame: Pfn, mut moves: Moves<'_>) -> Freed {
        // Once it is free, its memory may go offline, and its words with it.
        if let Some(block) = self.words.block_of(frame) {
            self.show_word(&block, bit_of(frame).0, &mut moves);
        }
        Freed::Yes
    }

    /// Frees one frame of a lasting bitmap, where that is more than setting a bit.
    #[inline(never)]
    fn free_beside_nothing(&self, frame: Pfn) -> Freed {
        if self.free_word(frame, bit_of(frame).1) { Freed::Yes } else { Freed::No }
    }

    /// Does what is left to do after a free has set the last bit of a word without flags.
    #[inline(never)]
    fn after_last(&self, frame: Pfn) {
        // Once it is free, its memory may go offline, and its words with it.
        if let Some(block) = self.words.block_of(frame)
            && let Some(bitmap) = block.lasting_bitmap()
        {
            let (word, bit) = bit_of(frame);
            let mut moves = self.no_moves_yet();
            self.after_give(&block, bitmap, word, Given::last(bit), &mut moves);
        }
    }

    #[inline(never)]
    fn free_slowly(&self, range: PfnRange) -> Result<(), FreeError> {
        if range.frames() == 1 { self.free_frame_slowly(range) } else { self.free_pieces(range) }
    }

    /// Frees one frame whose word is held, has poison, or lies in an own bitmap.
    fn free_frame_slowly(&self, frame: PfnRange) -> Result<(), FreeError> {
        let Some(block) = self.words.block_of(frame.start()) else {
            return Err(FreeError { range: frame, kind: FreeErrorKind::Foreign });
        };
        let at = offset_of(frame.start());
        self.free_in(&block, at..at + 1, frame)
    }

    fn free_pieces(&self, range: PfnRange) -> Result<(), FreeError> {
        let refused = |range, kind| Err(FreeError { range, kind });
        if range.is_empty() {
            return refused(range, FreeErrorKind::Empty);
        }
        let Some(first) = self.words.block_of(range.start()) else {
            let piece = range.chunks(PAGEBLOCK_FRAMES as u64).next();
            let piece = piece.filter(|_| self.words.covers(range));
            return refused(piece.unwrap_or(range), FreeErrorKind::Foreign);
        };
        if range.frames() == PAGEBLOCK_FRAMES as u64 && range.is_pageblock_aligned() {
            return self.free_pageblock(&first, range);
        }
        if !first.range().covers(range) && !self.words.covers(range) {
            return refused(range, FreeErrorKind::Foreign);
        }
        // The whole range is checked before anything is written.
        self.check_allocated(range)?;
        // Whole pageblocks of a section are published together.
        let mut whole = (first.section, 0);
        let mut moves = self.no_moves_yet();
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            // Allocated frames have words.
            let Some(block) = self.words.block_of(piece.start()).known() else { continue };
            let first = offset_of(piece.start());
            #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
            let frames = first..first + piece.frames() as usize;
            if whole.0 != block.section {
                self.publish_whole(whole, &mut moves);
                whole = (block.section, 0);
            }
            let owned =
                if frames.len() == PAGEBLOCK_FRAMES { block.state().own_whole() } else { None };
            match owned {
                Some(true) => {} // drained: its isolation token owns it now
                Some(false) => whole.1 |= block.mask(),
                None => {
                    // Published first, because the free below may fail and return.
                    self.publish_whole(whole, &mut moves);
                    whole.1 = 0;
                    self.free_in(&block, frames, piece)?;
                }
            }
        }
        self.publish_whole(whole, &mut moves);
        Ok(())
    }

    /// Checks that all of `range` is allocated, as far as reads can tell.
    pub(super) fn check_allocated(&self, range: PfnRange) -> Result<(), FreeError> {
        let refused = |range, kind| Err(FreeError { range, kind });
        if range.is_empty() {
            return refused(range, FreeErrorKind::Empty);
        }
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            let Some(block) = self.words.block_of(piece.start()) else {
                return refused(piece, FreeErrorKind::Foreign);
            };
            let first = block.offset_of(piece.start());
            #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
            let frames = first..first + piece.frames() as usize;
            if !self.is_allocated(&block, frames, piece) {
                return refused(piece, why_refused(&block));
            }
        }
        Ok(())
    }

    /// Frees a whole pageblock by one read-modify-write, and publishes it by another.
    fn free_pageblock(&self, block: &Block<'_>, all: PfnRange) -> Result<(), FreeError> {
        match block.state().own_whole() {
            // The pageblock is divided. All of it is checked before anything is written.
            None => {
                self.check_allocated(all)?;
                return self.free_in(block, 0..PAGEBLOCK_FRAMES, all);
            }
            Some(true) => {} // drained: its isolation token owns it now
            Some(false) => {
                self.show_free(block.section, block.mask(), &mut self.no_moves_yet());
            }
        }
        Ok(())
    }

    fn publish_whole(&self, (section, blocks): (SectionRef<'_>, u64), moves: &mut Moves<'_>) {
        if blocks != 0 {
            self.show_free(section, blocks, moves);
        }
    }

    /// Frees some frames of one pageblock.
    #[inline(never)]
    fn free_in(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> Result<(), FreeError> {
        let state = block.state().load();
        if !state.is_live() {
            return Err(FreeError { range: piece, kind: why_refused(block) });
        }
        if state.has_poison() {
            self.free_marked(block, frames, piece)
        } else {
            self.free_run(block, frames, piece)
        }
    }

    /// Frees some frames of a pageblock that has poisoned frames, which stay out.
    #[cold]
    fn free_marked(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> Result<(), FreeError> {
        let refused = Err(FreeError { range: piece, kind: why_refused(block) });
        let state = block.state().load();
        let is_marked = state.is_live() && state.has_poison();
        // Checked before a poisoned frame is taken out that may still have an owner.
        if !is_marked || !self.is_allocated(block, frames.clone(), piece) {
            return refused;
        }
        let Some(mut runs) = self.without_poison(block, frames) else { return refused };
        runs.try_for_each(|run| self.free_run(block, run, piece))
    }

    /// Frees frames of a live pageblock; none of them was poisoned when the caller checked.
    fn free_run(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> Result<(), FreeError> {
        let refused = |range| Err(FreeError { range, kind: FreeErrorKind::NotAllocated });
        let mut moves = self.no_moves_yet();
        // Without a bitmap, the pageblock was allocated as a whole and is now divided; its last
        // frame may be needed for bitmaps.
        let spare = frames.end - 1;
        let Some((bitmap, lent)) = self.bitmap_or_lend(block, spare, &mut moves) else {
            return refused(piece);
        };
        let frames = if lent { frames.start..spare } else { frames };
        block.note_freed(frames.len());
        let mut state = block.state().load();
        if state.is_whole() {
            let Some(before) = block.state().part() else { return refused(piece) };
            state = before;
        }
        let parted = state.is_whole() || state.is_parted();
        let mut freed = Ok(());
        for (word, bits) in words_of(frames) {
            let part = || part_of(block.start(), word, bits).known().unwrap_or(piece);
            if self.free_bits(block, bitmap, word, bits, &mut moves).is_none() {
                freed = refused(part());
                break;
            }
        }
        if parted {
            self.let_go_of_parts(block, bitmap, &mut moves);
        }
        freed
    }

    /// Frees `bits` of one word of a live pageblock. Returns `None`, and changes nothing, if one of
    /// the frames is free already.
    fn free_bits(
        &self,
        block: &Block<'_>,
        bitmap: &FrameBitmap,
        word: usize,
        bits: u64,
        moves: &mut Moves<'_>,
    ) -> Option<()> {
        let given = bitmap.give_part(word, bits, || moves.start())?;
        if !given.is_beside_free() || given.is_full() {
            self.after_give(block, bitmap, word, given, moves);
        }
        Some(())
    }

    /// Frees `bits` of one word again that the caller has just taken out.
    pub(super) fn put_back_bits(
        &self,
        block: &Block<'_>,
        word: usize,
        bits: u64,
        moves: &mut Moves<'_>,
    ) {
        if let Some(bitmap) = self.bitmap_of(block, moves).known() {
            self.free_bits(block, bitmap, word, bits, moves).known();
        }
    }

    /// Returns whether all these frames are allocated, as far as reads can tell.
    pub(super) fn is_allocated(
        &self,
        block: &Block<'_>,
        frames: Range<usize>,
        piece: PfnRange,
    ) -> bool {
        let state = block.state().load();
        if !state.is_live() || (state.has_poison() && self.out_in(piece).next().is_some()) {
            return false;
        }
        // A pageblock that was allocated as a whole may have no bitmap.
        self.with_bitmap(block, |bitmap| {
            bitmap.is_none_or(|bitmap| {
                words_of(frames).all(|(word, bits)| bitmap.bits_in(word) & bits == 0)
            })
        })
    }
}

/// Returns the number of a frame in its pageblock.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "below 512")]
fn offset_of(frame: Pfn) -> usize {
    (frame.number() % PAGEBLOCK_FRAMES as u64) as usize
}

/// Returns the word of a frame in the bitmap of its pageblock, and the frame's bit there.
#[inline]
fn bit_of(frame: Pfn) -> (usize, u64) {
    let at = offset_of(frame);
    (at / BITMAP_WORD_BITS, 1 << (at % BITMAP_WORD_BITS))
}

/// Returns the reason why frames that are not allocated cannot be freed.
#[cold]
fn why_refused(block: &Block<'_>) -> FreeErrorKind {
    let online = block.section.online.load(Ordering::Relaxed) & block.mask() != 0;
    if online { FreeErrorKind::NotAllocated } else { FreeErrorKind::Foreign }
}

/// Returns the frames that these bits of a bitmap stand for.
fn part_of(start: Pfn, word: usize, bits: u64) -> Option<PfnRange> {
    let first = word * BITMAP_WORD_BITS + bits.trailing_zeros() as usize;
    PfnRange::with_len(start.checked_add(first as u64)?, u64::from(bits.count_ones()))
}
