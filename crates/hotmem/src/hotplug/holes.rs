//! Counts the holes of boot memory: pageblocks without RAM in sections that have boot memory.
//!
//! A kernel's descriptors cover whole sections, so a scan may read the descriptors of a hole. Boot
//! marks the pageblocks that are holes. If memory is announced or added in a marked pageblock, the
//! engine clears the mark. It sets the mark again when the range is withdrawn. Memory that is absent
//! or offline, device memory, and memory of other nodes and other zones are not holes.
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
use crate::invariant::OrRecordViolation;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::words::{Class, NodeIndex, SectionPart, SectionRef, Zone};

/// What has just happened to a range.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Online,
    /// It has gone offline. Its `movable` bits still name its zones.
    Offline,
}

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Counts the holes of each section of `range` for each zone in which memory of the section is
    /// online for the first time, and no longer counts them for each zone in which none is online
    /// any more.
    pub(super) fn count_holes(&mut self, range: PfnRange, change: Change) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for SectionPart { section, blocks } in self.section_parts(range) {
            for zone in Zone::ALL {
                let online = section.available(Class::online(zone));
                let before = match change {
                    Change::Online => online & !blocks,
                    Change::Offline => online | blocks & section.zone_mask(zone),
                };
                let sign = match (before != 0, online != 0) {
                    (false, true) => 1,
                    (true, false) => -1,
                    _ => continue,
                };
                let holes = hole_frames_in(section, SECTION_MASK).cast_signed();
                self.change_count(section, zone, sign * holes);
            }
        }
    }

    /// Clears the marks of holes in `range`. `range` is being announced or added, so no part of it
    /// is a hole any more.
    pub(super) fn clear_hole_marks(&mut self, range: PfnRange) {
        self.change_hole_marks(range, |section, blocks| {
            section.blocks(blocks).for_each(|block| block.state().clear_hole_mark());
        });
    }

    /// Marks the pageblocks of `range` as holes, in sections with boot memory. `range` has just been
    /// withdrawn.
    pub(super) fn set_hole_marks(&mut self, range: PfnRange) {
        let words = self.words();
        self.change_hole_marks(range, |section, blocks| {
            if section.blocks(SECTION_MASK & !blocks).any(|block| block.is_boot(words)) {
                let unused =
                    section.blocks(blocks).filter(|block| block.state().load().is_unused());
                unused.for_each(|block| block.state().set_hole());
            }
        });
    }

    /// Calls `change` for the pageblocks of `range` in each section that may have boot memory, and
    /// counts the holes that this makes or fills.
    fn change_hole_marks(&mut self, range: PfnRange, change: impl Fn(SectionRef<'_>, u64)) {
        if !self.zones.may_have_boot_memory(range) {
            return;
        }
        for SectionPart { section, blocks } in self.section_parts(range) {
            let before = hole_frames_in(section, blocks).cast_signed();
            change(section, blocks);
            let made = hole_frames_in(section, blocks).cast_signed() - before;
            for zone in Zone::ALL {
                if section.available(Class::online(zone)) != 0 {
                    self.change_count(section, zone, made);
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
        let mut within = counted;
        for outside in [sections.split_at(spanned.start()).0, sections.split_at(spanned.end()).1] {
            for SectionPart { section, blocks } in self.section_parts(outside) {
                if section.node(self.words()) == node {
                    within = within.saturating_sub(hole_frames_in(section, blocks));
                }
            }
        }
        self.zones.probes.add(2);
        within
    }

    /// Adds `frames` to the count of holes of one part of the memory of the section's node: the part
    /// that memory of `zone` in `section` belongs to.
    fn change_count(&self, section: SectionRef<'_>, zone: Zone, frames: i64) {
        let part = ZonePart::at(zone, section.start(), self.zones.low_end());
        PartRecord::change(self.words(), section.node(self.words()), part, |record| {
            let counted = record.hole_pageblock_frames.checked_add_signed(frames);
            record.hole_pageblock_frames = counted.or_record_violation().unwrap_or(0);
        });
    }
}

/// Returns the number of frames of those pageblocks of `blocks` that are marked as holes.
#[inline(never)]
fn hole_frames_in(section: SectionRef<'_>, blocks: u64) -> u64 {
    let holes = section.blocks(blocks).filter(|block| block.state().load().is_hole());
    holes.count() as u64 * PAGEBLOCK_FRAMES as u64
}
