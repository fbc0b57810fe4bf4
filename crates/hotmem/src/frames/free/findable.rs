//! Makes free frames findable, and publishes pageblocks that have become wholly free.
//!
//! A search finds the free frames of a pageblock if a hint leads to the pageblock or its `partial`
//! bit is set. It finds the free frames of a word also if a cursor points to the word. Each of
//! these steps may make frames free, or hide free frames:
//!
//! | step | what the caller checks next |
//! |---|---|
//! | a free into a word without free frames | whether a cursor, a hint or `partial` leads there |
//! | a search clears the `partial` bit | whether some frames may be taken |
//! | a hint or a cursor is swapped for another | whether some frames may be taken |
//! | a holder opens the words | both |
//! | an isolation ends | both |
//!
//! All these steps and checks are `SeqCst` accesses, so if two of them cross, at least one sees
//! what the other has done. The same holds for pageblocks that become wholly free: the free after
//! which all frames of a word are free reads all other words and the hint. It takes the pageblock
//! if all its frames are free and its CPU's hint does not lead there.

use crate::frames::CallContext;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant, sequential};
use crate::words::{Block, BlockState, Class, FrameBitmap, FreedBits, Grain, Hint};

impl<P: Platform> CallContext<'_, P> {
    /// Completes a free that has set bits of a word: quarantines poisoned frames, publishes the
    /// pageblock, or makes the word findable.
    #[inline(never)]
    pub(in crate::frames) fn complete_bitmap_free(
        &self,
        block: Block<'_>,
        bitmap: &FrameBitmap,
        word: usize,
        freed: FreedBits,
    ) {
        if freed.cleared_mark() {
            self.show_to_run_searches(block);
        }
        if freed.has_poison() {
            self.quarantine_freed(block, bitmap, word, freed.bits());
        }
        // If the pageblock is isolated, its token looks for free frames itself. If the word is
        // held, the CPU that opens it makes the frames findable.
        if freed.is_isolated() || freed.is_held() {
            return;
        }
        if freed.is_all_free_unflagged() && self.publish_if_all_free(block, bitmap) {
            return;
        }
        if freed.was_exhausted() {
            self.make_word_findable(block, word);
        }
    }

    /// Publishes a pageblock if all its frames are free, unless it is a hint of this CPU, or of its
    /// node for this CPU: otherwise, a CPU that allocates and frees one frame or one run again and
    /// again would divide and publish the pageblock each time. There is an exception. If the
    /// pageblock has the mark that the host was lent some of its frames, it is published even if it
    /// is a hint, because if it had several lenders, only an owner of the pageblock can clear the
    /// mark. Returns false if the pageblock stays divided.
    fn publish_if_all_free(&self, block: Block<'_>, bitmap: &FrameBitmap) -> bool {
        mutant!("a last free leaves the pageblock divided" => return false);
        let is_lent = || block.state().load().is_lent();
        if self.cpu.has_hint(block.to_hint()) && !is_lent() {
            return false;
        }
        bitmap.is_all_free()
            && (!self.frames.is_node_hint(block) || is_lent())
            && self.coalesce(block, bitmap)
    }

    /// Publishes a divided pageblock if all its frames are free. Returns whether it did.
    pub(in crate::frames) fn coalesce(&self, block: Block<'_>, bitmap: &FrameBitmap) -> bool {
        let is_taken = self.take_whole(block, bitmap);
        if is_taken {
            self.publish_coalesced(block);
        }
        is_taken
    }

    /// Takes a divided pageblock if all its frames are free. The caller then owns it.
    fn take_whole(&self, block: Block<'_>, bitmap: &FrameBitmap) -> bool {
        let mut has_hidden = false;
        // Look again after each failed round: another CPU has changed the pageblock.
        while bitmap.is_all_free() && block.state().load().may_be_owned() {
            self.start_hiding();
            match bitmap.hold(block.zone()) {
                Ok(()) if block.state().take_with_held_words() => return true,
                Ok(()) => {
                    bitmap.open(block.zone());
                    has_hidden = true;
                }
                Err(held) => has_hidden |= held,
            }
            mutant!("no second look after a hold was given up" => break);
        }
        if has_hidden {
            self.make_opened_findable(block, bitmap);
        }
        false
    }

    /// Takes a pageblock if it is divided and all its frames are free. The caller then owns it.
    pub(crate) fn take_if_all_free(&self, block: Block<'_>) -> bool {
        let bitmap = self.bitmap_of(block);
        bitmap.is_some_and(|bitmap| self.take_whole(block, bitmap))
    }

    /// Makes a pageblock findable if some of its frames may be taken. The caller must have opened
    /// its words.
    fn make_opened_findable(&self, block: Block<'_>, bitmap: &FrameBitmap) {
        mutant!("a pageblock is not made findable after a hold was given up" => return);
        if bitmap.has_takeable() && !self.leads_to(block) {
            // As soon as the `partial` bit is set, another free may rely on it, although the path
            // to it is not set yet.
            self.start_hiding();
            self.set_partial_with_path(block);
        }
    }

    /// Opens the words of a pageblock that was allocated as a whole and of which the caller has
    /// freed a part. Does nothing if the pageblock is isolated, or if another call opens the words.
    pub(super) fn try_open_partly_freed(&self, block: Block<'_>, bitmap: &FrameBitmap) {
        // Count a hiding step: a search may have read these words already.
        self.start_hiding();
        if let Some(before) = block.state().clear_partly_freed() {
            self.open_partly_freed(block, bitmap, before);
            self.publish_or_make_findable(block, bitmap);
        }
    }

    /// Opens the words of a pageblock that was allocated as a whole and is partly freed.
    pub(crate) fn open_partly_freed(
        &self,
        block: Block<'_>,
        bitmap: &FrameBitmap,
        state: BlockState,
    ) {
        if state.has_poison() {
            // Flag the words now: when the pageblock was marked as poisoned or lent, it may have
            // had no bitmap.
            self.flag_poison(block, bitmap);
        }
        if state.is_lent() {
            bitmap.lend();
        }
        self.open_written(block, bitmap);
    }

    /// Publishes a pageblock if all its frames are free, or makes it findable if only some are. The
    /// caller has opened its words.
    pub(crate) fn publish_or_make_findable(&self, block: Block<'_>, bitmap: &FrameBitmap) {
        if !self.publish_if_all_free(block, bitmap) {
            self.make_opened_findable(block, bitmap);
        }
    }

    /// Makes a word findable. Some of its frames may be taken.
    ///
    /// If the CPU's hint for runs is exhausted, the pageblock becomes that hint: then frees in
    /// random order change neither `partial` nor the tree. For single frames, the cursor has this
    /// effect, so their hint is replaced only if the CPU has none or one in low memory.
    pub(in crate::frames) fn make_word_findable(&self, block: Block<'_>, word: usize) {
        self.lead_to_word(block, word);
        // Not only if a bit was set: hints and cursors of this CPU lead to the word without a change.
        mutant!("no hint in low memory is cleared by a free into a hint above" => return);
        self.note_free_memory_in(block.section(), block.zone());
    }

    fn lead_to_word(&self, block: Block<'_>, word: usize) {
        if self.leads_to(block) {
            return;
        }
        let (zone, grain) = (block.zone(), block.grain());
        let lasting = block.section().words().bitmaps.lasting_word(block.bit(), word);
        if lasting.is_some_and(|word| self.cpu.cursor(zone).points_to(word)) {
            return;
        }
        // As soon as the `partial` bit is set, another free may rely on it, although the path to it
        // is not set yet.
        self.start_hiding();
        let last_low = self.frames.last_low_hint();
        let hint = self.cpu.block(zone, grain).load(Ordering::SeqCst);
        let may_replace = grain == Grain::Run || hint <= last_low;
        if may_replace && self.should_be_hint(block, hint) {
            self.set_block_hint(block, zone, grain);
        } else {
            self.set_partial_with_path(block);
        }
    }

    /// Returns whether `partial` or a hint of this CPU leads to a pageblock. The caller must have
    /// freed frames of the pageblock, or opened its words.
    fn leads_to(&self, block: Block<'_>) -> bool {
        sequential();
        let hint_for = |grain| self.cpu.block(block.zone(), grain).load(Ordering::SeqCst);
        block.section().is_partial(block.start())
            || hint_for(Grain::Frame) == block.to_hint()
            || hint_for(Grain::Run) == block.to_hint()
    }

    /// Returns whether this CPU should make the pageblock its hint: its node is near, and the
    /// present hint is exhausted.
    fn should_be_hint(&self, block: Block<'_>, hint: Hint) -> bool {
        self.frames.is_near(block.node(self.words()))
            && self.frames.words.hinted_block(hint).is_none_or(|hinted| !self.has_takeable(hinted))
    }

    /// Sets the pageblock's `partial` bit and the path to it. If another pageblock of the same zone
    /// in the section has its `partial` bit set, the path exists already (see
    /// [`set_zone`](Self::set_zone)). If the pageblock may have runs, also sets the path for searches
    /// for runs.
    pub(in crate::frames) fn set_partial_with_path(&self, block: Block<'_>) {
        // Release pairs with the Acquire of the search, Acquire with `set_zone`.
        let old = block.section().partial.fetch_or(block.mask(), Ordering::SeqCst);
        let zone = block.zone();
        if old & block.section().zone_mask(zone) == 0 {
            block.section().make_findable(self.words(), Class::partial(zone));
            self.note_free_memory_in(block.section(), zone);
        }
        mutant!("no path for searches for runs is set" => return);
        // Acquire: if this reads an old value, the call that sets the bit also sets the path.
        let may_have_runs =
            block.section().may_have_runs.load(Ordering::Acquire) & block.mask() != 0;
        if old & block.mask() == 0 && may_have_runs {
            block.section().make_findable(self.words(), Class::partial_with_runs(zone));
        }
    }
}
