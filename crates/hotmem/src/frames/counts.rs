//! How much there is: slow sums over the words, so that nothing is counted twice and the fast
//! paths count nothing.

use super::Frames;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, bits_of};
use crate::known::Known;
use crate::region::Region;
use crate::section::{ISOLATED, LIVE, OUT, POISON, count};
use crate::sync::Ordering;

/// How much memory is in which state, in frames. A snapshot: exact only while nothing is in
/// flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Announced by a platform.
    pub announced: u64,
    /// Added: mapped, whether online or not.
    pub present: u64,
    /// Handed to the allocator.
    pub online: u64,
    /// Online for movable allocations only.
    pub movable: u64,
    /// Free, and could be allocated now.
    pub free: u64,
    /// Of these, in wholly free pageblocks.
    pub free_whole: u64,
    /// Of these, held by the host.
    pub reported: u64,
    /// Held or flagged by isolation tokens.
    pub isolated: u64,
    /// Of these, out for reporting.
    pub reporting: u64,
    /// Poisoned, online, not isolated, and out of use.
    pub poisoned: u64,
}

impl Counts {
    /// Online, not free, not isolated and not out for poison: in use.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.online.saturating_sub(self.free + self.isolated + self.poisoned)
    }
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.announced += other.announced;
        self.present += other.present;
        self.online += other.online;
        self.movable += other.movable;
        self.free += other.free;
        self.free_whole += other.free_whole;
        self.reported += other.reported;
        self.isolated += other.isolated;
        self.reporting += other.reporting;
        self.poisoned += other.poisoned;
    }
}

impl<P> Frames<P> {
    /// Sums up the whole machine. Context: any. Cost: O(sections), a few ms a TiB of live memory.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        for region in self.regions() {
            if let Some(range) = region.range() {
                all += self.count_region(region, range);
            }
        }
        all
    }

    /// Sums up the pageblocks that have a frame in `range`.
    #[must_use]
    pub fn counts_in(&self, range: PfnRange) -> Counts {
        let mut all = Counts::default();
        for region in self.regions() {
            if let Some(announced) = region.range() {
                all += self.count_region(region, announced.intersection(range));
            }
        }
        all
    }

    fn count_region(&self, region: &Region, range: PfnRange) -> Counts {
        let mut counts = Counts { announced: range.frames(), ..Counts::default() };
        // What a region has not need not lie beside it.
        if range.is_empty() {
            return counts;
        }
        let frames = |word: u64| u64::from(word.count_ones()) * PAGEBLOCK_FRAMES as u64;
        let base = region.pfn_at(0).number();
        let per_section = SECTION_FRAMES as u64;
        let first = range.start().number().saturating_sub(base) / per_section;
        let end = range.end().number().saturating_sub(base).div_ceil(per_section);
        for index in first..end {
            let Some(index) = usize::try_from(index).known() else { break };
            let Some(section) = region.section(index).known() else { break };
            let within = region.mask_of(index, range);
            // Relaxed: a snapshot.
            let load = |word: &crate::sync::AtomicU64| word.load(Ordering::Relaxed) & within;
            let (present, online) = (load(&section.present), load(&section.online));
            if present == 0 {
                continue;
            }
            let free = load(&section.free);
            counts.present += frames(present);
            counts.online += frames(online);
            counts.movable += frames(online & load(&section.movable));
            counts.free += frames(free);
            counts.free_whole += frames(free);
            counts.reported += frames(load(&section.reported));
            counts.isolated += frames(online & load(&section.isolated));
            for bit in bits_of(online & !free) {
                let counter =
                    region.block(index, bit).known().map_or(0, |(_, counter)| counter.load());
                if counter & (LIVE | ISOLATED) == LIVE {
                    counts.free += u64::from(count(counter));
                    if counter & POISON != 0 {
                        let start = region.pfn_at(index * SECTION_FRAMES + bit * PAGEBLOCK_FRAMES);
                        let block = PfnRange::with_len(start, PAGEBLOCK_FRAMES as u64);
                        let out = block.map_or(0, |block| self.out_in(block).count() as u64);
                        counts.poisoned += out;
                    }
                } else if counter & (LIVE | OUT) == OUT {
                    counts.reporting += PAGEBLOCK_FRAMES as u64;
                }
            }
        }
        counts
    }
}
