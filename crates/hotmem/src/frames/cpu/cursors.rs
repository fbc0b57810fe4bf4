//! Moves the cursors. A cursor is, for each CPU and zone, the word of a bitmap that the CPU's next
//! single frame comes from.
//!
//! An allocation that finds a frame in a word moves the cursor to that word. A free into a word
//! without free frames also moves the cursor to that word, if the cursor's present word has no free
//! frame left. So frames that are freed in different full pageblocks are used again at once,
//! without a search. If the word that a cursor leaves has free frames, that word is made findable:
//! see [`Cursor`].

use crate::addr::Pfn;
use crate::frames::CallContext;
use crate::frames::Frames;
use crate::frames::cpu_record::Cpu;
use crate::frames::order::is_node_for;
use crate::outlined::Outlined;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant, sequential};
use crate::words::{
    Block, Cursor, Grain, Hint, NodeIndex, Section, SectionWords, WordPtr, Zone, hint_at,
};

impl<P: Platform> Frames<P> {
    /// Returns whether this CPU should use memory of `node` without a search.
    pub(in crate::frames) fn is_near(&self, node: NodeIndex) -> bool {
        is_node_for(&self.words, node, self.platform.node())
    }

    /// Points this CPU's cursor to a word of the pageblock of its hint for single frames, which was
    /// `hint`. The caller owns a frame of the word.
    pub(in crate::frames) fn move_cursor_within(&self, hint: Hint, zone: Zone, to: WordPtr) {
        let call = self.call();
        call.move_cursor(zone, to);
        if hint <= self.last_low_hint() {
            call.leave_if_cleared(hint, zone);
        }
    }

    /// Returns whether the cursor of `cpu` should move to the word of `frame`, which the caller has
    /// freed. It should if its present word has no free frame left, and if the node of `frame` is
    /// near, `frame` is not in low memory, and its pageblock is for single frames.
    pub(in crate::frames) fn may_follow(
        &self,
        cpu: &Cpu,
        section: &Section,
        frame: Pfn,
        zone: Zone,
    ) -> bool {
        !cpu.cursor(zone).offers(zone)
            && hint_at(frame) > self.last_low_hint()
            && section.grain_of(frame) == Grain::Frame
            && self.is_near(self.words.node_index_at(frame))
    }
}

impl<'f, P: Platform> CallContext<'f, P> {
    /// Points this CPU's cursor to another word: see [`Cursor::swap`].
    fn move_cursor(&self, zone: Zone, to: WordPtr) {
        self.start_hiding();
        if let Some(former) = self.cpu.cursor(zone).swap(Some(to)) {
            self.make_former_word_findable(former);
        }
    }

    /// Clears the cursor of this CPU, which was pointed to low memory, if `hint` has been cleared
    /// since. Code that clears the hint then reads the cursor. `SeqCst`: one of the two sees what the
    /// other has done.
    #[cold]
    fn leave_if_cleared(&self, hint: Hint, zone: Zone) {
        let cpu = self.cpu;
        sequential();
        mutant!("a cursor stays in low memory after the hint was cleared" => return);
        if cpu.block(zone, Grain::Frame).load(Ordering::SeqCst) != hint {
            self.forget_cursors(cpu, |block| block.to_hint() == hint);
        }
    }

    /// Makes a word findable that a cursor has left. Some frames of the word may be taken.
    #[cold]
    pub(in crate::frames) fn make_former_word_findable(&self, start: Pfn) {
        let Some(block) = self.words().block_of(start) else { return };
        let hint = self.cpu.block(block.zone(), Grain::Frame).load(Ordering::SeqCst);
        if hint != block.to_hint() {
            self.set_partial_with_path(block);
        }
    }

    /// Clears those cursors of a CPU that point to pageblocks for which `should_clear` holds, and
    /// makes their words findable. The caller must have started a hiding step.
    pub(super) fn forget_cursors(&self, cpu: &Cpu, should_clear: impl Fn(Block<'_>) -> bool) {
        for cursor in cpu.cursors() {
            if block_of_cursor(self.words(), cursor).is_some_and(&should_clear)
                && let Some(former) = cursor.swap(None)
            {
                self.make_former_word_findable(former);
            }
        }
    }

    /// Returns the pageblocks of one zone to which the hints and cursors of all CPUs lead. A
    /// pageblock may be returned more than once.
    pub(in crate::frames) fn blocks_of_hints_and_cursors(
        &self,
        zone: Zone,
    ) -> impl Iterator<Item = Block<'f>> + use<'f, P> {
        let words = self.words();
        let named = self.frames.cpus_with_records().flat_map(move |cpu| {
            let hints = cpu.blocks().map(|hint| hint.load(Ordering::Acquire));
            // Skip a cursor that points into a hint of its CPU, as most cursors do.
            let cursors =
                cpu.cursors().filter_map(|cursor| Some(block_of_cursor(words, cursor)?.to_hint()));
            let cursor_blocks = cursors.filter(move |named| !hints.contains(named));
            hints.into_iter().chain(cursor_blocks)
        });
        let blocks = named.filter_map(move |hint| words.hinted_block(hint));
        Outlined(blocks.filter(move |block| block.zone() == zone))
    }

    /// Returns whether a cursor of any CPU points to `word`, which is a word of the bitmap of
    /// `block`.
    pub(in crate::frames) fn has_cursor_at(&self, block: Block<'_>, word: WordPtr) -> bool {
        self.frames.cpus_with_records().any(|cpu| cpu.cursor(block.zone()).points_to(word))
    }
}

fn block_of_cursor<'w>(words: &'w SectionWords, cursor: &Cursor) -> Option<Block<'w>> {
    words.block_of(cursor.word_start()?)
}
