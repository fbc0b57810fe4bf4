//! Finds RAM, reserved frames and regions in the boot map, whose ranges may be unsorted,
//! overlapping and unaligned. Where RAM and reserved ranges overlap, the frames are reserved.

use super::boot_map::{BootError, BootMap, BootRange};
use crate::addr::{Bytes, Pfn, PfnRange};
use crate::frames::{WORD_RESERVE, bitmap_frames, cpu_frames};
use crate::geometry::{FRAME_SHIFT, FRAME_SIZE, GROUP_FRAMES, PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::invariant::OrRecordViolation;
use crate::outlined::Outlined;
use crate::words::REACHABLE_END;
use crate::words::{NodeId, NodeIndex, SectionWords, TooManyNodes};

/// The boot map. It is small, so each query reads all of it.
#[derive(Clone, Copy)]
pub(super) struct FirmwareMap<'a> {
    map: BootMap<'a>,
    /// The frames that are reserved for the engine.
    metadata: PfnRange,
}

impl<'a> FirmwareMap<'a> {
    /// Checks that all RAM lies within the physical limit and in `mappable_range`. Ranges of RAM
    /// without a whole frame, and all that is reserved or names a node beyond the limit, have no
    /// effect.
    pub(super) fn new(
        map: &BootMap<'a>,
        mappable_range: PfnRange,
    ) -> Result<FirmwareMap<'a>, BootError> {
        let reachable = mappable_range.split_at(REACHABLE_END).0;
        for &range in map.ram {
            let Some(end) = range.start.checked_add(range.len.0) else {
                return Err(BootError::BeyondPhysicalLimit(range));
            };
            if end >> FRAME_SHIFT <= range.start.div_ceil(FRAME_SIZE) {
                continue;
            }
            if end > Pfn::LIMIT.phys_addr() {
                return Err(BootError::BeyondPhysicalLimit(range));
            }
            if !whole_frames(&range).is_some_and(|frames| reachable.covers(frames)) {
                return Err(BootError::Unreachable(range));
            }
        }
        Ok(FirmwareMap { map: *map, metadata: PfnRange::EMPTY })
    }

    /// Returns the number of CPUs.
    pub(super) fn cpus(&self) -> u32 {
        self.map.cpus
    }

    /// Returns the same map, except that `metadata` is reserved for the engine.
    pub(super) fn with_metadata(self, metadata: PfnRange) -> FirmwareMap<'a> {
        FirmwareMap { metadata, ..self }
    }

    /// Returns the ranges of RAM, without frames that are only partly RAM.
    fn ram(&self) -> impl Iterator<Item = PfnRange> {
        self.map.ram.iter().filter_map(whole_frames)
    }

    /// Returns the ranges of frames that are reserved. A frame is reserved if any byte of it is.
    fn reserved(&self) -> impl Iterator<Item = PfnRange> {
        let reserved = self.map.reserved.iter().filter(|range| range.len != Bytes::ZERO);
        let reserved = reserved.filter_map(|range| {
            let end = range.start.saturating_add(range.len.0).min(Pfn::LIMIT.phys_addr());
            let first = Pfn::containing(range.start)?;
            PfnRange::new(first, Pfn::new(end.div_ceil(FRAME_SIZE))?)
        });
        reserved.chain([self.metadata]).filter(|range| !range.is_empty())
    }

    /// Returns the first run of RAM in `within`, reserved or not.
    pub(super) fn ram_in(&self, within: PfnRange) -> Option<PfnRange> {
        let ram_parts = || self.ram().map(|ram| ram.intersection(within)).filter(|r| !r.is_empty());
        let start = ram_parts().map(PfnRange::start).min()?;
        let mut end = start;
        while let Some(part) = ram_parts().find(|part| part.start() <= end && part.end() > end) {
            end = part.end();
        }
        PfnRange::new(start, end)
    }

    /// Returns the first run of RAM in `within` that is not reserved.
    pub(super) fn free_in(&self, within: PfnRange) -> Option<PfnRange> {
        let mut remaining = within;
        loop {
            let ram = self.ram_in(remaining)?;
            let mut start = ram.start();
            while let Some(reserved) = self.reserved().find(|range| range.contains(start)) {
                start = reserved.end();
            }
            if start < ram.end() {
                let next = self.reserved().map(PfnRange::start).filter(|&at| at > start).min();
                return PfnRange::new(start, next.map_or(ram.end(), |at| at.min(ram.end())));
            }
            remaining = remaining.split_at(start).1;
        }
    }

    /// Returns the sections in which a pageblock is partly RAM, the lowest first.
    pub(super) fn partial_sections(&self) -> impl Iterator<Item = PfnRange> {
        let mut from = Pfn::ZERO;
        Outlined(core::iter::from_fn(move || {
            let ends = self.ram().flat_map(|ram| [ram.start(), ram.end()]);
            let blocks = ends.filter_map(|end| {
                let start = end.align_down(PAGEBLOCK_FRAMES as u64);
                PfnRange::with_len(start, PAGEBLOCK_FRAMES as u64).filter(|_| start != end)
            });
            let partial = blocks.filter(|&block| self.ram_in(block) != Some(block));
            let first = partial.map(PfnRange::start).filter(|&start| start >= from).min()?;
            let start = first.align_down(SECTION_FRAMES as u64);
            let section = PfnRange::with_len(start, SECTION_FRAMES as u64)?;
            from = section.end();
            Some(section)
        }))
    }

    /// Returns the first run of `within` that is no RAM.
    pub(super) fn not_ram_in(&self, within: PfnRange) -> Option<PfnRange> {
        let mut remaining = within;
        while !remaining.is_empty() {
            match self.ram_in(remaining) {
                None => return Some(remaining),
                Some(ram) if ram.start() > remaining.start() => {
                    return Some(remaining.split_at(ram.start()).0);
                }
                Some(ram) => remaining = remaining.split_at(ram.end()).1,
            }
        }
        None
    }

    /// Returns the regions and their nodes, the lowest region first. A region is a run of
    /// pageblocks of one node that all have RAM: memory that is plugged between two of them is not
    /// boot memory.
    pub(super) fn regions(&self) -> impl Iterator<Item = (PfnRange, NodeId)> {
        let mut from = Pfn::ZERO;
        Outlined(core::iter::from_fn(move || {
            let (region, node) = self.next_region(from)?;
            from = region.end();
            Some((region, node))
        }))
    }

    /// Returns the first region at or above `from`, which is the end of a region or 0.
    fn next_region(&self, from: Pfn) -> Option<(PfnRange, NodeId)> {
        let next = |from: Pfn| {
            let run = self.ram_in(PfnRange::new(from, Pfn::LIMIT)?)?;
            let (node, end) = self.node_at(run.start());
            let run = run.split_at(end).0.align_outward(PAGEBLOCK_FRAMES as u64);
            // The region below may contain the first pageblock already, so start no lower than its
            // end.
            Some((PfnRange::new(run.start().max(from), run.end())?, node))
        };
        let (mut region, node) = next(from)?;
        while let Some((run, next_node)) = next(region.end())
            && next_node == node
            && run.start() == region.end()
        {
            region = PfnRange::new(region.start(), run.end())?;
        }
        Some((region, node))
    }

    /// Returns the regions with the indices of their nodes.
    /// [`place_metadata`](Self::place_metadata) has given each node an index.
    pub(super) fn indexed_regions(
        &self,
        words: &SectionWords,
    ) -> impl Iterator<Item = (PfnRange, NodeIndex)> {
        self.regions().filter_map(|(region, node)| {
            Some((region, words.index_of(node).or_record_violation()?))
        })
    }

    /// Returns the node of a frame, and the end of the memory from there that certainly belongs to
    /// the same node.
    fn node_at(&self, pfn: Pfn) -> (NodeId, Pfn) {
        let round =
            |addr: u64| Pfn::containing(addr).unwrap_or(Pfn::LIMIT).align_up(SECTION_FRAMES as u64);
        let ends = |range: &BootRange| {
            (round(range.start), round(range.start.saturating_add(range.len.0)))
        };
        let node_range = self.map.nodes.iter().find(|(range, _)| {
            let (start, end) = ends(range);
            start <= pfn && pfn < end
        });
        match node_range {
            Some((range, node)) => (*node, ends(range).1),
            None => {
                let next = self.map.nodes.iter().map(|(range, _)| ends(range).0);
                (NodeId::ZERO, next.filter(|&start| start > pfn).min().unwrap_or(Pfn::LIMIT))
            }
        }
    }

    /// Returns whether boot must make the bitmaps of the pageblocks of `group`, which share one
    /// frame of bitmaps. It must if a pageblock of `group` has RAM and is not wholly free. It also
    /// must if a part of the group of pageblocks lies outside the region, and so may be hotplugged:
    /// bitmaps must not lie in hotplugged memory.
    pub(super) fn needs_bitmaps(&self, group: PfnRange) -> bool {
        if group.frames() < GROUP_FRAMES as u64 {
            return true;
        }
        let mut blocks = group.chunks(PAGEBLOCK_FRAMES as u64);
        let all_free = self.free_in(group) == Some(group);
        !all_free
            && blocks.any(|part| {
                let block = part.align_outward(PAGEBLOCK_FRAMES as u64);
                self.ram_in(block).is_some() && self.free_in(block) != Some(block)
            })
    }

    /// Returns free RAM for the records of frames that are no RAM and of CPUs, for the words of all
    /// regions, and for the bitmaps that boot must make. The RAM includes `reserve` frames
    /// more, or at least the word reserve, if enough is free. Gives an index to each region's node.
    pub(super) fn place_metadata(
        &self,
        words: &SectionWords,
        reserve: u64,
    ) -> Result<PfnRange, BootError> {
        let mut nodes = words.assign_indices();
        for (_, node) in self.regions() {
            nodes.assign(node).map_err(|TooManyNodes(node)| BootError::TooManyNodes(node))?;
        }
        let mut needed = bitmap_frames(self.partial_sections().count() as u64);
        needed += cpu_frames(self.map.cpus);
        needed += words.runs_for_words(&mut self.indexed_regions(words)).frames();
        let (mut regions, mut counted_below) = (0, Pfn::ZERO);
        for (region, _) in self.regions() {
            regions += 1;
            for group in region.chunks(GROUP_FRAMES as u64) {
                // Several regions may lie in one group.
                if group.start() >= counted_below && self.needs_bitmaps(group) {
                    needed += 1;
                    counted_below = group.end().align_up(GROUP_FRAMES as u64);
                }
            }
        }
        needed += words.runs_for_list(regions).frames();
        // Groups of pageblocks in which the metadata itself lies need bitmaps too.
        needed += needed / GROUP_FRAMES as u64 + 2;
        if self.ram().next().is_none() {
            return Err(BootError::NoRam);
        }
        if self.free_in(PfnRange::ALL).is_none() {
            return Err(BootError::NoMemory);
        }
        let metadata_range = [reserve, WORD_RESERVE, 0]
            .into_iter()
            .find_map(|reserve| self.find_free_run(needed + reserve));
        let metadata_range =
            metadata_range.ok_or(BootError::NoMetadata(Bytes(needed << FRAME_SHIFT)))?;
        nodes.commit();
        Ok(metadata_range)
    }

    /// Returns the last `frames` frames of the lowest free and mapped run of RAM that has as many.
    /// Takes the last ones because the lowest memory is scarce.
    fn find_free_run(&self, frames: u64) -> Option<PfnRange> {
        let mut remaining = PfnRange::ALL.split_at(self.map.mapped_below).0;
        loop {
            let free = self.free_in(remaining)?;
            if let Some(below) = free.frames().checked_sub(frames) {
                return Some(free.split_at(free.start().checked_add(below)?).1);
            }
            remaining = remaining.split_at(free.end()).1;
        }
    }
}

/// Returns the frames of which all bytes lie in `range`, or `None` if there are none.
fn whole_frames(range: &BootRange) -> Option<PfnRange> {
    let end = range.start.saturating_add(range.len.0).min(Pfn::LIMIT.phys_addr());
    let first = range.start.div_ceil(FRAME_SIZE);
    let end = end >> FRAME_SHIFT;
    (first < end).then(|| PfnRange::new(Pfn::new(first)?, Pfn::new(end)?))?
}
