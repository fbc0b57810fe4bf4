//! Counts the holes of boot memory: pageblocks without RAM in sections that have boot memory.
//!
//! A kernel's descriptors cover whole sections, so a scan may read the descriptors of a hole. Boot
//! marks the pageblocks that are holes. If memory is announced or added in a marked pageblock, the
//! engine clears the mark permanently. Memory that is absent or offline, device memory, and memory
//! of other nodes and other zones are not holes.
//!
//! Zone statistics divide a node's memory into parts. For each part, the engine counts the marked
//! pageblocks of all sections in which some memory of that part is online, in any announced range.
//! Each of these sections, except the first and the last, lies wholly within the part's span. So
//! the number of holes within the span is this count minus the marked pageblocks that lie outside
//! the span, in the first and the last section.

use super::Hotplug;
use super::zone_counts::PartRecord;
use super::zone_part::ZonePart;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_MASK};
use crate::invariant::OrViolation;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::{Class, NodeIndex, SectionPart, SectionRef, Zone};

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Counts the holes of each section of `range` for each zone that had no memory online in the
    /// section before. `range` has just come online.
    pub(super) fn holes_online(&mut self, range: PfnRange) {
        self.count_holes(range, false);
    }

    /// Counts the holes of each section of `range` for each zone that has memory online in the
    /// section. All boot memory of `range` has just come online.
    #[cfg(not(loom))]
    pub(super) fn holes_at_boot(&mut self, range: PfnRange) {
        self.count_holes(range, true);
    }

    /// Counts the holes of each section of `range` for the zones that a part of the section is online
    /// in. If `again` is false, skips the zones that a part of the section was online in before
    /// `range` came online.
    #[inline(never)]
    fn count_holes(&mut self, range: PfnRange, again: bool) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for section in sections(range) {
            let Some(marks) = self.marks(section) else { continue };
            for zone in Zone::ALL {
                let before = self.has_online(section, range, marks.node(self.words()), zone);
                let now = self.has_online(section, PfnRange::EMPTY, marks.node(self.words()), zone);
                if now && (again || !before) {
                    let holes = hole_frames_in(marks, SECTION_MASK);
                    self.change_count(marks, zone, holes.cast_signed());
                }
            }
        }
    }

    /// Subtracts the holes of each section of `range` from the count of each zone that had memory
    /// of `range` online in the section, and has none online there now. `range` has just gone
    /// offline, and its `movable` bits still name its zones.
    pub(super) fn holes_offline(&mut self, range: PfnRange) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for section in sections(range) {
            let Some(marks) = self.marks(section) else { continue };
            for zone in Zone::ALL {
                let node = marks.node(self.words());
                let mut removed_parts = self.words().section_parts(section.intersection(range));
                let was_online = removed_parts.any(|SectionPart { section, blocks }| {
                    section.node(self.words()) == node && blocks & section.zone_mask(zone) != 0
                });
                if was_online && !self.has_online(section, PfnRange::EMPTY, node, zone) {
                    let holes = hole_frames_in(marks, SECTION_MASK);
                    self.change_count(marks, zone, -holes.cast_signed());
                }
            }
        }
    }

    /// Clears the marks of holes in `range`. `range` is being announced or added, so no part of it
    /// is a hole any more.
    pub(super) fn clear_hole_marks(&mut self, range: PfnRange) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for section in sections(range) {
            let Some(marks) = self.marks(section) else { continue };
            let blocks = marks.mask_of(range);
            let filled = hole_frames_in(marks, blocks);
            marks.blocks(blocks).for_each(|block| block.state().clear_hole_mark());
            for zone in Zone::ALL {
                if self.has_online(section, PfnRange::EMPTY, marks.node(self.words()), zone) {
                    self.change_count(marks, zone, -filled.cast_signed());
                }
            }
        }
    }

    /// Returns the number of frames of holes within `spanned`, the span of a part of a node's
    /// memory. `counted` is the number of frames of all holes that are counted for the part.
    /// Returns 0 if the kernel does not describe holes.
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
            let marks = self.marks(section).filter(|marks| marks.node(self.words()) == node)?;
            Some(hole_frames_in(marks, marks.mask_of(outside)))
        });
        self.zones.probes.add(2);
        counted.saturating_sub(outside.sum())
    }

    /// Returns the words of a section, which have the marks of its holes.
    fn marks(&self, section: PfnRange) -> Option<SectionRef<'f>> {
        self.words().section_of(section.start())
    }

    /// Returns whether a pageblock of `section` that is not in `excluded` is online in a zone of a
    /// node. Several announced ranges may share the section, so this looks at each.
    fn has_online(
        &self,
        section: PfnRange,
        excluded: PfnRange,
        node: NodeIndex,
        zone: Zone,
    ) -> bool {
        self.words().section_parts(section).any(|SectionPart { section, .. }| {
            let online = section.available(Class::online(zone));
            section.node(self.words()) == node && online & !section.mask_of(excluded) != 0
        })
    }

    /// Adds `frames` to the count of holes of one part of the memory of the section's node: the part
    /// that memory of `zone` in `section` belongs to.
    #[inline(never)]
    fn change_count(&self, section: SectionRef<'_>, zone: Zone, frames: i64) {
        let part = ZonePart::at(zone, section.start(), self.zones.low_end());
        PartRecord::change(self.words(), section.node(self.words()), part, |record| {
            let counted = record.hole_pageblock_frames.checked_add_signed(frames);
            record.hole_pageblock_frames = counted.or_violation().unwrap_or(0);
        });
    }
}

/// Returns the sections that `range` overlaps, each as the range of the whole section.
fn sections(range: PfnRange) -> impl Iterator<Item = PfnRange> {
    range.align_outward(SECTION_FRAMES as u64).chunks(SECTION_FRAMES as u64)
}

/// Returns the number of frames of those pageblocks of `blocks` that are marked as holes.
#[inline(never)]
fn hole_frames_in(section: SectionRef<'_>, blocks: u64) -> u64 {
    let holes = section.blocks(blocks).filter(|block| block.state().load().is_hole());
    holes.count() as u64 * PAGEBLOCK_FRAMES as u64
}
