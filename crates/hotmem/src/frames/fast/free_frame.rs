//! Frees one frame: the fast path.
//!
//! Usually, one compare-exchange sets the frame's bit. If no frame of the word was free before, or
//! if all its frames are free afterwards, the free must also check whether the frame can be found:
//! see `frames/free/findable.rs`.

use crate::addr::Pfn;
use crate::frames::Frames;
use crate::frames::cpu_record::Cpu;
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::mutant;
use crate::words::{FreedBits, Section, WordPtr, hint_at};

/// Whether a fast path has freed a frame or a pageblock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::frames) enum FreeOutcome {
    Freed,
    /// Yes, and all frames of the frame's word are free now: the caller must call
    /// `complete_last_free`.
    FreedLast,
    /// No, and nothing has changed.
    NotFreed,
}

impl<P: Platform> Frames<P> {
    /// Frees one frame, if one step suffices. Makes no function call except tail calls, so that it
    /// need not save registers.
    #[inline(never)]
    pub(in crate::frames) fn free_frame(&self, frame: Pfn) -> FreeOutcome {
        let cpu = self.cpu_inlined();
        let freed = match cpu.last_freed.free(frame, &cpu.last_change) {
            Some(freed) => freed,
            None => {
                let Some((section, block)) = self.words.section_words_at(frame) else {
                    return FreeOutcome::NotFreed;
                };
                let (index, bit) = bit_of(frame);
                let Some(word) = section.bitmaps.lasting_word(block, index) else {
                    return FreeOutcome::NotFreed;
                };
                let Some(freed) = word.plan_free(bit, &cpu.last_change) else {
                    return FreeOutcome::NotFreed;
                };
                if !freed.was_partial() {
                    return self.free_into_exhausted(cpu, section, word, frame);
                }
                cpu.last_freed.point_to(word);
                if !word.free(freed, &cpu.last_change) {
                    return FreeOutcome::NotFreed;
                }
                freed
            }
        };
        if is_complete(cpu, freed, frame) {
            FreeOutcome::Freed
        } else {
            self.finish_last_free(frame, freed)
        }
    }

    /// Finishes the free of `frame`, after which all frames of its word are free. The free is complete if
    /// the pageblock is this CPU's hint in its node, and so stays divided, and has no lent frame.
    #[inline(never)]
    fn finish_last_free(&self, frame: Pfn, freed: FreedBits) -> FreeOutcome {
        if !freed.is_lent() && self.is_node_hint_for_frames(frame, freed.zone()) {
            FreeOutcome::Freed
        } else {
            FreeOutcome::FreedLast
        }
    }

    /// Frees one frame of a word which has no free frame, or which has flags.
    ///
    /// If frames are freed in random order, almost every free takes this path. So it moves the
    /// CPU's cursor to the word without a function call.
    #[inline(never)]
    fn free_into_exhausted(
        &self,
        cpu: &Cpu,
        section: &Section,
        word: WordPtr,
        frame: Pfn,
    ) -> FreeOutcome {
        let Some(freed) = word.plan_free(bit_of(frame).1, &cpu.last_change) else {
            return FreeOutcome::NotFreed;
        };
        if !freed.was_exhausted_unflagged() || !cpu.is_listed() {
            return self.free_in_general(frame);
        }
        cpu.start_hiding_step();
        if !word.free(freed, &cpu.last_change) {
            cpu.end_hiding_step();
            return self.free_in_general(frame);
        }
        let cursor = cpu.cursor(freed.zone());
        if cursor.points_to(word) && !self.may_have_low_hint() {
            cpu.end_hiding_step();
            FreeOutcome::Freed
        } else if self.may_follow(cpu, section, frame, freed.zone()) {
            let former = cursor.swap(Some(word));
            mutant!("a cursor that follows a free clears no hint in low memory" => { cpu.end_hiding_step(); return FreeOutcome::Freed });
            if former.is_none() && !self.may_have_low_hint() {
                cpu.end_hiding_step();
                FreeOutcome::Freed
            } else {
                self.finish_cursor_move(cpu, frame, former)
            }
        } else if section.is_partial(frame) {
            cpu.end_hiding_step();
            FreeOutcome::Freed
        } else {
            self.make_freed_findable(cpu, frame)
        }
    }

    /// Makes the word `former`, which the cursor has left, findable, and tells other CPUs of `frame`,
    /// to which the cursor leads now. Ends the hiding step that the caller has counted.
    #[cold]
    fn finish_cursor_move(&self, cpu: &Cpu, frame: Pfn, former: Option<Pfn>) -> FreeOutcome {
        let call = self.call_that_hides(cpu);
        if let Some(former) = former {
            call.make_former_word_findable(former);
        }
        if let Some(block) = self.words.block_of(frame) {
            call.note_free_memory_in(block.section(), block.zone());
        }
        FreeOutcome::Freed
    }

    /// Makes a frame that the caller has freed findable. Ends the hiding step that the caller has
    /// counted.
    #[inline(never)]
    fn make_freed_findable(&self, cpu: &Cpu, frame: Pfn) -> FreeOutcome {
        let call = self.call_that_hides(cpu);
        if let Some(block) = self.words.block_of(frame).or_record_violation() {
            call.make_word_findable(block, bit_of(frame).0);
        }
        FreeOutcome::Freed
    }

    /// Frees one frame of a lasting bitmap in the general way.
    #[inline(never)]
    fn free_in_general(&self, frame: Pfn) -> FreeOutcome {
        if self.call().free_word(frame, bit_of(frame).1) {
            FreeOutcome::Freed
        } else {
            FreeOutcome::NotFreed
        }
    }

    /// Completes a free of `frame` after which all frames of its word are free. The word has no
    /// flags.
    #[inline(never)]
    pub(in crate::frames) fn complete_last_free(&self, frame: Pfn) {
        // A caller of the fast path for other languages may name any frame.
        if let Some(block) = self.words.block_of(frame)
            && let Some(bitmap) = block.lasting_bitmap()
        {
            let (word, bit) = bit_of(frame);
            let call = self.call();
            call.complete_bitmap_free(block, bitmap, word, FreedBits::last_in_word(bit));
        }
    }
}

/// Returns whether the free of `frame` is complete. If not, the caller must call
/// `complete_last_free`.
#[inline(always)]
pub(crate) fn is_complete(cpu: &Cpu, freed: FreedBits, frame: Pfn) -> bool {
    // Usually, this CPU allocates from the pageblock itself, and the pageblock stays divided.
    !freed.is_all_free() || (!freed.is_lent() && cpu.has_frame_hint(hint_at(frame)))
}

/// Returns the number of the frame's word in the bitmap of its pageblock, and the frame's bit there.
pub(super) fn bit_of(frame: Pfn) -> (usize, u64) {
    #[allow(clippy::cast_possible_truncation, reason = "below 512")]
    let offset = (frame.number() % PAGEBLOCK_FRAMES as u64) as usize;
    (offset / BITMAP_WORD_BITS, 1 << (offset % BITMAP_WORD_BITS))
}
