//! Chooses the zone of memory that comes online as
//! [`OnlineType::Online`](super::OnlineType::Online).
//!
//! A policy divides a range into runs, and chooses a zone for each run.
//!
//! A region corresponds to a memory group of Linux. A *static* group is one device that is plugged
//! and unplugged as a whole (a DIMM); a *dynamic* group grows and shrinks in units (virtio-mem, the
//! LMBs of a partition).

use super::Hotplug;
use super::policy::{Group, Planned, Policy};
use super::zone_counts::ByZone;
use super::zone_part::ZonePart;
use crate::addr::PfnRange;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::{Announced, Class, NodeIndex, Part, RegionIndex, Zone};

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Chooses a zone for the start of `range`, which is offline and in one region. Returns the
    /// zone, and the run at the start of `range` that comes online in it. `planned` counts the
    /// frames, on any node, for which the same request has already chosen a zone, and which are not
    /// online yet.
    pub(super) fn choose(&self, range: PfnRange, planned: Planned) -> (Zone, PfnRange) {
        let Some(region) = self.words().announced_at(range.start()).known() else {
            return (Zone::Kernel, range);
        };
        let Some((node, range)) = self.node_run(range).known() else {
            return (Zone::Kernel, range);
        };
        match self.settings.policy {
            Policy::ContigZones { movable_node } => self.keep_contiguous(range, node, movable_node),
            Policy::AutoMovable { ratio_percent, per_node } => {
                let ratio = Ratio { percent: u128::from(ratio_percent), per_node };
                self.balance(range, region, node, ratio, planned)
            }
        }
    }

    /// Returns the node at the start of `range`, which is present, and the run at the start of
    /// `range` that is on this node.
    fn node_run(&self, range: PfnRange) -> Option<(NodeIndex, PfnRange)> {
        let mut parts = self.parts(range);
        let node = parts.next()?.section.node();
        let other = parts.find(|part| part.section.node() != node);
        Some((node, other.map_or(range, |other| range.split_at(other.section.start()).0)))
    }

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

    fn balance(
        &self,
        range: PfnRange,
        region: Announced<'_>,
        node: NodeIndex,
        Ratio { percent: ratio, per_node }: Ratio,
        planned: Planned,
    ) -> (Zone, PfnRange) {
        let in_region = ByZone::online_of(region.entry);
        let group = Group::of(region.entry);
        // `part` is the part of `range` that gets one zone. That zone can be movable only if
        // `must_fit` more frames fit into the ratio.
        let (part, must_fit) = match group {
            Group::None => (range, range.frames()),
            Group::Static if in_region.kernel + planned.kernel > 0 => return (Zone::Kernel, range),
            Group::Static => {
                let all = region.range.frames();
                (range, all.saturating_sub(in_region.movable + planned.movable))
            }
            Group::Dynamic { unit } => {
                let part = range.chunks(unit).next().known().unwrap_or(range);
                let unit = part.align_outward(unit).intersection(region.range);
                if self.online_in(unit, Zone::Kernel) {
                    return (Zone::Kernel, part);
                }
                (part, part.frames())
            }
        };
        let fits = |node: Option<NodeIndex>| {
            let more = Planned { movable: planned.movable + must_fit, ..planned };
            self.needed_kernel_memory(node, region.index, more, ratio)
                <= ratio * u128::from(self.boot_kernel(node))
        };
        if fits(None) && (!per_node || fits(Some(node))) {
            return (Zone::Movable, part);
        }
        // The part does not fit into the ratio as a whole. If the range is in no group, its lower
        // end may still be movable.
        if group == Group::None && part.frames() > PAGEBLOCK_FRAMES as u64 {
            let allowance = |node: Option<NodeIndex>| {
                let limit = ratio * u128::from(self.boot_kernel(node));
                let used = self.needed_kernel_memory(node, region.index, planned, ratio);
                u64::try_from(limit.saturating_sub(used) / 100).unwrap_or(u64::MAX)
            };
            let allowance =
                if per_node { allowance(None).min(allowance(Some(node))) } else { allowance(None) };
            let allowance = allowance / PAGEBLOCK_FRAMES as u64 * PAGEBLOCK_FRAMES as u64;
            if allowance > 0
                && let Some(end) = part.start().checked_add(allowance)
            {
                return (Zone::Movable, part.split_at(end).0);
            }
        }
        (Zone::Kernel, part)
    }

    /// Returns 100 times the number of movable frames that would depend on the kernel memory of
    /// boot if region `index` had the frames `more` in addition. The kernel memory of a dynamic
    /// region supports a part of that region's movable frames, so this part does not depend on the
    /// kernel memory of boot. If `node` is given, only its movable frames count, and only the
    /// regions that were announced for it.
    fn needed_kernel_memory(
        &self,
        node: Option<NodeIndex>,
        index: RegionIndex,
        more: Planned,
        ratio: u128,
    ) -> u128 {
        let name = node.map(|node| self.words().node_of_index(node));
        let mut movable = more.movable;
        let mut own = 0;
        for region in self.words().announced() {
            let mut online = match name {
                None => ByZone::online_of(region.entry),
                Some(name) if name == region.node => ByZone::on_home_node_of(region.entry),
                Some(_) => continue,
            };
            if name.is_none() {
                movable += online.movable;
            }
            if region.index == index {
                online.kernel += more.kernel;
                online.movable += more.movable;
            }
            if let Group::Dynamic { .. } = Group::of(region.entry) {
                own += (u128::from(online.kernel) * ratio).min(u128::from(online.movable) * 100);
            }
        }
        if let Some(node) = node {
            movable += self.zone_part(node, ZonePart::Movable).online;
        }
        (u128::from(movable) * 100).saturating_sub(own)
    }

    /// Returns the number of frames of boot memory that are kernel memory; only those on `node`, if
    /// `node` is given.
    fn boot_kernel(&self, node: Option<NodeIndex>) -> u64 {
        let name = node.map(|node| self.words().node_of_index(node));
        let regions = self.words().announced();
        let at_boot =
            regions.filter(|region| region.is_boot && name.is_none_or(|name| region.node == name));
        let online = |region: Announced<'_>| match name {
            None => ByZone::online_of(region.entry).kernel,
            Some(_) => ByZone::on_home_node_of(region.entry).kernel,
        };
        at_boot.map(online).sum()
    }

    /// Returns whether a part of `range` is online in `zone`.
    fn online_in(&self, range: PfnRange, zone: Zone) -> bool {
        range.sections().any(|piece| {
            self.words().part_of(piece).is_some_and(|Part { section, blocks }| {
                section.available(Class::online(zone)) & blocks != 0
            })
        })
    }
}

/// The ratio of movable memory to kernel memory that a policy allows.
#[derive(Clone, Copy)]
struct Ratio {
    percent: u128,
    per_node: bool,
}
