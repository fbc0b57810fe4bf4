//! Scans of a zone: what looks for something to move, to balance or to count.
//!
//! A contiguous zone is one run, known in O(1), and nobody asks of any pageblock of it whether it
//! is there; the runs of another are looked for in the words, section by section.

use super::Hotplug;
use super::zone_part::ZonePart;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, mask};
use crate::known::Known;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, Class, NodeId, Part, Search, Zone};

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Calls `each` with the runs of pageblocks that are online in a zone, from the lowest up.
    /// Nothing else lies in a run but described holes, so that a scan of its frames' descriptors
    /// needs no checks. A side that is contiguous is one run.
    ///
    /// Kernel memory is scanned on either side of [`BootMap::low_end`](super::BootMap::low_end),
    /// and no run crosses that boundary.
    ///
    /// Cost: O(1) for each side that is contiguous, otherwise O(sections that have some of it).
    pub fn online_runs(&self, node: NodeId, zone: Zone, mut each: impl FnMut(PfnRange)) {
        let Some(node) = self.words().index_of(node) else { return };
        for &part in ZonePart::of(zone) {
            let info = self.zone_part(node, part);
            if info.is_contiguous() {
                each(info.spanned);
            } else if info.online != 0 {
                let class = Class::online(zone);
                let search = self.words().search(node, class);
                let words = runs_of(search, class, info.spanned, &mut each);
                self.zones.probes.add(words);
            }
        }
    }

    /// Calls `each` with every pageblock of `run` that is online, and with the frames in use there,
    /// lowest first. A snapshot; what a token has drained counts as free, what is out for poison
    /// and the engine's own as used.
    ///
    /// Cost: a load a section, and one for each pageblock that is not wholly free.
    pub fn occupancy(&self, run: PfnRange, mut each: impl FnMut(PfnRange, u64)) {
        for Part { section, blocks } in self.parts(run) {
            let free = section.free.load(Ordering::Acquire);
            // A run may have holes. Acquire: the words that came with being online.
            let online = blocks & section.online.load(Ordering::Acquire);
            for block in section.blocks(online) {
                let used = if free & block.mask() == 0 { used_in(&block) } else { 0 };
                each(block.range(), used);
            }
        }
    }
}

/// Calls `each` with the runs of a class in the sections of `within`. Returns how many words it
/// read.
fn runs_of(
    search: Search<'_>,
    class: Class,
    within: PfnRange,
    each: &mut impl FnMut(PfnRange),
) -> u64 {
    let mut run = PfnRange::EMPTY;
    let sections = within.align_outward(SECTION_FRAMES as u64);
    let (mut words, mut from) = (0, sections.start());
    while from < sections.end()
        && let Some(section) = search.next_counted(from, &mut words)
        && sections.overlaps(section.range())
    {
        from = section.end();
        words += 1;
        let mut blocks = section.available(class);
        while blocks != 0 {
            let first = blocks.trailing_zeros() as usize;
            let len = (blocks >> first).trailing_ones() as usize;
            blocks &= !(mask(len) << first);
            let next = section.pageblocks(first, len);
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

/// Frames in use in a pageblock that is not wholly free.
fn used_in(block: &Block<'_>) -> u64 {
    match block.state.load() {
        live if live.is_live() => live.used_frames() as u64,
        kept if kept.is_kept() => PAGEBLOCK_FRAMES as u64,
        _ => 0,
    }
}
