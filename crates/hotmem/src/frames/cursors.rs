//! Moves the cursors. A cursor is, for each CPU and zone, the word of a bitmap that the CPU's next
//! single frame comes from.
//!
//! An allocation that finds a frame in a word moves the cursor to that word. A free into a word
//! without free frames also moves the cursor to that word, if the cursor's present word has no free
//! frame left. So frames that are freed in different full pageblocks are used again at once,
//! without a search. If the word that a cursor leaves has free frames, that word is made findable:
//! see [`Cursor`](crate::words::Cursor).

use super::Frames;
use super::cpu::Cpu;
use super::exhaustion::HidingSteps;
use crate::addr::Pfn;
use crate::outlined::Outlined;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant, sequential};
use crate::words::{Block, Cursor, Grain, Hint, Section, WordPtr, Zone, hint_at};

impl<P: Platform> Frames<P> {
    /// Points this CPU's cursor to another word: see [`Cursor::swap`].
    pub(super) fn move_cursor(&self, zone: Zone, to: WordPtr, hiding_steps: &mut HidingSteps<'_>) {
        hiding_steps.start();
        if let Some(former) = hiding_steps.cpu().cursor(zone).swap(Some(to)) {
            self.make_former_word_findable(former, hiding_steps);
        }
    }

    /// Points this CPU's cursor to a word of the pageblock of its hint for single frames, which was
    /// `hint`. The caller owns a frame of the word.
    pub(super) fn move_cursor_within(&self, hint: Hint, zone: Zone, to: WordPtr) {
        let mut hiding_steps = self.new_hiding_steps();
        self.move_cursor(zone, to, &mut hiding_steps);
        if hint <= self.last_low_hint() {
            self.leave_if_cleared(hint, zone, &hiding_steps);
        }
    }

    /// Clears the cursor of this CPU, which was pointed to low memory, if `hint` has been cleared
    /// since. Code that clears the hint then reads the cursor. `SeqCst`: one of the two sees what the
    /// other has done.
    #[cold]
    fn leave_if_cleared(&self, hint: Hint, zone: Zone, hiding_steps: &HidingSteps<'_>) {
        let cpu = hiding_steps.cpu();
        sequential();
        mutant!("a cursor stays in low memory after the hint was cleared" => return);
        if cpu.block(zone, Grain::Frame).load(Ordering::SeqCst) != hint {
            self.forget_cursors(cpu, |block| block.to_hint() == hint, hiding_steps);
        }
    }

    /// Returns whether the cursor of `cpu` should move to the word of `frame`, which the caller has
    /// freed. It should if its present word has no free frame left, and if the node of `frame` is
    /// near, `frame` is not in low memory, and its pageblock is for single frames.
    #[inline(always)]
    pub(super) fn may_follow(&self, cpu: &Cpu, section: &Section, frame: Pfn, zone: Zone) -> bool {
        !cpu.cursor(zone).offers(zone)
            && hint_at(frame) > self.last_low_hint()
            && section.grain_of(frame) == Grain::Frame
            && self.is_near(self.words.node_index_at(frame))
    }

    /// Makes a word findable that a cursor has left. Some frames of the word may be taken.
    #[cold]
    pub(super) fn make_former_word_findable(&self, start: Pfn, hiding_steps: &HidingSteps<'_>) {
        let Some(block) = self.words.block_of(start) else { return };
        let hint = hiding_steps.cpu().block(block.zone(), Grain::Frame).load(Ordering::SeqCst);
        if hint != block.to_hint() {
            self.set_partial_with_path(block);
        }
    }

    /// Clears those cursors of a CPU that point to pageblocks for which `should_clear` holds, and
    /// makes their words findable. The caller must have started a hiding step.
    pub(super) fn forget_cursors(
        &self,
        cpu: &Cpu,
        should_clear: impl Fn(Block<'_>) -> bool,
        hiding_steps: &HidingSteps<'_>,
    ) {
        for cursor in cpu.cursors() {
            if self.block_of_cursor(cursor).is_some_and(&should_clear)
                && let Some(former) = cursor.swap(None)
            {
                self.make_former_word_findable(former, hiding_steps);
            }
        }
    }

    /// Returns the pageblocks of one zone to which the hints and cursors of all CPUs lead. A
    /// pageblock may be returned more than once.
    pub(super) fn blocks_of_hints_and_cursors(
        &self,
        zone: Zone,
    ) -> impl Iterator<Item = Block<'_>> {
        let named = self.cpus_with_records().flat_map(|cpu| {
            let hints = cpu.blocks().map(|hint| hint.load(Ordering::Acquire));
            // Skip a cursor that points into a hint of its CPU, as most cursors do.
            let cursors =
                cpu.cursors().filter_map(|cursor| Some(self.block_of_cursor(cursor)?.to_hint()));
            let cursor_blocks = cursors.filter(move |named| !hints.contains(named));
            hints.into_iter().chain(cursor_blocks)
        });
        let blocks = named.filter_map(|hint| self.words.hinted_block(hint));
        Outlined(blocks.filter(move |block| block.zone() == zone))
    }

    fn block_of_cursor(&self, cursor: &Cursor) -> Option<Block<'_>> {
        self.words.block_of(cursor.word_start()?)
    }

    /// Returns whether a cursor of any CPU points to `word`, which is a word of the bitmap of
    /// `block`.
    pub(super) fn has_cursor_at(&self, block: Block<'_>, word: WordPtr) -> bool {
        self.cpus_with_records().any(|cpu| cpu.cursor(block.zone()).points_to(word))
    }
}
