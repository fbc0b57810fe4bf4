//! Keeps the span of each zone of a node, how much of it is online, and whether it is contiguous.
//!
//! A zone is contiguous if each frame of its span belongs to one of its online pageblocks or to a
//! described hole: *span = frames of its online pageblocks + frames of described holes*. The engine
//! stores all three numbers, so the check costs O(1), however large the zone is and however it
//! grew. Kernel memory is counted in two parts, on either side of the boundary that the platform
//! gives. If pageblocks at the start or the end of a zone's span go offline, the span shrinks. If the
//! zone is contiguous, the new span is the rest of the old one; otherwise, the new end is searched
//! for in the tree, in O(log n). Holes and reserved frames inside an online pageblock count as its
//! frames, because their descriptors exist and mark them as such. `holes.rs` counts the holes that
//! are whole pageblocks. Offline pageblocks, device memory and other zones and nodes never count.

use super::holes::Change;
use super::zone_counts::PartRecord;
use super::zone_part::ZonePart;
use super::{Hotplug, uniform_run};
use crate::addr::PfnRange;
use crate::invariant::OrRecordViolation;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::sync::untracked::AtomicU64;
use crate::words::{Class, Entry, NodeId, NodeIndex, NodeSet, PATH_LEN, SectionPart, Zone};

/// The statistics of a zone of a node, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneInfo {
    /// The range from the zone's first to its last online pageblock.
    pub spanned: PfnRange,
    /// Frames of the zone's online pageblocks, including their holes: a scan may read the
    /// descriptors of all of them.
    pub online: u64,
    /// Frames of whole pageblocks within the span that are not RAM and have descriptors. These are
    /// holes of sections with boot memory, and they count only if the kernel
    /// [says](super::Settings::holes_described) that it describes them. They are not counted as
    /// online.
    pub described_holes: u64,
    /// The online frames that are RAM.
    pub present: u64,
    /// Whether every frame of the span is online in this zone or lies in a described hole, so that
    /// a scan can read every descriptor without a check. False before boot is complete.
    pub contiguous: bool,
}

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Returns the statistics of a part of a node's memory. A zone converts to a part:
    /// [`Zone::Kernel`] to [`ZonePart::Normal`], which is all kernel memory unless the platform
    /// gives a boundary.
    ///
    /// Cost: O(1).
    #[must_use]
    pub fn zone(&self, node: NodeId, part: impl Into<ZonePart>) -> ZoneInfo {
        let node = self.words().index_of(node);
        node.map_or_else(ZoneInfo::default, |node| self.zone_part(node, part.into()))
    }

    /// Returns the number of words that the zone code has read so far to keep and report spans
    /// (feature `probes`). The record of a zone, the words of a section, and each word of a tree
    /// count as one each.
    #[cfg(feature = "probes")]
    #[must_use]
    pub fn probes(&self) -> u64 {
        self.zones.probes.count()
    }

    /// Returns the statistics of a part of a node's memory.
    pub(super) fn zone_part(&self, node: NodeIndex, part: ZonePart) -> ZoneInfo {
        let record = PartRecord::of(self.words(), node, part);
        self.zones.probes.add(1);
        let described_holes = self.holes_within(record.spanned, node, record.hole_pageblock_frames);
        let has_gaps = record.spanned.frames() != record.online + described_holes;
        ZoneInfo {
            spanned: record.spanned,
            online: record.online,
            described_holes,
            present: record.online - record.holes,
            contiguous: self.settings.boot_complete && record.online != 0 && !has_gaps,
        }
    }

    /// Returns whether a node has memory online.
    pub(super) fn is_populated(&self, node: NodeIndex) -> bool {
        ZonePart::ALL.iter().any(|&part| PartRecord::of(self.words(), node, part).online != 0)
    }

    /// Adds `range`, which has just come online, to its zones.
    pub(super) fn record_online(&mut self, range: PfnRange) {
        self.count_holes(range, Change::Online);
        self.grow_zones(range);
    }

    /// Does the same as [`record_online`](Self::record_online), but counts no holes.
    pub(super) fn grow_zones(&mut self, range: PfnRange) {
        for SectionPart { section, .. } in self.section_parts(range) {
            for class in Zone::ALL.map(Class::online) {
                self.zones.probes.add(1);
                if section.available(class) != 0 {
                    section.make_findable(self.words(), class);
                    self.zones.probes.add(PATH_LEN);
                }
            }
        }
        self.for_zone_runs(range, &mut |entry, node, part, run| {
            self.count_online(entry, node, part.zone(), run.frames(), Change::Online);
            PartRecord::change(self.words(), node, part, |record| record.grow(run));
        });
    }

    /// Takes `range`, which has just gone offline, out of its zones; the `movable` bits still say
    /// which these are. Returns the nodes of which at least one part has no memory online any more.
    pub(super) fn record_offline(&mut self, range: PfnRange) -> NodeSet {
        self.count_holes(range, Change::Offline);
        for SectionPart { section, blocks } in self.section_parts(range) {
            self.zones.probes.add(1);
            for zone in Zone::ALL.into_iter().filter(|&zone| blocks & section.zone_mask(zone) != 0)
            {
                let class = Class::online(zone);
                if section.available(class) == 0 {
                    section.hide_if_empty(self.words(), class);
                    self.zones.probes.add(1);
                }
            }
        }
        let mut empty = NodeSet::default();
        self.for_zone_runs(range, &mut |entry, node, part, run| {
            self.count_online(entry, node, part.zone(), run.frames(), Change::Offline);
            PartRecord::change(self.words(), node, part, |record| {
                let is_span_right = record.shrink(run);
                if record.online == 0 {
                    empty.insert(node);
                }
                // If no memory is online, the search clears the stale bits of the tree.
                if !is_span_right || record.online == 0 {
                    record.spanned = self.search_span(node, part);
                }
            });
        });
        empty
    }

    /// Adds `frames` to the count of frames of an announced range that are online in a zone of `node`,
    /// or subtracts them.
    fn count_online(
        &self,
        entry: &Entry,
        node: NodeIndex,
        zone: Zone,
        frames: u64,
        change: Change,
    ) {
        let count = |counts: &[AtomicU64; 2]| {
            let online = counts[zone as usize].load(Ordering::Relaxed);
            let online = match change {
                Change::Offline => online - frames,
                _ => online + frames,
            };
            counts[zone as usize].store(online, Ordering::Relaxed);
        };
        count(&entry.online);
        if self.words().node_of_index(node).0 == entry.node() {
            count(&entry.online_on_announced_node);
        }
    }

    /// Calls `f` for each run of pageblocks of `range` that lie in one part of a node's memory. The
    /// arguments of `f` are the entry of the announced range, the node, the part, and the run.
    fn for_zone_runs(
        &self,
        range: PfnRange,
        f: &mut dyn FnMut(&Entry, NodeIndex, ZonePart, PfnRange),
    ) {
        let mut remaining = range;
        // `range` may span several regions, and these may belong to several nodes.
        while !remaining.is_empty()
            && let Some(region) = self.words().announced_at(remaining.start()).or_record_violation()
        {
            let (zone, run) = self.zone_run(remaining.intersection(region.range));
            let part = ZonePart::at(zone, run.start(), self.zones.low_end());
            let run = run.intersection(part.bounds(self.zones.low_end()));
            if let Some(section) = self.words().section_of(run.start()).or_record_violation() {
                f(region.entry, section.node(self.words()), part, run);
            }
            remaining = remaining.split_at(run.end()).1;
        }
    }

    /// Returns the zone that the `movable` bits name at the start of `range`, and the run at the
    /// start of `range` that is in this zone on one node.
    pub(super) fn zone_run(&self, range: PfnRange) -> (Zone, PfnRange) {
        let (run, zone_and_node) = uniform_run(range, |part| {
            self.zones.probes.add(1);
            let SectionPart { section, blocks } = self.words().section_part(part)?;
            let movable = blocks & section.zone_mask(Zone::Movable);
            let zone = match movable {
                0 => Zone::Kernel,
                _ if movable == blocks => Zone::Movable,
                _ => return None,
            };
            Some((zone, section.node(self.words())))
        });
        (zone_and_node.map_or(Zone::Kernel, |(zone, _)| zone), run)
    }
}
