//! Announces memory to the engine, and adds it. Neighbouring LMBs are announced as one range, even
//! if their nodes differ, because each addition names its node.

use crate::outcome::Error;
use crate::table::{Group, Table};
use hotmem::geometry::SECTION_FRAMES;
use hotmem::{
    AddError, AddRequest, Announce, AnnounceError, Hooks, Hotplug, Map, NodeId, OnlineType, Pfn,
    PfnRange, Platform, RangeError, RangeErrorKind, State,
};
use hotmem_invariant::OrRecordViolation;

/// The result of an addition.
pub(super) struct AddedRange {
    /// The part of the requested memory that was added.
    pub(super) range: PfnRange,
    /// Whether the memory was added to another node than requested, because its section (128 MiB)
    /// already has memory of that node.
    pub(super) is_on_other_node: bool,
    /// The node to which the memory was added.
    pub(super) node: NodeId,
}

impl Table<'_> {
    /// Announces all memory that can be added, so that requests need not do so.
    ///
    /// Cost: O(LMBs).
    ///
    /// # Errors
    /// [`AnnounceError::NoMetadata`].
    pub fn announce<P: Platform, M: Map>(
        &self,
        hotplug: &mut Hotplug<'_, P, M>,
    ) -> Result<(), AnnounceError> {
        let mut from = 0;
        while let Some(first) = self.next(from, |group| group.eligible) {
            let node = self.lmb(first).node.unwrap_or_else(|| default_node(hotplug));
            let all = announced(hotplug, self, first, node)?;
            let remaining = PfnRange::new(self.lmb(first).range.start(), all.end());
            from = first + remaining.map_or(0, |remaining| self.lmbs_in(remaining)).max(1);
        }
        Ok(())
    }

    /// Adds and puts online the memory that the partition has at the start and can give back,
    /// except for memory that the kernel has booted with.
    ///
    /// # Errors
    /// The first failure. LMBs that were handled before stay online.
    pub fn adopt<P: Platform, M: Map>(
        &self,
        hotplug: &mut Hotplug<'_, P, M>,
        hooks: &mut dyn Hooks,
        online: OnlineType,
    ) -> Result<(), Error> {
        let assigned = |group: &Group| group.assigned & group.eligible;
        let mut from = 0;
        while let Some(first) = self.next(from, assigned) {
            let stretch = self.stretch(first, assigned, u32::MAX);
            let (run, state) = hotplug.state_at(stretch.range.start(), stretch.range.end());
            let mut range = run;
            if matches!(state, State::Absent | State::Unknown) {
                range = add(hotplug, self, first, run, stretch.node)?.range;
                hotplug.online(range, online, hooks).map_err(Error::Online)?;
            }
            from = first + self.lmbs_in(range).max(1);
        }
        Ok(())
    }
}

/// Adds absent memory of LMBs of one node, from position `first` on. Adds as much memory as lies in
/// one announced range and in sections without memory of other nodes. If the node is not known, or if
/// the engine has no room for one more node, the memory comes to the first node that has memory
/// online, as in Linux.
pub(super) fn add<P: Platform, M: Map>(
    hotplug: &mut Hotplug<'_, P, M>,
    table: &Table<'_>,
    first: u32,
    range: PfnRange,
    named_node: Option<NodeId>,
) -> Result<AddedRange, Error> {
    let node = named_node.unwrap_or_else(|| default_node(hotplug));
    let all = announced(hotplug, table, first, node).map_err(Error::Announce)?;
    let range = range.intersection(all);
    let add = |hotplug: &mut Hotplug<'_, P, M>, range: PfnRange, node| {
        hotplug.add(AddRequest { node: Some(node), ..range.into() })
    };
    let conflict = match add(hotplug, range, node) {
        Err(AddError::Range(RangeError { range: conflict, kind: RangeErrorKind::OtherNode })) => {
            conflict
        }
        Err(AddError::TooManyNodes(_)) if node != default_node(hotplug) => {
            let added = add(hotplug, range, default_node(hotplug));
            return added
                .map(|()| AddedRange { range, is_on_other_node: true, node: default_node(hotplug) })
                .map_err(Error::Add);
        }
        done => {
            return done
                .map(|()| AddedRange { range, is_on_other_node: false, node })
                .map_err(Error::Add);
        }
    };
    let section = conflict.align_outward(SECTION_FRAMES as u64);
    let before = range.split_at(section.start()).0;
    let node_of_section = hotplug.frames().node_of(conflict.start()).unwrap_or(node);
    let (range, node) = match before.is_empty() {
        false => (before, node),
        true => (range.intersection(section), node_of_section),
    };
    let added = match table.lmbs_in(range) {
        0 => Err(AddError::Range(RangeError { range: conflict, kind: RangeErrorKind::OtherNode })),
        _ => add(hotplug, range, node),
    };
    added
        .map(|()| AddedRange { range, is_on_other_node: before.is_empty(), node })
        .map_err(Error::Add)
}

/// Returns the announced range that contains the first frame of an LMB. If there is no such range,
/// announces one.
fn announced<P: Platform, M: Map>(
    hotplug: &mut Hotplug<'_, P, M>,
    table: &Table<'_>,
    position: u32,
    node: NodeId,
) -> Result<PfnRange, AnnounceError> {
    if let Some(all) = region_at(hotplug, table.lmb(position).range.start()) {
        return Ok(all);
    }
    let all = range_to_announce(hotplug, table, position);
    let group = hotmem::Group::Dynamic { unit: table.lmb_size.frames() };
    let announce = Announce { node, group, nodes_vary: true, ..all.into() };
    hotplug.announce(announce).map(|_| all)
}

/// Returns the first node that has memory online.
pub(super) fn default_node<P: Platform, M: Map>(hotplug: &Hotplug<'_, P, M>) -> NodeId {
    hotplug.nodes().next().unwrap_or(NodeId::ZERO)
}

/// Returns the announced range that contains this frame.
pub(super) fn region_at<P: Platform, M: Map>(
    hotplug: &Hotplug<'_, P, M>,
    pfn: Pfn,
) -> Option<PfnRange> {
    hotplug.regions().map(|(_, range)| range).find(|range| range.contains(pfn))
}

/// Returns the range to announce for an LMB: the LMB, and its neighbours that can be added and are
/// not announced either.
fn range_to_announce<P: Platform, M: Map>(
    hotplug: &Hotplug<'_, P, M>,
    table: &Table<'_>,
    position: u32,
) -> PfnRange {
    let lmb = table.lmb(position).range;
    let (mut low, mut high) = (Pfn::ZERO, Pfn::LIMIT);
    for (_, other) in hotplug.regions() {
        if other.start() > lmb.start() {
            high = high.min(other.start());
        } else {
            low = low.max(other.end());
        }
    }
    let is_eligible = |position: u32| {
        let (group, bit) = table.group_of(position);
        group.eligible >> bit & 1 != 0
    };
    let (mut start, mut end) = (lmb.start(), lmb.end().min(high));
    for below in (0..position).rev() {
        let lmb = table.lmb(below).range;
        if lmb.end() != start || lmb.start() < low || !is_eligible(below) {
            break;
        }
        start = lmb.start();
    }
    for above in position + 1..table.lmbs {
        let lmb = table.lmb(above).range;
        if lmb.start() != end || lmb.end() > high || !is_eligible(above) {
            break;
        }
        end = lmb.end();
    }
    PfnRange::new(start, end).or_record_violation().unwrap_or(lmb)
}
