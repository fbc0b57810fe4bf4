//! The first memory: the firmware's map, at frame grain.
//!
//! The map may come in any order, overlap and be unaligned; what is reserved wins over what is RAM.
//! A pageblock with any frame of RAM goes online; frames of it that are reserved, in use or no RAM
//! at all are simply taken, and what was reserved can be freed later, when the kernel is done with
//! it. The words lie in the RAM itself.

use super::announce::check_new;
use super::nodes::too_many;
use super::zone_counts::Kept;
use super::zone_part::ZonePart;
use super::{Group, Hotplug, State};
use crate::addr::{Bytes, Pfn, PfnRange};
use crate::frames::{Frames, WORD_RESERVE, bitmap_frames};
use crate::geometry::{FRAME_SHIFT, FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_MASK};
use crate::known::{Known, holds};
use crate::mapping::Mapping;
use crate::platform::{DirectMap, Platform, REACHABLE};
use crate::sync::Ordering;
use crate::words::{Block, Lent, NodeId, NodeIndex, Part, SectionRef, TooManyNodes, Words};
use core::fmt;
use core::ops::Range;

/// Holes up to this many frames (32 GiB) do not start another region: their words cost 60 KiB.
const LARGEST_HOLE: u64 = 256 * SECTION_FRAMES as u64;

/// Bytes of physical memory, as firmware describes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootRange {
    /// Physical address of the first byte.
    pub start: u64,
    /// How many.
    pub len: Bytes,
}

/// The bytes at these physical addresses, the end excluded; none if it lies below the start.
impl From<Range<u64>> for BootRange {
    fn from(Range { start, end }: Range<u64>) -> BootRange {
        BootRange { start, len: Bytes(end.saturating_sub(start)) }
    }
}

/// The memory that a kernel finds at boot.
#[derive(Clone, Copy, Debug)]
pub struct BootMap<'a> {
    /// Usable RAM (e820 type 1), in any order. Frames that are only partly in a range are left out.
    pub ram: &'a [BootRange],
    /// What is in use or must not be used: the kernel's image, its command line, tables, firmware.
    /// Frames that are only partly in a range are reserved.
    pub reserved: &'a [BootRange],
    /// Which memory belongs to which NUMA node (SRAT), in any order. What is in none belongs to
    /// node 0. Boundaries are rounded up to sections (128 MiB).
    pub nodes: &'a [(BootRange, NodeId)],
    /// The engine's own words must lie below this: the end of what the direct map covers already.
    pub mapped_below: Pfn,
    /// Where low memory ends, rounded down to a section (128 MiB): memory that every device can
    /// address, 4 GiB on a PC. Kernel memory below it is counted apart, so that the zone that grows
    /// does not span the holes there, and requests without a [bound](crate::AllocRequest::below)
    /// use it last (but for what a CPU has just freed). Zero: there is no low memory.
    pub low_end: Pfn,
}

impl<'a> BootMap<'a> {
    /// This RAM, nothing reserved, one node, all of it mapped, none of it low.
    #[must_use]
    pub const fn of_ram(ram: &'a [BootRange]) -> BootMap<'a> {
        let (mapped_below, low_end) = (Pfn::LIMIT, Pfn::ZERO);
        BootMap { ram, reserved: &[], nodes: &[], mapped_below, low_end }
    }
}

/// Why a machine could not be started. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BootError {
    /// It has been started before.
    AlreadyStarted,
    /// A range wraps or lies beyond the 52 bits of a physical address.
    BeyondPhysicalLimit(BootRange),
    /// This RAM ends above what pointers of this target can reach, 4 GiB where they have 32 bits,
    /// or outside the [reach](Mapping::reach) of the kernel's mapping.
    Unreachable(BootRange),
    /// There is no frame of RAM that is not reserved.
    NoMemory,
    /// This node would be one more than the [`MAX_NODES`](crate::MAX_NODES) that a machine can
    /// have.
    TooManyNodes(NodeId),
    /// No free RAM below `mapped_below` is large enough for the words.
    NoMetadata(Bytes),
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Starts a machine with its boot memory: present, online for anything, never removed.
    ///
    /// Cost: O(sections × ranges of the map); the words (28 KiB for the first 8 GiB, and 12 KiB for
    /// each further 8 GiB) are zeroed. 36 KiB are kept for further words if there is room for them.
    ///
    /// # Safety
    /// `map` is true: all of its RAM is mapped at the [base](Mapping::base) of `mapping`, below
    /// [`mapped_below`](BootMap::mapped_below) now and the rest before anything is allocated, and
    /// what it does not list as reserved is used by nobody else, another machine included.
    ///
    /// # Errors
    /// [`BootError`].
    pub unsafe fn bootstrap(
        frames: &'f Frames<P>,
        mapping: M,
        map: &BootMap<'_>,
    ) -> Result<Hotplug<'f, P, M>, BootError> {
        let low_end = map.low_end.align_down(SECTION_FRAMES as u64);
        let map = Map::check(map, mapping.reach())?;
        if !frames.start() {
            return Err(BootError::AlreadyStarted);
        }
        let metadata = map.place_metadata(frames.words()).inspect_err(|_| frames.stop())?;
        let map = Map { metadata, ..map };
        frames.set_direct_map(DirectMap::from_base(mapping.base()));
        frames.set_low_end(low_end);
        let mut hotplug = Hotplug::without_memory(frames, mapping);
        let boot_end = map.regions().map(|(region, _)| region.end()).max().unwrap_or(Pfn::ZERO);
        hotplug.zones.set_ends(low_end, boot_end.align_up(SECTION_FRAMES as u64));
        let mut unused = map.install_reserved(frames, metadata);
        for (region, node) in map.indexed_regions(frames.words()) {
            unused = hotplug.install(region, node, unused);
            unused = hotplug.fill(region, &map, unused);
            for part in [ZonePart::Low, ZonePart::Kernel] {
                let side = region.intersection(part.bounds(low_end));
                hotplug.account_boot(side, part, node, &map);
            }
        }
        unused = frames.fill_word_reserve_from(unused);
        if !unused.is_empty() {
            // Taken by `fill` as a part of `metadata`.
            frames.free_range(unused).known();
        }
        frames.leave_low_memory(PfnRange::ALL.split_at(boot_end).0);
        Ok(hotplug)
    }

    /// Announces a region whose words lie at the start of `memory`; returns the rest.
    fn install(&mut self, region: PfnRange, node: NodeIndex, memory: PfnRange) -> PfnRange {
        holds(check_new(self.frames, region).is_ok());
        // SAFETY: `place_metadata` found these frames in RAM that is mapped and not reserved, and
        // `fill` marks those that become words as taken for good; the machine is not in use yet.
        let mut supply = unsafe { Lent::new(self.frames.direct_map(), memory) };
        // `place_metadata` has counted what the words need.
        let (words, name) = (self.words(), self.words().node_named(node));
        let announced = words
            .make(region, node, &mut supply)
            .and_then(|()| words.announce(region, name, true, &mut supply));
        if let Some(index) = announced.known() {
            words.set_node(region, node);
            self.name_region(index, Group::None);
        }
        supply.rest()
    }

    /// Brings a region's RAM online. Takes frames for bitmaps from `memory`; returns the rest.
    fn fill(&mut self, region: PfnRange, map: &Map<'_>, mut memory: PfnRange) -> PfnRange {
        for piece in region.sections() {
            let part = self.frames.words().part_of(piece).known();
            let Some(Part { section, blocks }) = part else { continue };
            let mut moves = self.frames.no_moves_yet();
            if map.needs_bitmaps(piece) {
                let (bitmaps, rest) = split_frames(memory, 1);
                self.frames.set_bitmaps(section, bitmaps.start());
                memory = rest;
            }
            // Nearly every section is free RAM throughout.
            if map.free_in(piece) == Some(piece) {
                // Relaxed: published by what follows.
                section.present.fetch_or(blocks, Ordering::Relaxed);
                section.online.fetch_or(blocks, Ordering::Relaxed);
                self.frames.show_free(section, blocks, &mut moves);
                continue;
            }
            let mut free = 0;
            for block in section.blocks(SECTION_MASK) {
                let Some(all) = frames_of(&block).known() else { continue };
                // The rest of the section may be hotplugged.
                if !piece.covers(all) || map.ram_in(all).is_none() {
                    continue;
                }
                // Relaxed: see above.
                section.present.fetch_or(block.mask(), Ordering::Relaxed);
                section.online.fetch_or(block.mask(), Ordering::Relaxed);
                if map.free_in(all) == Some(all) {
                    free |= block.mask();
                } else {
                    self.frames.set_taken(&block);
                }
            }
            if free != 0 {
                self.frames.show_free(section, free, &mut moves);
            }
            moves.end();
            self.free_partial(piece, free, section, map);
        }
        memory
    }

    /// The zones learn of the part of a region that has come online at boot.
    fn account_boot(&mut self, region: PfnRange, part: ZonePart, node: NodeIndex, map: &Map<'_>) {
        let sum = |next: &dyn Fn(PfnRange) -> Option<PfnRange>| {
            let mut rest = region;
            let mut frames = 0;
            while let Some(run) = next(rest) {
                frames += run.frames();
                rest = rest.split_at(run.end()).1;
            }
            frames
        };
        // What the engine keeps for itself it has from the allocator, as it will have more.
        let given = Map { metadata: PfnRange::EMPTY, ..*map };
        let ram = sum(&|rest| given.ram_in(rest));
        let reserved: u64 = given.reserved_ram(region).map(|run| self.frames.reserve(run)).sum();
        let mut online = 0;
        let mut rest = region;
        while !rest.is_empty() {
            let (run, state) = self.state_at(rest.start(), rest.end());
            if state == State::Online {
                online += run.frames();
                self.grow_zones(run);
            }
            rest = rest.split_at(run.end()).1;
        }
        self.mark_holes(region, map);
        self.holes_at_boot(region);
        Kept::change(self.words(), node, part, |kept| {
            kept.holes += online - ram;
            kept.unmanaged += reserved;
        });
    }

    /// Marks the pageblocks without RAM in the sections of `region` that have some.
    fn mark_holes(&self, region: PfnRange, map: &Map<'_>) {
        for Part { section, .. } in self.parts(region) {
            let all = section.range();
            if map.ram_in(all).is_none_or(|ram| ram == all) {
                continue;
            }
            for block in section.blocks(SECTION_MASK) {
                if frames_of(&block).is_some_and(|frames| map.ram_in(frames).is_none()) {
                    block.state.set_hole();
                }
            }
        }
    }

    /// Frees the free frames of a section's pageblocks that are not wholly free.
    fn free_partial(
        &mut self,
        piece: PfnRange,
        whole: u64,
        section: SectionRef<'_>,
        map: &Map<'_>,
    ) {
        for block in section.blocks(SECTION_MASK & !whole) {
            let mut rest = frames_of(&block).known().unwrap_or(PfnRange::EMPTY).intersection(piece);
            while let Some(run) = map.free_in(rest) {
                // Marked as taken by `fill`.
                self.frames.free_range(run).known();
                rest = rest.split_at(run.end()).1;
            }
        }
    }
}

fn frames_of(block: &Block<'_>) -> Option<PfnRange> {
    PfnRange::with_len(block.start(), PAGEBLOCK_FRAMES as u64)
}

/// The first `frames` frames of `memory`, and the rest.
fn split_frames(memory: PfnRange, frames: u64) -> (PfnRange, PfnRange) {
    let (first, rest) = memory.split_at(memory.start().checked_add(frames).unwrap_or(Pfn::LIMIT));
    // As many as `place_metadata` has counted, or else nothing may be written there.
    assert!(first.frames() == frames, "boot metadata was counted wrongly");
    (first, rest)
}

/// The boot map as questions; it is small, so each walks all of it.
struct Map<'a> {
    ram: &'a [BootRange],
    reserved: &'a [BootRange],
    nodes: &'a [(BootRange, NodeId)],
    mapped_below: Pfn,
    metadata: PfnRange,
}

impl<'a> Map<'a> {
    fn check(map: &BootMap<'a>, reach: PfnRange) -> Result<Map<'a>, BootError> {
        let nodes = map.nodes.iter().map(|(range, _)| range);
        for &range in map.ram.iter().chain(map.reserved).chain(nodes) {
            let end = range.start.checked_add(range.len.0);
            if end.is_none_or(|end| end > Pfn::LIMIT.phys_addr()) {
                return Err(BootError::BeyondPhysicalLimit(range));
            }
        }
        let end = REACHABLE.min(reach.end()).phys_addr();
        let beyond = |range: &&BootRange| {
            range.start < reach.start().phys_addr() || range.start + range.len.0 > end
        };
        if let Some(&range) = map.ram.iter().find(beyond) {
            return Err(BootError::Unreachable(range));
        }
        let BootMap { ram, reserved, nodes, mapped_below, .. } = *map;
        Ok(Map { ram, reserved, nodes, mapped_below, metadata: PfnRange::EMPTY })
    }

    /// Whole frames of RAM.
    fn ram(&self) -> impl Iterator<Item = PfnRange> {
        self.ram.iter().filter_map(|range| {
            let first = range.start.div_ceil(FRAME_SIZE);
            let end = (range.start + range.len.0) >> FRAME_SHIFT;
            PfnRange::new(Pfn::new(first)?, Pfn::new(end)?).filter(|range| !range.is_empty())
        })
    }

    /// Frames that are reserved in any part.
    fn reserved(&self) -> impl Iterator<Item = PfnRange> {
        let given = self.reserved.iter().filter(|range| range.len != Bytes::ZERO);
        let given = given.filter_map(|range| {
            let first = range.start >> FRAME_SHIFT;
            let end = (range.start + range.len.0).div_ceil(FRAME_SIZE);
            PfnRange::new(Pfn::new(first)?, Pfn::new(end)?)
        });
        given.chain([self.metadata]).filter(|range| !range.is_empty())
    }

    /// The first run of RAM in `within`, reserved or not.
    fn ram_in(&self, within: PfnRange) -> Option<PfnRange> {
        let parts = || self.ram().map(|ram| ram.intersection(within)).filter(|r| !r.is_empty());
        let start = parts().map(PfnRange::start).min()?;
        let mut end = start;
        while let Some(further) =
            parts().filter(|r| r.start() <= end && r.end() > end).map(PfnRange::end).max()
        {
            end = further;
        }
        PfnRange::new(start, end)
    }

    /// The first run of RAM in `within` that is not reserved.
    fn free_in(&self, within: PfnRange) -> Option<PfnRange> {
        let mut rest = within;
        loop {
            let ram = self.ram_in(rest)?;
            let mut start = ram.start();
            while let Some(over) = self.reserved().find(|reserved| reserved.contains(start)) {
                start = over.end();
            }
            if start < ram.end() {
                let next = self.reserved().map(PfnRange::start).filter(|&at| at > start).min();
                return PfnRange::new(start, next.map_or(ram.end(), |at| at.min(ram.end())));
            }
            rest = rest.split_at(start).1;
        }
    }

    /// The runs of RAM in `within` that are reserved. They may overlap.
    fn reserved_ram(&self, within: PfnRange) -> impl Iterator<Item = PfnRange> {
        self.reserved().flat_map(move |reserved| {
            let mut rest = reserved.intersection(within);
            core::iter::from_fn(move || {
                let run = self.ram_in(rest)?;
                rest = rest.split_at(run.end()).1;
                Some(run)
            })
        })
    }

    /// The sections that have reserved RAM, lowest first.
    fn reserved_sections(&self) -> impl Iterator<Item = PfnRange> {
        let mut last = None;
        let pieces = self.regions().flat_map(|(region, _)| region.sections());
        let sections = pieces.map(|piece| piece.align_outward(SECTION_FRAMES as u64));
        // Two regions may have a part of the same.
        let sections = sections.filter(move |&section| last.replace(section) != Some(section));
        sections.filter(|&section| self.reserved_ram(section).next().is_some())
    }

    /// Makes room at the start of `memory` for which RAM is reserved; returns the rest.
    fn install_reserved<P: Platform>(&self, frames: &Frames<P>, memory: PfnRange) -> PfnRange {
        let given = Map { metadata: PfnRange::EMPTY, ..*self };
        let needed = bitmap_frames(given.reserved_sections().count() as u64);
        let (taken, rest) = split_frames(memory, needed);
        let pointer = frames.direct_map().pointer(taken.start());
        // SAFETY: `place_metadata` found these frames in RAM that is mapped and not reserved, and
        // `fill` marks them as taken for good; they are as many as these sections need, aligned to
        // 4 KiB; the machine is not in use yet.
        unsafe { frames.install_reserved(given.reserved_sections(), pointer) };
        rest
    }

    /// RAM of one node that lies close together, as whole pageblocks, from the bottom up.
    fn regions(&self) -> impl Iterator<Item = (PfnRange, NodeId)> {
        let mut from = Some(Pfn::ZERO);
        core::iter::from_fn(move || {
            let next = |from: Pfn| {
                let run = self.ram_in(PfnRange::new(from, Pfn::LIMIT)?)?;
                let (node, end) = self.node_at(run.start());
                let run = run.split_at(end).0.align_outward(PAGEBLOCK_FRAMES as u64);
                // The pageblock may have been begun by what lies below.
                Some((PfnRange::new(run.start().max(from), run.end())?, node))
            };
            let (mut region, node) = next(from?)?;
            loop {
                from = Some(region.end());
                match next(region.end()) {
                    Some((run, its_node))
                        if its_node == node
                            && run.start().number() - region.end().number() <= LARGEST_HOLE =>
                    {
                        region = PfnRange::new(region.start(), run.end())?;
                    }
                    _ => return Some((region, node)),
                }
            }
        })
    }

    /// The same, with the indices of nodes that were named.
    fn indexed_regions(&self, words: &Words) -> impl Iterator<Item = (PfnRange, NodeIndex)> {
        self.regions().filter_map(|(region, node)| Some((region, words.index_of(node).known()?)))
    }

    /// The node of a frame, and how far up it is known to reach.
    fn node_at(&self, pfn: Pfn) -> (NodeId, Pfn) {
        let round =
            |addr: u64| Pfn::containing(addr).unwrap_or(Pfn::LIMIT).align_up(SECTION_FRAMES as u64);
        let ends = |range: &BootRange| (round(range.start), round(range.start + range.len.0));
        let found = self.nodes.iter().find(|(range, _)| {
            let (start, end) = ends(range);
            start <= pfn && pfn < end
        });
        match found {
            Some((range, node)) => (*node, ends(range).1),
            None => {
                let next = self.nodes.iter().map(|(range, _)| ends(range).0);
                (NodeId::ZERO, next.filter(|&start| start > pfn).min().unwrap_or(Pfn::LIMIT))
            }
        }
    }

    /// Whether a part of a section has RAM that is not in wholly free pageblocks, or the rest of
    /// the section may be hotplugged: the bitmaps must not lie in what is hotplugged.
    fn needs_bitmaps(&self, section: PfnRange) -> bool {
        if section.frames() < SECTION_FRAMES as u64 {
            return true;
        }
        let mut blocks = section.chunks(PAGEBLOCK_FRAMES as u64);
        let plain = self.free_in(section) == Some(section);
        !plain
            && blocks.any(|part| {
                let all = part.align_outward(PAGEBLOCK_FRAMES as u64);
                self.ram_in(all).is_some() && self.free_in(all) != Some(all)
            })
    }

    /// Where the words of all regions go, the bitmaps of the sections that need them at once, and
    /// the reserve for further words, if there is room for it.
    /// Names the regions' nodes.
    fn place_metadata(&self, words: &Words) -> Result<PfnRange, BootError> {
        let mut nodes = words.naming();
        for (_, node) in self.regions() {
            nodes.name(node).map_err(|TooManyNodes(node)| BootError::TooManyNodes(node))?;
        }
        let mut needed = bitmap_frames(self.reserved_sections().count() as u64);
        needed += words.missing_for(self.indexed_regions(words)).frames();
        needed += words.missing_for_list(self.regions().count()).frames();
        for (region, _) in self.regions() {
            needed += region.sections().filter(|&s| self.needs_bitmaps(s)).count() as u64;
        }
        // The words themselves take parts of sections that may have needed no bitmaps before.
        needed += needed / SECTION_FRAMES as u64 + 2;
        if self.free_in(PfnRange::ALL).is_none() {
            return Err(BootError::NoMemory);
        }
        let place = self.place(needed + WORD_RESERVE).or_else(|| self.place(needed));
        let place = place.ok_or(BootError::NoMetadata(Bytes(needed << FRAME_SHIFT)))?;
        nodes.keep();
        Ok(place)
    }

    /// The lowest free and mapped memory that has so many frames in a row: the last of these, since
    /// low memory is scarce.
    fn place(&self, frames: u64) -> Option<PfnRange> {
        let mut rest = PfnRange::ALL.split_at(self.mapped_below).0;
        loop {
            let free = self.free_in(rest)?;
            if let Some(below) = free.frames().checked_sub(frames) {
                return Some(free.split_at(free.start().checked_add(below)?).1);
            }
            rest = rest.split_at(free.end()).1;
        }
    }
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::AlreadyStarted => f.write_str("the machine has been started before"),
            BootError::BeyondPhysicalLimit(range) => {
                write!(f, "{} at {:#x} lie beyond the physical limit", range.len, range.start)
            }
            BootError::Unreachable(range) => {
                write!(f, "{} at {:#x} cannot be mapped", range.len, range.start)
            }
            BootError::NoMemory => f.write_str("no RAM that is not reserved"),
            BootError::TooManyNodes(node) => too_many(f, *node),
            BootError::NoMetadata(bytes) => write!(f, "no {bytes} of mapped RAM for the words"),
        }
    }
}

impl core::error::Error for BootError {}
