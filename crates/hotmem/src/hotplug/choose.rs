//! Chooses the zone of memory that comes online as
//! [`OnlineType::Online`](super::OnlineType::Online).
//!
//! A policy divides a range into runs, and chooses a zone for each run.
//!
//! A region corresponds to a memory group of Linux. A *static* group is one device that is plugged
//! and unplugged as a whole (a DIMM); a *dynamic* group grows and shrinks in units (virtio-mem, the
//! LMBs of a partition).

use super::Hotplug;
use super::policy::{Group, Planned, PlannedFrames, Policy};
use super::zone_counts::ByZone;
use super::zone_part::ZonePart;
use crate::addr::PfnRange;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::invariant::OrRecordViolation;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::words::{Announced, Class, NodeId, NodeIndex, RegionIndex, SectionPart, Zone};

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Chooses a zone for the first part of `range`. All of `range` is offline and in one region.
    /// Returns the zone, and the part that comes online in it. `planned` is what this request has
    /// already chosen, on all nodes.
    pub(super) fn choose(&self, range: PfnRange, planned: Planned) -> (Zone, PfnRange) {
        let Some(region) = self.words().announced_at(range.start()).or_record_violation() else {
            return (Zone::Kernel, range);
        };
        let Some((node, range)) = self.node_run(range).or_record_violation() else {
            return (Zone::Kernel, range);
        };
        match self.settings.policy {
            Policy::ContigZones { movable_node } => self.keep_contiguous(range, node, movable_node),
            Policy::AutoMovable { ratio_percent, per_node } => {
                let ratio = Ratio { percent: u64::from(ratio_percent), per_node };
                self.choose_by_ratio(range, region, node, ratio, planned)
            }
        }
    }

    /// Returns the node of the first frame of `range`, and the frames from there on that are on
    /// this node. All of `range` must be present.
    fn node_run(&self, range: PfnRange) -> Option<(NodeIndex, PfnRange)> {
        let mut parts = self.section_parts(range);
        let node = parts.next()?.section.node(self.words());
        let next_node = parts.find(|part| part.section.node(self.words()) != node);
        Some((node, next_node.map_or(range, |part| range.split_at(part.section.start()).0)))
    }

    /// Chooses the zone that stays contiguous if `range` comes online in it.
    fn keep_contiguous(
        &self,
        range: PfnRange,
        node: NodeIndex,
        movable_node: bool,
    ) -> (Zone, PfnRange) {
        let is_within = |&part: &ZonePart| self.zone_part(node, part).spanned.overlaps(range);
        let within = |zone| ZonePart::of(zone).iter().any(is_within);
        let zone = match (within(Zone::Kernel), within(Zone::Movable)) {
            (true, false) => Zone::Kernel,
            (false, true) => Zone::Movable,
            _ if movable_node => Zone::Movable,
            _ => Zone::Kernel,
        };
        (zone, range)
    }

    /// Chooses movable memory if the ratio of the policy permits it.
    fn choose_by_ratio(
        &self,
        range: PfnRange,
        region: Announced<'_>,
        node: NodeIndex,
        Ratio { percent: ratio, per_node }: Ratio,
        Planned { frames: planned, kernel_part }: Planned,
    ) -> (Zone, PfnRange) {
        let in_region = ByZone::online_of(region.entry);
        let group = Group::of(region.entry);
        // `part` is the part of `range` that gets one zone. The zone can be movable only if the
        // policy allows `must_fit` more movable frames. For a static group, these are all frames of
        // the region that are not movable yet.
        let (part, must_fit) = match group {
            Group::None => (range, range.frames()),
            Group::Static if in_region.kernel + planned.kernel > 0 => return (Zone::Kernel, range),
            Group::Static => {
                let all = region.range.frames();
                (range, all.saturating_sub(in_region.movable + planned.movable))
            }
            Group::Dynamic { unit } => {
                let part = range.chunks(unit).next().or_record_violation().unwrap_or(range);
                let unit = part.align_outward(unit).intersection(region.range);
                // A part on an earlier node may be in the same unit. Whether it is online by now
                // must not matter: see `partition`.
                if kernel_part.overlaps(unit) || self.online_in(unit, Zone::Kernel) {
                    return (Zone::Kernel, part);
                }
                (part, part.frames())
            }
        };
        let nodes: &[_] = if per_node { &[None, Some(node)] } else { &[None] };
        let allowance = |planned| self.allowance(nodes, region.index, planned, ratio);
        if allowance(PlannedFrames { movable: planned.movable + must_fit, ..planned }).is_some() {
            return (Zone::Movable, part);
        }
        // The part does not fit into the ratio as a whole. If the range is in no group, its lower
        // end may still be movable.
        if group == Group::None {
            let allowance = allowance(planned).unwrap_or(0) / 100;
            let allowance = allowance / PAGEBLOCK_FRAMES as u64 * PAGEBLOCK_FRAMES as u64;
            if allowance > 0
                && let Some(end) = part.start().checked_add(allowance)
            {
                return (Zone::Movable, part.split_at(end).0);
            }
        }
        (Zone::Kernel, part)
    }

    /// Returns 100 times the number of movable frames that may be added to `planned` on each of the
    /// nodes; `None` stands for all nodes together. Returns `None` if `planned` exceeds the ratio
    /// already.
    fn allowance(
        &self,
        nodes: &[Option<NodeIndex>],
        index: RegionIndex,
        planned: PlannedFrames,
        ratio: u64,
    ) -> Option<u64> {
        let of_node = |&node: &Option<NodeIndex>| {
            let limit = ratio.saturating_mul(self.boot_kernel(node));
            limit.checked_sub(self.movable_on_boot_memory(node, index, planned, ratio))
        };
        nodes.iter().map(of_node).min().flatten()
    }

    /// Returns 100 times the number of movable frames for which boot memory must provide the kernel
    /// memory. The caller compares the result with the kernel memory times a ratio in percent.
    /// Counts region `index` as if it also had the frames `more`.
    ///
    /// A dynamic region may have kernel memory of its own. This kernel memory suffices for some of
    /// the region's movable frames, which the result does not count. If `node` is given, counts
    /// only the movable frames of `node`, and considers only the kernel memory of regions that were
    /// announced for `node`.
    fn movable_on_boot_memory(
        &self,
        node: Option<NodeIndex>,
        index: RegionIndex,
        more: PlannedFrames,
        ratio: u64,
    ) -> u64 {
        let node_id = node.map(|node| self.words().node_of_index(node));
        let mut movable = more.movable;
        let mut region_backed = 0;
        for region in self.words().announced() {
            let Some(mut online) = online_on(&region, node_id) else { continue };
            if node_id.is_none() {
                movable += online.movable;
            }
            if region.index == index {
                online.kernel += more.kernel;
                online.movable += more.movable;
            }
            if let Group::Dynamic { .. } = Group::of(region.entry) {
                region_backed += online.kernel.saturating_mul(ratio).min(online.movable * 100);
            }
        }
        if let Some(node) = node {
            movable += self.zone_part(node, ZonePart::Movable).online;
        }
        (movable * 100).saturating_sub(region_backed)
    }

    /// Returns the number of frames of boot memory that are kernel memory; only those on `node`, if
    /// `node` is given.
    fn boot_kernel(&self, node: Option<NodeIndex>) -> u64 {
        let node_id = node.map(|node| self.words().node_of_index(node));
        let at_boot = self.words().announced().filter(|region| region.is_boot);
        at_boot.filter_map(|region| online_on(&region, node_id)).map(|online| online.kernel).sum()
    }

    /// Returns whether a part of `range` is online in `zone`.
    fn online_in(&self, range: PfnRange, zone: Zone) -> bool {
        self.section_parts(range).any(|SectionPart { section, blocks }| {
            section.available(Class::online(zone)) & blocks != 0
        })
    }
}

/// Returns the counts of an announced range. If `node` is given, returns those of its memory on that
/// node, or `None` if the range was announced for another node.
fn online_on(region: &Announced<'_>, node: Option<NodeId>) -> Option<ByZone> {
    match node {
        None => Some(ByZone::online_of(region.entry)),
        Some(node) => (node == region.node).then(|| ByZone::online_on_announced_node(region.entry)),
    }
}

/// The ratio of movable memory to kernel memory that a policy allows.
#[derive(Clone, Copy)]
struct Ratio {
    percent: u64,
    per_node: bool,
}
