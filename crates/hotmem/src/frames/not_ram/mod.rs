//! Records which frames of boot memory are no RAM, in pageblocks that are partly RAM.
//!
//! Such a pageblock is online, and to the allocator the frames that are no RAM are allocated for
//! ever. A bitmap records them, so that they are not counted as memory, and so that nobody is told
//! to write to them. Only sections with such a pageblock have a bitmap. Boot writes it.

mod bitmaps;

pub(super) use bitmaps::NotRamBitmaps;
#[cfg(not(loom))]
pub(crate) use bitmaps::bitmap_frames;

use super::{CallContext, Frames};
use crate::addr::PfnRange;
use crate::words::SectionRef;

impl<P> Frames<P> {
    /// Installs the bitmaps of these sections at `memory`. The sections come in ascending order.
    /// Boot only, single-threaded.
    ///
    /// # Safety
    /// `memory` is aligned to 8 bytes, is large enough for a bitmap of each section, and belongs to
    /// this instance permanently.
    #[cfg(not(loom))]
    pub(crate) unsafe fn install_not_ram(
        &self,
        sections: &mut dyn Iterator<Item = PfnRange>,
        memory: *mut u8,
    ) {
        // SAFETY: the caller has made the same promises.
        unsafe { self.not_ram.install(sections, memory) };
    }
}

impl<P> CallContext<'_, P> {
    /// Records that `range`, which lies in sections with a bitmap, is no RAM. Boot only.
    #[cfg(not(loom))]
    pub(crate) fn record_not_ram(&self, range: PfnRange) {
        self.frames.not_ram.set(range);
    }

    /// Counts the frames of these pageblocks that are no RAM.
    pub(crate) fn count_not_ram(&self, section: SectionRef<'_>, blocks: u64) -> u64 {
        if !self.frames.not_ram.has_section(section.start()) {
            return 0;
        }
        section.blocks(blocks).map(|block| self.frames.not_ram.count(block.range())).sum()
    }

    /// Returns the first run of frames of `range` that are no RAM.
    pub(crate) fn first_not_ram(&self, range: PfnRange) -> Option<PfnRange> {
        self.frames.not_ram.first_run(range)
    }
}
