//! Holes of boot memory: pageblocks without RAM in sections that have boot memory.
//!
//! A kernel's descriptors cover whole sections, so that a scan may read those of a hole. Boot marks
//! these pageblocks; a mark is cleared for good once something is announced, added or attached
//! there. Absent and offline hotplugged pageblocks, device memory, other nodes and zones are no
//! holes.
//!
//! For each part of a node's memory, the marked pageblocks are counted of all sections in which
//! some of it is online. All these sections but the first and the last lie within its span, so that
//! the holes within the span are this count less what lies outside in these two.

use super::Hotplug;
use super::zone_part::ZonePart;
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_MASK};
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::{Class, Part, SectionRef, Zone};

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Says whether the kernel's descriptors cover the holes of each section (128 MiB) that has
    /// boot memory: if so, these do not end contiguity. They do unless this is called.
    ///
    /// Cost: O(1).
    pub fn set_holes_described(&mut self, described: bool) {
        self.zones.set_holes_described(described);
    }

    /// `range` has just come online: its sections' holes count for what was not online there.
    pub(super) fn holes_online(&mut self, range: PfnRange) {
        self.count_holes(range, |before, now| before == 0 && now != 0);
    }

    /// All of a part of boot memory has just come online.
    #[cfg(not(loom))]
    pub(super) fn holes_at_boot(&mut self, range: PfnRange) {
        self.count_holes(range, |_, now| now != 0);
    }

    fn count_holes(&mut self, range: PfnRange, counts: impl Fn(u64, u64) -> bool) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for Part { section, blocks } in self.parts(range) {
            for zone in Zone::ALL {
                let now = section.available(Class::online(zone));
                if counts(now & !blocks, now) {
                    *self.holes_of(section, zone) += frames_in(section, SECTION_MASK);
                }
            }
        }
    }

    /// `range` has just gone offline, and was online in the zones that its `movable` bits still
    /// name.
    pub(super) fn holes_offline(&mut self, range: PfnRange) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for Part { section, blocks } in self.parts(range) {
            for zone in Zone::ALL {
                let now = section.available(Class::online(zone));
                if now == 0 && blocks & section.zone_mask(zone) != 0 {
                    *self.holes_of(section, zone) -= frames_in(section, SECTION_MASK);
                }
            }
        }
    }

    /// Memory may come to `range`, or comes there: no part of it is a hole any more.
    pub(super) fn fill_holes(&mut self, range: PfnRange) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        let words = self.words();
        for boot in words.announced().filter(|announced| announced.fixed) {
            let sections = range.align_outward(SECTION_FRAMES as u64).intersection(boot.range);
            for Part { section, .. } in words.parts(sections) {
                let blocks = section.mask_of(range);
                let filled = frames_in(section, blocks);
                if filled == 0 {
                    continue;
                }
                section.blocks(blocks).for_each(|block| block.counter.fill_hole());
                for zone in Zone::ALL {
                    if section.available(Class::online(zone)) != 0 {
                        *self.holes_of(section, zone) -= filled;
                    }
                }
            }
        }
    }

    /// Returns the frames of described holes within `spanned`, of the `counted` ones.
    pub(super) fn holes_within(&self, spanned: PfnRange, counted: u64) -> u64 {
        if counted == 0 || !self.zones.are_holes_described() {
            return 0;
        }
        let sections = spanned.align_outward(SECTION_FRAMES as u64);
        let below = sections.split_at(spanned.start()).0;
        let above = sections.split_at(spanned.end()).1;
        let last = spanned.end().number().checked_sub(1).and_then(Pfn::new);
        let edges = [(Some(spanned.start()), below), (last, above)];
        let outside = edges.into_iter().filter_map(|(frame, outside)| {
            let section = self.words().section_of(frame?)?;
            Some(frames_in(section, section.mask_of(outside)))
        });
        self.zones.probes.add(2);
        counted.saturating_sub(outside.sum())
    }

    /// The count of holes that a section's belong to.
    fn holes_of(&mut self, section: SectionRef<'_>, zone: Zone) -> &mut u64 {
        let part = ZonePart::at(zone, section.start(), self.zones.low_end());
        self.zones.holes_of(section.node(), part)
    }
}

/// Frames of holes among `blocks` of a section.
fn frames_in(section: SectionRef<'_>, blocks: u64) -> u64 {
    let holes = section.blocks(blocks).filter(|block| block.counter.load().is_hole());
    holes.count() as u64 * PAGEBLOCK_FRAMES as u64
}
