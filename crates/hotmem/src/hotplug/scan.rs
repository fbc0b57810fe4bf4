//! Finds which memory of a zone is online and in use, for a kernel that migrates data, balances
//! zones or counts frames.
//!
//! A contiguous zone is one run, which is its span, so its pageblocks need no check. The runs of
//! any other zone are searched for in the words, section by section.

use super::Hotplug;
use super::zone_part::ZonePart;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, mask};
use crate::invariant::OrRecordViolation;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Class, NodeId, ReadCount, Search, SectionPart, Zone};

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Calls `each` with the runs of pageblocks that are online in a zone, the lowest first. A run
    /// contains only these pageblocks and holes that have descriptors, so a scan can read the
    /// descriptors of all its frames without a check.
    ///
    /// [`BootMap::low_end`](super::BootMap::low_end) divides kernel memory into two parts. No run
    /// crosses that boundary. A part that is contiguous is one run.
    ///
    /// Cost: O(1) for each part that is contiguous, otherwise O(sections that have online memory of
    /// the zone).
    pub fn online_runs(&self, node: NodeId, zone: Zone, mut each: impl FnMut(PfnRange)) {
        let Some(node) = self.words().index_of(node) else { return };
        for &part in ZonePart::of(zone) {
            let info = self.zone_part(node, part);
            if info.contiguous {
                each(info.spanned);
            } else if info.online != 0 {
                let class = Class::online(zone);
                let search = self.words().search(node, class);
                let words_read = for_each_run(&search, class, info.spanned, &mut each);
                self.zones.probes.add(words_read.words());
            }
        }
    }

    /// Calls `each` for every online pageblock of `run`, the lowest first, with the number of its
    /// frames that are in use. The numbers are a snapshot. Isolated pageblocks that are drained
    /// count as free. Frames that are no RAM count as free, and frames that hold metadata as used. A
    /// poisoned frame also counts as used, even if it has no owner any more.
    ///
    /// Cost: one load for each section, and two cache lines for each pageblock that is not wholly
    /// free.
    pub fn occupancy(&self, run: PfnRange, mut each: impl FnMut(PfnRange, u64)) {
        for SectionPart { section, blocks } in self.section_parts(run) {
            let free = section.free.load(Ordering::Acquire);
            // Skip holes, which a run may have. Acquire: makes the words visible that were written
            // before the memory came online.
            let online = blocks & section.online.load(Ordering::Acquire);
            for block in section.blocks(online) {
                let used = match block.state().load() {
                    _ if free & block.mask() != 0 => 0,
                    state if state.holds_descriptors() => PAGEBLOCK_FRAMES as u64,
                    _ => {
                        let not_ram = self.frames.call().count_not_ram(section, block.mask());
                        self.frames.call().used_frames(block).saturating_sub(not_ram)
                    }
                };
                each(block.range(), used);
            }
        }
    }
}

/// Calls `each` with the runs of pageblocks of `class` in the sections of `span`. Returns the
/// number of words that it read.
fn for_each_run(
    search: &Search<'_>,
    class: Class,
    span: PfnRange,
    each: &mut impl FnMut(PfnRange),
) -> ReadCount {
    let mut run = PfnRange::EMPTY;
    let sections = span.align_outward(SECTION_FRAMES as u64);
    let (mut words_read, mut from) = (ReadCount::default(), sections.start());
    while from < sections.end()
        && let Some(section) = search.next_counting_reads(from, &mut words_read)
        && sections.overlaps(section.range())
    {
        from = section.end();
        words_read.add(1);
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
                run = PfnRange::new(run.start(), next.end()).or_record_violation().unwrap_or(next);
            }
        }
    }
    if !run.is_empty() {
        each(run);
    }
    words_read
}
