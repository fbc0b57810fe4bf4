//! Zones: how much of a node is online for what, how far it spans, whether it is contiguous.
//!
//! A zone is contiguous if its span has no frame that is not online in it:
//! *span = frames of its online pageblocks*. Both are kept, so the question costs O(1) however
//! large the zone is and however it grew. Where an edge goes offline, what is left of a contiguous
//! zone is its span; of any other, the next online pageblock is looked for in the tree, O(log n).
//! Holes and reserved frames inside an online pageblock belong to it (their descriptors exist and
//! say so); offline pageblocks, device memory and other zones and nodes never count.

use super::probes::Probes;
use super::{Hotplug, State};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS};
use crate::known::Known;
use crate::platform::Platform;
use crate::region::{Class, MAX_NODES, MAX_REGIONS, NodeId, NodeSet, Region, Zone};
use crate::sync::Ordering;

/// A zone of a node, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneInfo {
    /// From its first to its last online pageblock.
    pub spanned: PfnRange,
    /// Frames of its online pageblocks, holes included: those that a scan may look at.
    pub online: u64,
    /// Of these, frames that are memory.
    pub present: u64,
    /// Of these, frames that are the allocator's: all but what is reserved since boot and what holds
    /// descriptors of its own section.
    pub managed: u64,
    contiguous: bool,
}

impl ZoneInfo {
    /// Whether every frame of its span is online in this zone, so that a scan needs no further
    /// checks. Never said before boot is complete.
    #[must_use]
    pub const fn is_contiguous(&self) -> bool {
        self.contiguous
    }
}

/// What is kept of all zones: changed by boot, online and offline only.
#[derive(Debug)]
pub(super) struct Zones {
    of_nodes: [[Kept; 2]; MAX_NODES],
    of_regions: [ByZone; MAX_REGIONS],
    boot_complete: bool,
    pub(super) probes: Probes,
}

/// Frames online, by zone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ByZone {
    pub(super) kernel: u64,
    pub(super) movable: u64,
}

impl ByZone {
    pub(super) fn of(&mut self, zone: Zone) -> &mut u64 {
        match zone {
            Zone::Kernel => &mut self.kernel,
            Zone::Movable => &mut self.movable,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    spanned: PfnRange,
    online: u64,
    /// Frames of online pageblocks that are no memory.
    holes: u64,
    /// Frames of memory that hold descriptors, or that boot reserved and
    /// [`free_reserved`](Hotplug::free_reserved) has not had.
    unmanaged: u64,
}

impl Kept {
    fn is_contiguous(&self) -> bool {
        self.spanned.frames() == self.online
    }

    /// `run` went offline. Whether it is known what is spanned now; if not, it has to be looked for.
    fn shrink(&mut self, run: PfnRange, unmanaged: u64) -> bool {
        let was_contiguous = self.is_contiguous();
        self.online -= run.frames();
        self.unmanaged -= unmanaged;
        let (below, rest) = self.spanned.split_at(run.start());
        let (_, above) = rest.split_at(run.end());
        match (below.is_empty(), above.is_empty()) {
            (false, false) => return true,
            _ if !was_contiguous => return false,
            (true, true) => self.spanned = PfnRange::EMPTY,
            (true, false) => self.spanned = above,
            (false, true) => self.spanned = below,
        }
        true
    }
}

impl Zones {
    pub(super) const fn new() -> Zones {
        let none = Kept { spanned: PfnRange::EMPTY, online: 0, holes: 0, unmanaged: 0 };
        let no_frames = ByZone { kernel: 0, movable: 0 };
        Zones {
            of_nodes: [[none; 2]; MAX_NODES],
            of_regions: [no_frames; MAX_REGIONS],
            boot_complete: true,
            probes: Probes::new(),
        }
    }

    /// What is online of the region in slot `slot`.
    pub(super) fn of_region(&self, slot: usize) -> ByZone {
        self.of_regions[slot]
    }

    fn of(&mut self, node: NodeId, zone: Zone) -> &mut Kept {
        &mut self.of_nodes[node.number()][zone as usize]
    }

    /// `run` came online.
    fn grow(&mut self, slot: usize, node: NodeId, zone: Zone, run: PfnRange, own: u64) {
        *self.of_regions[slot].of(zone) += run.frames();
        let kept = self.of(node, zone);
        kept.online += run.frames();
        kept.unmanaged += own;
        kept.spanned = if kept.spanned.is_empty() {
            run
        } else {
            let start = kept.spanned.start().min(run.start());
            PfnRange::new(start, kept.spanned.end().max(run.end())).known().unwrap_or(run)
        };
    }

    /// Boot found holes and reserved frames in what came online; the engine's own are not such.
    #[cfg(not(loom))]
    pub(super) fn note_boot(&mut self, node: NodeId, holes: u64, reserved: u64) {
        let kept = self.of(node, Zone::Kernel);
        kept.holes += holes;
        kept.unmanaged += reserved;
    }

    /// Frames that were reserved are managed from now on.
    pub(super) fn note_managed(&mut self, node: NodeId, frames: u64) {
        self.of(node, Zone::Kernel).unmanaged -= frames;
    }

    pub(super) fn set_boot_complete(&mut self, complete: bool) {
        self.boot_complete = complete;
    }
}

impl<P: Platform> Hotplug<'_, P> {
    /// A zone of a node. Cost: O(1).
    #[must_use]
    pub fn zone(&self, node: NodeId, zone: Zone) -> ZoneInfo {
        let kept = self.zones.of_nodes[node.number()][zone as usize];
        self.zones.probes.add(1);
        ZoneInfo {
            spanned: kept.spanned,
            online: kept.online,
            present: kept.online - kept.holes,
            managed: kept.online - kept.holes - kept.unmanaged,
            contiguous: self.zones.boot_complete && kept.online != 0 && kept.is_contiguous(),
        }
    }

    /// The nodes that have memory online.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        NodeId::all().filter(|&node| self.has_memory(node))
    }

    /// Whether the node has memory online.
    #[must_use]
    pub fn has_memory(&self, node: NodeId) -> bool {
        Zone::ALL.iter().any(|&zone| self.zone(node, zone).online != 0)
    }

    /// For kernels that bring the rest of their boot memory online later: until they say that this
    /// is done, no zone is called contiguous.
    pub fn set_boot_complete(&mut self, complete: bool) {
        self.zones.set_boot_complete(complete);
    }

    /// `range` has just come online: the zones learn of it.
    pub(super) fn note_online(&mut self, range: PfnRange) {
        for (region, index) in self.region_words(range) {
            for zone in Zone::ALL {
                let class = Class::online(zone);
                self.zones.probes.add(1);
                if region.section(index).is_some_and(|section| section.available(class) != 0) {
                    region.tree(class).set(index);
                    self.zones.probes.add(region.tree(class).height() as u64);
                }
            }
        }
        self.for_zone_runs(range, Zones::grow);
    }

    /// `range` has just gone offline, and was online in the zones that its `movable` bits still
    /// name. Returns the nodes of which a zone has nothing left.
    pub(super) fn note_offline(&mut self, range: PfnRange) -> NodeSet {
        for (slot, index, blocks, section) in self.words(range) {
            let tree = |class| self.frames.slots()[slot].tree(class);
            self.zones.probes.add(1);
            for zone in Zone::ALL.into_iter().filter(|&zone| blocks & section.zone_mask(zone) != 0)
            {
                let class = Class::online(zone);
                if section.available(class) == 0 {
                    tree(class).clear_leaf(index, || section.available(class) == 0);
                    self.zones.probes.add(1);
                }
            }
        }
        let mut edges = [NodeSet::default(); Zone::ALL.len()];
        let mut empty = NodeSet::default();
        let frames = self.frames;
        self.for_zone_runs(range, |zones, slot, node, zone, run, own| {
            *zones.of_regions[slot].of(zone) -= run.frames();
            let kept = zones.of(node, zone);
            // What boot reserved and has left can only have been freed as if it were allocated.
            if !kept.shrink(run, own + frames.unreserve(run)) {
                edges[zone as usize].insert(node);
            }
            if kept.online == 0 {
                empty.insert(node);
                // Looking for its span clears the path that has led there.
                edges[zone as usize].insert(node);
            }
        });
        for zone in Zone::ALL {
            for node in edges[zone as usize] {
                self.zones.of(node, zone).spanned = self.look_for_span(node, zone);
            }
        }
        empty
    }

    /// From the first to the last online pageblock of a zone. Cost: O(regions × levels).
    fn look_for_span(&self, node: NodeId, zone: Zone) -> PfnRange {
        let class = Class::online(zone);
        let edge = |region: &Region, index: usize, last: bool| {
            let blocks = region.section(index)?.available(class);
            let bit = if last {
                blocks.checked_ilog2()? as usize + 1
            } else {
                blocks.trailing_zeros() as usize
            };
            Some(region.pfn_at((index * SECTION_PAGEBLOCKS + bit) * PAGEBLOCK_FRAMES))
        };
        let regions = || {
            self.frames
                .regions()
                .iter()
                .filter(|region| region.range().is_some() && region.node() == node)
        };
        let (mut words, mut start, mut end) = (0, None, None);
        for region in regions() {
            let tree = region.tree(class);
            let first = tree.next_counted(0, &mut words);
            let last = tree.prev_counted(usize::MAX, &mut words);
            words += u64::from(first.is_some()) + u64::from(last.is_some());
            let first = first.and_then(|index| edge(region, index, false));
            start = [start, first].into_iter().flatten().min();
            end = end.max(last.and_then(|index| edge(region, index, true)));
        }
        self.zones.probes.add(words);
        match (start, end) {
            (Some(start), Some(end)) => {
                PfnRange::new(start, end).known().unwrap_or(PfnRange::EMPTY)
            }
            _ => PfnRange::EMPTY,
        }
    }

    /// The end of the last online pageblock that begins in `within`. Cost: O(regions × levels).
    pub(super) fn last_online(&self, within: PfnRange) -> Option<Pfn> {
        let regions = self.frames.regions().iter();
        let parts =
            regions.filter_map(|region| Some((region, region.range()?.intersection(within))));
        parts.filter_map(|(region, part)| Self::last_online_in(region, part)).max()
    }

    /// The same, for a part of one region.
    fn last_online_in(region: &Region, within: PfnRange) -> Option<Pfn> {
        if within.is_empty() {
            return None;
        }
        let offset = region.offset_of(Pfn::new(within.end().number().checked_sub(1)?)?)?;
        let prev = |index| {
            Zone::ALL.iter().filter_map(|&zone| region.tree(Class::online(zone)).prev(index)).max()
        };
        let mut index = prev(offset / SECTION_FRAMES)?;
        loop {
            // Acquire: the words that came with being online.
            let online = region.section(index)?.online.load(Ordering::Acquire);
            if let Some(bit) = (online & region.mask_of(index, within)).checked_ilog2() {
                let end = index * SECTION_FRAMES + (bit as usize + 1) * PAGEBLOCK_FRAMES;
                return Some(region.pfn_at(end));
            }
            index = prev(index.checked_sub(1)?)?;
            if region.mask_of(index, within) == 0 {
                return None;
            }
        }
    }

    /// Calls `f` for each run of pageblocks of one zone in `range`, with the frames of it that hold
    /// their own sections' descriptors.
    fn for_zone_runs(
        &mut self,
        range: PfnRange,
        mut f: impl FnMut(&mut Zones, usize, NodeId, Zone, PfnRange, u64),
    ) {
        let mut rest = range;
        // A range of whole sections may span regions, and these may lie on several nodes.
        while !rest.is_empty()
            && let Some((slot, _)) = self.frames.find(rest.start()).known()
        {
            let region = &self.frames.slots()[slot];
            let node = region.node();
            let here = region.range().map_or(rest, |region| rest.intersection(region));
            let (zone, run) = self.zone_run(here);
            let own = self.frames.kept_in(run);
            f(&mut self.zones, slot, node, zone, run, own);
            rest = rest.split_at(run.end()).1;
        }
    }

    /// The zone that the `movable` bits name at the start of `range`, and how far it reaches.
    pub(super) fn zone_run(&self, range: PfnRange) -> (Zone, PfnRange) {
        let mut zone = None;
        let mut end = range.start();
        'sections: for piece in range.sections() {
            // What comes next may be another region's.
            let Some((slot, index, blocks)) = self.frames.word_of(piece) else { break };
            let Some(section) = self.frames.section(slot, index).known() else { break };
            self.zones.probes.add(1);
            let movable = blocks & section.zone_mask(Zone::Movable);
            if movable == 0 || movable == blocks {
                let here = if movable == 0 { Zone::Kernel } else { Zone::Movable };
                if *zone.get_or_insert(here) != here {
                    break;
                }
                end = piece.end();
                continue;
            }
            for block in piece.chunks(PAGEBLOCK_FRAMES as u64) {
                self.zones.probes.add(1);
                let here = self.frames.block_of(block.start()).map_or(Zone::Kernel, |b| b.zone());
                if *zone.get_or_insert(here) != here {
                    break 'sections;
                }
                end = block.end();
            }
        }
        let end = if end == range.start() { range.end() } else { end };
        (zone.unwrap_or(Zone::Kernel), PfnRange::new(range.start(), end).known().unwrap_or(range))
    }

    /// The sections of `range`: region and number.
    fn region_words(&self, range: PfnRange) -> impl Iterator<Item = (&Region, usize)> {
        let frames = self.frames;
        frames.words_of(range).map(move |(slot, index, _)| (&frames.slots()[slot], index))
    }
}

/// The state of memory that is online in `zone`.
impl From<Zone> for State {
    fn from(zone: Zone) -> State {
        match zone {
            Zone::Kernel => State::Online,
            Zone::Movable => State::OnlineMovable,
        }
    }
}
