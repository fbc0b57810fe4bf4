//! Frees isolated memory whose RAM the host has taken, for tests that give memory to a host without
//! a reporter.

use super::Isolation;
use crate::addr::PfnRange;
use crate::blocker::{Blocker, BlockerKind};
use crate::frames::descriptor_pageblocks;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::SectionPart;

impl<'f, P: Platform> Isolation<'f, P> {
    /// Frees the memory and marks it as reported, because the host has taken its RAM. An exit.
    /// Reported memory is allocated last.
    ///
    /// Context: any. Cost: O(pageblocks).
    ///
    /// # Errors
    /// Returns the token, and the frames that are in use or [pinned](BlockerKind::Pinned).
    pub fn mark_reported(self) -> Result<(), (Isolation<'f, P>, Blocker)> {
        if let Some(pinned) = self.first_pinned() {
            return Err((self, BlockerKind::Pinned.at(pinned)));
        }
        if let Some(in_use) = self.in_use() {
            return Err((self, in_use));
        }
        for SectionPart { section, blocks: held } in self.section_parts() {
            let given = held & !descriptor_pageblocks(section);
            // Set the mark before the release publishes the pageblocks: the publish makes the mark
            // visible.
            let before = section.reported.fetch_or(given, Ordering::Relaxed);
            self.frames.wakeup().note_given(given & !before);
            self.frames.call().release_in(section, held);
        }
        Ok(())
    }

    /// Returns the first pageblock that has a pinned frame. No more frames can be pinned while the
    /// token holds the pageblocks.
    fn first_pinned(&self) -> Option<PfnRange> {
        self.section_parts().find_map(|SectionPart { section, blocks: held }| {
            let pinned = held & self.frames.call().pinned_after_mark(section);
            (pinned != 0).then(|| section.first_block(pinned))
        })
    }
}
