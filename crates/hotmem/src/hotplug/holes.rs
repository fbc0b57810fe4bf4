//! Counts the holes of boot memory: pageblocks without RAM in sections that have boot memory.
//!
//! A kernel's descriptors cover whole sections, so that a scan may read those of a hole. Boot marks
//! the pageblocks of holes; the engine clears a mark permanently once memory is announced, added or
//! attached there. Memory that is absent or offline, device memory, and memory of other nodes and
//! other zones are not holes.
//!
//! Zone statistics divide a node's memory into parts. For each part, the engine counts the marked
//! pageblocks of all sections in which some memory of that part is online, in any announced range.
//! Each of these sections, except the first and the last, lies wholly within the part's span. So
//! the holes within the span are this count without those marked pageblocks of the first and the
//! last section that lie outside the span.

use super::Hotplug;
use super::zone_counts::PartRecord;
use super::zone_part::ZonePart;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_MASK};
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::{Class, NodeIndex, Part, SectionRef, Zone};

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Counts the holes of the sections of `range`, which has just come online, for each zone that
    /// had no memory online there before.
    pub(super) fn holes_online(&mut self, range: PfnRange) {
        self.count_holes(range, |before, now| !before && now);
    }

    /// Counts the holes of the sections of `range`, where all boot memory has just come online.
    #[cfg(not(loom))]
    pub(super) fn holes_at_boot(&mut self, range: PfnRange) {
        self.count_holes(range, |_, now| now);
    }

    /// Counts the holes of each section of `range` for the zones for which `counts` returns true.
    /// The arguments of `counts` are whether a part of the section was online in the zone before
    /// `range` came online, and whether a part is now.
    fn count_holes(&mut self, range: PfnRange, counts: impl Fn(bool, bool) -> bool) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for section in sections(range) {
            let Some(marks) = self.marks(section) else { continue };
            for zone in Zone::ALL {
                let before = self.has_online(section, range, marks.node(), zone);
                let now = self.has_online(section, PfnRange::EMPTY, marks.node(), zone);
                if counts(before, now) {
                    let holes = frames_in(marks, SECTION_MASK);
                    self.count(marks, zone, |counted| counted + holes);
                }
            }
        }
    }

    /// Takes back the count of holes of the sections of `range`, which has just gone offline. This
    /// is done for the zones that the `movable` bits of `range` name and that have no memory online
    /// there any more.
    pub(super) fn holes_offline(&mut self, range: PfnRange) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for section in sections(range) {
            let Some(marks) = self.marks(section) else { continue };
            for zone in Zone::ALL {
                let node = marks.node();
                let mut gone = self.words().parts(section.intersection(range));
                let was_online = gone.any(|Part { section, blocks }| {
                    section.node() == node && blocks & section.zone_mask(zone) != 0
                });
                if was_online && !self.has_online(section, PfnRange::EMPTY, node, zone) {
                    let holes = frames_in(marks, SECTION_MASK);
                    self.count(marks, zone, |counted| counted - holes);
                }
            }
        }
    }

    /// Clears the marks in `range`, which is being announced, added or attached: no part of it is a
    /// hole any more.
    pub(super) fn clear_hole_marks(&mut self, range: PfnRange) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for section in sections(range) {
            let Some(marks) = self.marks(section) else { continue };
            let blocks = marks.mask_of(range);
            let filled = frames_in(marks, blocks);
            marks.blocks(blocks).for_each(|block| block.state().clear_hole_mark());
            for zone in Zone::ALL {
                if self.has_online(section, PfnRange::EMPTY, marks.node(), zone) {
                    self.count(marks, zone, |counted| counted - filled);
                }
            }
        }
    }

    /// Returns how many frames of the holes of a part of a node's memory lie within its span
    /// `spanned`. `counted` is the count of holes of the part, in frames. Returns 0 if the kernel
    /// does not describe holes.
    pub(super) fn holes_within(&self, spanned: PfnRange, node: NodeIndex, counted: u64) -> u64 {
        if counted == 0 || !self.settings.holes_described {
            return 0;
        }
        let sections = spanned.align_outward(SECTION_FRAMES as u64);
        let below = sections.split_at(spanned.start()).0;
        let above = sections.split_at(spanned.end()).1;
        let outside = [below, above].into_iter().filter(|outside| !outside.is_empty());
        let outside = outside.filter_map(|outside| {
            let section = outside.align_outward(SECTION_FRAMES as u64);
            let marks = self.marks(section).filter(|marks| marks.node() == node)?;
            Some(frames_in(marks, marks.mask_of(outside)))
        });
        self.zones.probes.add(2);
        counted.saturating_sub(outside.sum())
    }

    /// Returns the words that have the marks of a section.
    fn marks(&self, section: PfnRange) -> Option<SectionRef<'f>> {
        self.words().section_of(section.start())
    }

    /// Returns whether a pageblock of `section` that is not in `without` is online in a zone of a
    /// node. Several announced ranges may share the section.
    fn has_online(
        &self,
        section: PfnRange,
        without: PfnRange,
        node: NodeIndex,
        zone: Zone,
    ) -> bool {
        self.words().parts(section).any(|Part { section, .. }| {
            let online = section.available(Class::online(zone));
            section.node() == node && online & !section.mask_of(without) != 0
        })
    }

    /// Changes the count of holes of that part of a node's memory which has the memory of `zone` in
    /// `section`.
    fn count(&self, section: SectionRef<'_>, zone: Zone, change: impl FnOnce(u64) -> u64) {
        let part = ZonePart::at(zone, section.start(), self.zones.low_end());
        PartRecord::change(self.words(), section.node(), part, |record| {
            record.holes_beside = change(record.holes_beside);
        });
    }
}

/// Returns the sections that `range` overlaps, each as a whole.
fn sections(range: PfnRange) -> impl Iterator<Item = PfnRange> {
    range.align_outward(SECTION_FRAMES as u64).sections()
}

/// Returns the number of frames of holes among `blocks` of a section.
fn frames_in(section: SectionRef<'_>, blocks: u64) -> u64 {
    let holes = section.blocks(blocks).filter(|block| block.state().load().is_hole());
    holes.count() as u64 * PAGEBLOCK_FRAMES as u64
}
