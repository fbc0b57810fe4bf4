//! Where the engine keeps the words of LMBs: regions, each of one node.
//!
//! One region is announced for all the neighbours that belong to its node or whose node is not known
//! yet; many platforms tell it only when an LMB comes. If a neighbour turns out to belong elsewhere,
//! the region is trimmed, as far as nothing beyond is present. A section (128 MiB) is of one node,
//! that of the LMB of it that came first.

use super::Error;
use crate::property::FLAG_AI_INVALID;
use crate::table::{Group, Table};
use hotmem::{
    Announce, AnnounceError, Hooks, Hotplug, Known, Mapping, NodeId, OnlineType, Pfn, PfnRange,
    Platform, RegionId, State,
};

/// Where memory is to be added.
pub(super) struct Place {
    /// As much of what was asked for as lies in one region.
    pub(super) range: PfnRange,
    /// The region is of another node.
    pub(super) misplaced: bool,
}

impl Table<'_> {
    /// Announces all memory that can come, so that requests need not: the words are reserved, as
    /// [`Hotplug::announce`] says. LMBs whose node only their connectors know are announced for the
    /// default node and change regions when they come; so do those that share a section (128 MiB)
    /// with another node's.
    ///
    /// Cost: O(LMBs), and the words are zeroed.
    ///
    /// # Errors
    /// [`AnnounceError::NoMetadata`].
    pub fn announce<P: Platform, M: Mapping>(
        &self,
        hotplug: &mut Hotplug<'_, P, M>,
    ) -> Result<(), AnnounceError> {
        let mut from = 0;
        while let Some(first) = self.next(from, |group| group.eligible) {
            let (range, node) = self.likely_region(first);
            from = first + self.lmbs_in(range).max(1);
            let node = node.unwrap_or(self.lmb(first).node);
            match hotplug.announce(Announce::range(range).on_node(node).in_group(group(self))) {
                // What is there already, or on another node, is looked at when it comes.
                Ok(_) | Err(AnnounceError::Overlaps(_) | AnnounceError::OtherNode(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings online what the partition has at the start and can give back, as far as the kernel
    /// has not brought it as its boot memory.
    ///
    /// # Errors
    /// The first thing that stood in the way; what was done before stays.
    pub fn adopt<P: Platform, M: Mapping>(
        &self,
        hotplug: &mut Hotplug<'_, P, M>,
        hooks: &mut dyn Hooks,
        online: OnlineType,
    ) -> Result<(), Error> {
        let is_there = |group: &Group| group.assigned & group.eligible;
        let mut from = 0;
        while let Some(first) = self.next(from, is_there) {
            let stretch = self.stretch(first, is_there, u32::MAX);
            let (run, state) = hotplug.state_at(stretch.range.start(), stretch.range.end());
            let mut range = run;
            if matches!(state, State::Absent | State::Unknown) {
                range = place(hotplug, self, first, run).map_err(Error::Announce)?.range;
                hotplug.add(range).map_err(Error::Add)?;
                hotplug.online(range, online, hooks).map_err(Error::Online)?;
            }
            from = first + self.lmbs_in(range).max(1);
        }
        Ok(())
    }

    /// Neighbours from `first` on that can come and go, of one node as far as nodes are known.
    fn likely_region(&self, first: u32) -> (PfnRange, Option<NodeId>) {
        let mut range = self.lmb(first).range;
        let mut node = self.known_node(first);
        for position in first + 1..self.lmbs {
            let (group, bit) = self.group_of(position);
            let lmb = self.lmb(position).range;
            let own = self.known_node(position);
            let belongs = node.is_none() || own.is_none() || own == node;
            if group.eligible >> bit & 1 == 0 || lmb.start() != range.end() || !belongs {
                break;
            }
            node = node.or(own);
            range = PfnRange::new(range.start(), lmb.end()).known().unwrap_or(range);
        }
        (range, node)
    }

    /// The node of an LMB, if its connector will not tell another one.
    fn known_node(&self, position: u32) -> Option<NodeId> {
        let (group, bit) = self.group_of(position);
        let (row, flags) = (group.aa_index[bit], group.flags[bit]);
        let known = self.rows.row(row, flags).is_some()
            || flags & FLAG_AI_INVALID != 0
            || group.taken >> bit & 1 != 0;
        known.then(|| self.lmb(position).node)
    }
}

/// Makes sure of a region for LMBs of one node that begin at position `first`.
pub(super) fn place<P: Platform, M: Mapping>(
    hotplug: &mut Hotplug<'_, P, M>,
    table: &Table<'_>,
    first: u32,
    range: PfnRange,
) -> Result<Place, AnnounceError> {
    let node = table.lmb(first).node;
    if let Some((region, all)) = region_at(hotplug, range.start()) {
        let within = range.intersection(all);
        if hotplug.region_node(region) == Some(node) {
            return Ok(Place { range: within, misplaced: false });
        }
        if !trim(hotplug, region, all, within) {
            return Ok(Place { range: within, misplaced: true });
        }
    }
    // What begins further up belongs to another region.
    let starts = hotplug.regions().map(|(_, other)| other.start());
    let above = starts.filter(|&start| start > range.start()).min();
    let range = range.split_at(above.unwrap_or(Pfn::LIMIT)).0;
    let announce = |hotplug: &mut Hotplug<'_, P, M>, all, node| {
        hotplug.announce(Announce::range(all).on_node(node).in_group(group(table))).map(|_| ())
    };
    let own = |range| Place { range, misplaced: false };
    match announce(hotplug, neighbourhood(hotplug, table, first, range), node) {
        Err(AnnounceError::NoMetadata(_) | AnnounceError::OtherNode(_)) => {}
        other => return other.map(|()| own(range)),
    }
    match announce(hotplug, range, node) {
        Err(AnnounceError::OtherNode(_)) => {}
        other => return other.map(|()| own(range)),
    }
    // One of the sections is another node's: this one, or else what comes after it.
    let range = range.sections().next().known().unwrap_or(range);
    match announce(hotplug, range, node) {
        Err(AnnounceError::OtherNode(other)) => {
            let region = region_at(hotplug, other.start()).known();
            let theirs = region.and_then(|(region, _)| hotplug.region_node(region));
            announce(hotplug, range, theirs.unwrap_or(node))?;
            Ok(Place { range, misplaced: true })
        }
        other => other.map(|()| own(range)),
    }
}

fn group(table: &Table<'_>) -> hotmem::Group {
    hotmem::Group::Dynamic { unit: table.lmb_size.frames() }
}

/// The region that has this frame.
pub(super) fn region_at<P: Platform, M: Mapping>(
    hotplug: &Hotplug<'_, P, M>,
    pfn: Pfn,
) -> Option<(RegionId, PfnRange)> {
    hotplug.regions().find(|(_, range)| range.contains(pfn))
}

/// Takes `wanted` out of a region, together with everything beyond it that is not there either.
fn trim<P: Platform, M: Mapping>(
    hotplug: &mut Hotplug<'_, P, M>,
    region: RegionId,
    all: PfnRange,
    wanted: PfnRange,
) -> bool {
    let is_absent = |range: PfnRange| {
        range.is_empty() || hotplug.state_at(range.start(), range.end()) == (range, State::Absent)
    };
    let (below, from) = all.split_at(wanted.start());
    let (to, above) = all.split_at(wanted.end());
    match (is_absent(from), is_absent(to)) {
        // Of two halves that could stay, the one that has something.
        (true, true) => hotplug.withdraw(region).is_ok(),
        (true, false) => hotplug.trim(region, below).is_ok(),
        (false, true) => hotplug.trim(region, above).is_ok(),
        (false, false) => false,
    }
}

/// `range`, and the neighbours that may share its region: in none yet, not there, and of the same
/// node or of a node that nobody knows.
fn neighbourhood<P: Platform, M: Mapping>(
    hotplug: &Hotplug<'_, P, M>,
    table: &Table<'_>,
    first: u32,
    range: PfnRange,
) -> PfnRange {
    let node = table.lmb(first).node;
    let bounds = hotplug.regions().map(|(_, other)| other);
    let (mut low, mut high) = (Pfn::ZERO, Pfn::LIMIT);
    for other in bounds {
        if other.end() <= range.start() {
            low = low.max(other.end());
        } else if other.start() >= range.end() {
            high = high.min(other.start());
        }
    }
    let may_share = |position: u32| {
        let (group, bit) = table.group_of(position);
        group.eligible >> bit & 1 != 0
            && table.known_node(position).is_none_or(|known| known == node)
    };
    let mut start = range.start();
    let mut position = first;
    while let Some(below) = position.checked_sub(1) {
        let lmb = table.lmb(below).range;
        if lmb.end() != start || lmb.start() < low || !may_share(below) {
            break;
        }
        (position, start) = (below, lmb.start());
    }
    let mut end = range.end();
    let mut position = first.saturating_add(table.lmbs_in(range));
    while position < table.lmbs {
        let lmb = table.lmb(position).range;
        if lmb.start() != end || lmb.end() > high || !may_share(position) {
            break;
        }
        (position, end) = (position + 1, lmb.end());
    }
    PfnRange::new(start, end).known().unwrap_or(range)
}
