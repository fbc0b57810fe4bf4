//! Counts frames by state. The counts are computed from the words of all sections: this is slow, but
//! the fast paths need not update any counts. `count/allocated.rs` has a count that costs little to read.

use crate::addr::PfnRange;
use crate::frames::divide::frames_of_bitmaps;
use crate::frames::{CallContext, Frames};
use crate::geometry::{PAGEBLOCK_FRAMES, frames_of_blocks};
use crate::platform::Platform;
use crate::sync::{AtomicU64, Ordering};
use crate::words::SectionPart;

/// The number of frames in each state. A snapshot: exact only while no operation is in flight. Frames
/// of boot memory that are no RAM count as announced, and as nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Frames that a platform has announced.
    pub announced: u64,
    /// Frames that are present: they were added and are mapped, and may be online or offline.
    pub present: u64,
    /// Frames that were given to the allocator.
    pub online: u64,
    /// Online frames that only movable allocations may use.
    pub movable: u64,
    /// Frames that are free and could be allocated now.
    pub free: u64,
    /// Of the free frames, those in wholly free pageblocks.
    pub free_whole: u64,
    /// Frames that were reported to the host, and that are free, or were free when they were isolated.
    pub reported: u64,
    /// Online frames of isolated pageblocks.
    pub isolated: u64,
    /// Of the isolated frames, those that are being reported.
    pub reporting: u64,
    /// Frames that are poisoned, online, not isolated, and quarantined.
    pub poisoned: u64,
    /// Frames in use: they are online, not free, not isolated, and not quarantined.
    pub used: u64,
    /// Of the frames in use, those that hold the engine's words or its records of CPUs, or that the
    /// engine keeps in reserve for words and page tables.
    pub words: u64,
    /// Of the frames in use, those that hold frame bitmaps. They stay in use when all memory is
    /// free again.
    pub bitmaps: u64,
}

impl<P: Platform> Frames<P> {
    /// Counts all frames of the instance. Context: any. Cost: O(sections), two cache lines for each
    /// divided pageblock, and about 2000 loads that find the words.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let call = self.call();
        Counts {
            words: call.count_words(),
            bitmaps: call.count_bitmap_frames(),
            ..call.count_range(PfnRange::ALL)
        }
    }

    /// Does the same as [`count_range`](Self::count_range), for tests.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    #[must_use]
    pub fn counts_in(&self, range: PfnRange) -> Counts {
        self.call().count_range(range)
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Counts the frames that hold frame bitmaps.
    fn count_bitmap_frames(&self) -> u64 {
        let direct_map = self.frames.direct_map();
        let of_section = |section| frames_of_bitmaps(section, direct_map).count() as u64;
        self.words().sections().map(of_section).sum()
    }

    /// Counts the frames of all pageblocks that have a frame in `range`. Leaves `words` and `bitmaps`
    /// 0.
    fn count_range(&self, range: PfnRange) -> Counts {
        let mut counts = Counts::default();
        for announced in self.words().announced() {
            let part = announced.range.intersection(range);
            counts.announced += part.frames();
            self.words().section_parts(part).for_each(|part| self.count_part(part, &mut counts));
        }
        let not_used = counts.free + counts.isolated + counts.poisoned;
        counts.used = counts.online.saturating_sub(not_used);
        counts
    }

    /// Adds the frames of a part of a section to `counts`, except those in use.
    fn count_part(&self, SectionPart { section, blocks }: SectionPart<'_>, counts: &mut Counts) {
        // Relaxed: a snapshot.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed) & blocks;
        let (present, online) = (load(&section.present), load(&section.online));
        if present == 0 {
            return;
        }
        let free = load(&section.free);
        let frames_of = |blocks| frames_of_blocks(blocks) - self.count_not_ram(section, blocks);
        counts.present += frames_of(present);
        counts.online += frames_of(online);
        counts.movable += frames_of(online & load(&section.movable));
        counts.free += frames_of_blocks(free);
        counts.free_whole += frames_of_blocks(free);
        counts.reported += frames_of_blocks(online & load(&section.reported));
        counts.isolated += frames_of(online & load(&section.isolated));
        for block in section.blocks(online & !free) {
            let state = block.state().load();
            if state.is_live() && !state.is_isolated() {
                counts.free += self.count_takeable(block);
                if state.has_poison() {
                    counts.poisoned += self.quarantined_in(block.range()).count() as u64;
                }
            } else if state.is_reporting() {
                counts.reporting += PAGEBLOCK_FRAMES as u64;
            }
        }
    }
}
