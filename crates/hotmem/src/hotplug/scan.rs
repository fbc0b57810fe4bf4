//! Scans of a zone: what looks for something to move, to balance or to count.
//!
//! A contiguous zone is one run, known in O(1), and nobody asks of any pageblock of it whether it
//! is there; the runs of another are looked for in the words, section by section.

use super::Hotplug;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, bits_of, mask};
use crate::known::Known;
use crate::platform::Platform;
use crate::region::{Class, NodeId, Region, Zone};
use crate::section::{ALL, KEPT, LIVE, count};
use crate::sync::Ordering;

impl<P: Platform> Hotplug<'_, P> {
    /// Calls `each` with the runs of pageblocks that are online in a zone, from the lowest of each
    /// region up. Nothing else lies in a run, so that a scan of its frames needs no checks.
    ///
    /// Cost: O(1) if the zone is contiguous, otherwise O(sections that have some of it).
    pub fn online_runs(&self, node: NodeId, zone: Zone, mut each: impl FnMut(PfnRange)) {
        let info = self.zone(node, zone);
        if info.is_contiguous() {
            return each(info.spanned);
        }
        for region in self.frames.regions() {
            if region.range().is_some() && region.node() == node {
                let words = runs_of_region(region, Class::online(zone), &mut each);
                self.zones.probes.add(words);
            }
        }
    }

    /// Calls `each` with every pageblock of a run that is online and with the frames in use there,
    /// lowest first. A snapshot; what a token has drained counts as free, what is out for poison
    /// and the engine's own as used.
    ///
    /// Cost: a load a section, and one for each pageblock that is not wholly free.
    pub fn occupancy(&self, run: PfnRange, mut each: impl FnMut(PfnRange, u64)) {
        for region in self.frames.regions() {
            let Some(part) = region.range().map(|range| range.intersection(run)) else { continue };
            for (_, index, blocks) in self.frames.words_of(part).filter(|_| !part.is_empty()) {
                let Some(section) = region.section(index) else { continue };
                let free = section.free.load(Ordering::Acquire);
                for bit in bits_of(blocks) {
                    let used = if free >> bit & 1 == 0 { used_in(region, index, bit) } else { 0 };
                    each(pageblocks(region, index, bit, 1), used);
                }
            }
        }
    }

    /// The pageblock of a zone that is cheapest to vacate: the lowest of those in which something
    /// is in use, and least, but for those that hold descriptors. What a compactor moves first.
    ///
    /// Cost: one scan of the zone.
    #[must_use]
    pub fn sparsest(&self, node: NodeId, zone: Zone) -> Option<(PfnRange, u64)> {
        let mut best: Option<(PfnRange, u64)> = None;
        self.online_runs(node, zone, |run| {
            self.occupancy(run, |block, used| {
                let key = (used, block.start());
                let wanted = used != 0 && best.is_none_or(|(r, least)| key < (least, r.start()));
                if wanted && self.frames.kept_in(block) == 0 {
                    best = Some((block, used));
                }
            });
        });
        best
    }
}

/// Calls `each` with the runs of a region. Returns the words that it looked at.
fn runs_of_region(region: &Region, class: Class, each: &mut impl FnMut(PfnRange)) -> u64 {
    let mut run = PfnRange::EMPTY;
    let (mut words, mut from) = (0, 0);
    while let Some(index) = region.tree(class).next_counted(from, &mut words) {
        from = index + 1;
        words += 1;
        let mut blocks =
            region.section(index).known().map_or(0, |section| section.available(class));
        while blocks != 0 {
            let first = blocks.trailing_zeros() as usize;
            let len = (blocks >> first).trailing_ones() as usize;
            blocks &= !(mask(len) << first);
            let next = pageblocks(region, index, first, len);
            if run.is_empty() || run.end() != next.start() {
                if !run.is_empty() {
                    each(run);
                }
                run = next;
            } else {
                run = PfnRange::new(run.start(), next.end()).known().unwrap_or(next);
            }
        }
    }
    if !run.is_empty() {
        each(run);
    }
    words
}

/// `len` pageblocks from number `bit` of section `index` on.
fn pageblocks(region: &Region, index: usize, bit: usize, len: usize) -> PfnRange {
    let start = region.pfn_at((index * SECTION_PAGEBLOCKS + bit) * PAGEBLOCK_FRAMES);
    PfnRange::with_len(start, (len * PAGEBLOCK_FRAMES) as u64).known().unwrap_or(PfnRange::EMPTY)
}

/// Frames in use in a pageblock that is not wholly free.
fn used_in(region: &Region, index: usize, bit: usize) -> u64 {
    match region.block(index, bit).known().map_or(0, |(_, counter)| counter.load()) {
        live if live & LIVE != 0 => u64::from(ALL - count(live)),
        kept if kept & KEPT != 0 => PAGEBLOCK_FRAMES as u64,
        _ => 0,
    }
}
