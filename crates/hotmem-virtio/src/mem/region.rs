//! Announces the region of a device, without the sections of other nodes at its ends.

use super::hotplug::BoundMemory;
use super::memory::Obstacle;
use super::reachable::Reachable;
use hotmem::geometry::SECTION_FRAMES;
use hotmem::{
    Announce, AnnounceError, Group, Hooks, Map, NodeId, PfnRange, Platform, RangeErrorKind,
};

impl<P: Platform, M: Map, H: Hooks> BoundMemory<'_, '_, P, M, H> {
    /// Announces as much of `region` as can have memory of `node`, in whole units.
    ///
    /// A section has one node, and a device's region need not begin or end with a section. So the
    /// sections at its ends may belong to the nodes of other memory. The device cannot use them, and
    /// keeps the rest.
    pub(super) fn announce_reachable(
        &mut self,
        region: PfnRange,
        unit: u64,
        node: NodeId,
    ) -> Result<Reachable, Obstacle> {
        if let Some(known) = self.known_region(region) {
            return Ok(known);
        }
        // A policy may put as much of the region into the movable zone as the region's own kernel
        // memory can support. Each part in one zone is a section, or a unit of the device if that is
        // larger: a unit is unplugged as a whole, so kernel memory in a part of it would keep all
        // of it plugged.
        let group = Group::Dynamic { unit: unit.max(SECTION_FRAMES as u64) };
        let mut reachable = Reachable::from(region);
        loop {
            let announce = Announce { node, group, ..reachable.range.into() };
            match self.hotplug.announce(announce) {
                Ok(_) => break,
                Err(AnnounceError::Range(error)) if error.kind == RangeErrorKind::OtherNode => {
                    let section = error.range.align_outward(SECTION_FRAMES as u64);
                    let is_below = error.range.start() < reachable.range.start();
                    let rest = match is_below {
                        true => reachable.range.split_at(section.end()).1,
                        false => reachable.range.split_at(section.start()).0,
                    };
                    let range = rest.align_inward(unit);
                    if range.is_empty() {
                        return Err(error.into());
                    }
                    let obstacle = reachable.obstacle.or(Some(error.into()));
                    reachable = Reachable { range, obstacle };
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.memory.region = reachable;
        Ok(reachable)
    }

    /// Returns what an earlier driver has announced of `region`, if it is still announced.
    fn known_region(&mut self, region: PfnRange) -> Option<Reachable> {
        let announced = self.memory.region;
        if announced.range.is_empty() || !region.covers(announced.range) {
            // Another memory manager may have announced the region.
            self.memory.region = region.into();
        }
        let known = self.memory.region;
        let is_known = self.hotplug.regions().any(|(_, range)| range == known.range);
        if !is_known {
            self.memory.region = PfnRange::EMPTY.into();
        }
        is_known.then_some(known)
    }
}
