//! Keeps searches for runs away from partly free pageblocks without runs.
//!
//! If memory is fragmented, most pageblocks may have free frames, but no two that are neighbours. A
//! search for a run that looked at each of them would take longer the more memory there is, and it
//! would look at the same pageblocks again each time. So a search that finds no two neighbouring
//! free frames in any word of a pageblock's bitmap clears the pageblock's bit in `may_have_runs`,
//! and marks all words of the bitmap. A class of the trees leads searches for runs only to partly free
//! pageblocks whose bit is set, so that they skip the others without a look at each. A free into a
//! marked word clears the mark of the word and sets the bit again.
//!
//! A request for three or more frames still looks at each pageblock that has two neighbouring free
//! frames, because the bit says nothing about longer runs.
//!
//! If a word of a divided pageblock's bitmap has no mark, the bit of the pageblock is set, or a
//! hiding step is in flight:
//!
//! - The search clears the bit before it marks the words. If a word cannot be marked, because a free
//!   has made a run there or because the word is held, the search sets the bit again.
//! - A free clears the mark before it sets the bit, and whoever divides a pageblock sets the bit
//!   before the words are opened. Each sets the bit by a read-modify-write, so that a search which
//!   clears the bit after that sees the word as they have left it.

use crate::frames::CallContext;
use crate::frames::runs::has_only_shorter_runs;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Block, Class, FrameBitmap};

impl<P: Platform> CallContext<'_, P> {
    /// Hides a divided pageblock from searches for runs, unless two neighbouring frames of a word of
    /// its bitmap are free.
    pub(super) fn hide_from_run_searches(&self, block: Block<'_>, bitmap: &FrameBitmap) {
        if !has_only_shorter_runs(bitmap, 2) {
            return;
        }
        self.start_hiding();
        // AcqRel: Acquire pairs with the Release in `show_to_run_searches`, so that this call sees
        // the words as the other call has left them; Release with its Acquire.
        let section = block.section();
        section.may_have_runs.fetch_and(!block.mask(), Ordering::AcqRel);
        let has_no_run = self.while_marking(block, || bitmap.mark_without_runs());
        mutant!("a pageblock in which a run became free stays hidden" => return);
        if !has_no_run {
            self.show_to_run_searches(block);
        }
    }

    /// Lets searches for runs look at a pageblock again. The caller has counted a hiding step, and has
    /// freed frames of the pageblock, or owns the pageblock and will open the words of its bitmap.
    pub(in crate::frames) fn show_to_run_searches(&self, block: Block<'_>) {
        mutant!("a free does not end that a pageblock is hidden" => return);
        // AcqRel: see `hide_from_run_searches`.
        let before = block.section().may_have_runs.fetch_or(block.mask(), Ordering::AcqRel);
        if before & block.mask() == 0 {
            let class = Class::partial_with_runs(block.zone());
            block.section().make_findable(self.words(), class);
        }
    }

    /// Opens the words of a pageblock's bitmap, which the caller holds and has written.
    pub(in crate::frames) fn open_written(&self, block: Block<'_>, bitmap: &FrameBitmap) {
        self.show_to_run_searches(block);
        bitmap.open(block.zone());
    }
}
