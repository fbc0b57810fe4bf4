//! Brings boot memory online as the firmware's map describes it, frame by frame.
//!
//! The ranges of the map may be unsorted, overlapping and unaligned. Where RAM and reserved ranges
//! overlap, the frames are reserved. A pageblock that has any frame of RAM goes online. Its frames
//! that are reserved, in use or not RAM count as allocated. The kernel can free the reserved frames
//! later, when it no longer needs them, by [`Frames::free_raw`]. The words are stored in boot memory.

use super::announce::check_region;
use super::firmware_map::FirmwareMap;
use super::holes::Change;
use super::zone_counts::PartRecord;
use super::zone_part::ZonePart;
use super::{BootError, BootMap, Group, Hotplug, State};
use crate::addr::{Pfn, PfnRange};
use crate::frames::{Frames, WORD_RESERVE, bitmap_frames, cpu_frames};
use crate::geometry::{GROUP_FRAMES, SECTION_FRAMES, SECTION_MASK};
use crate::invariant::{OrRecordViolation, check_invariant};
use crate::mapping::{MAX_TABLE_RESERVE, Map};
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::DirectMap;
use crate::words::{FrameSource, FrameSupply, NodeIndex, SectionPart, SectionRef};

impl<'f, P: Platform, M: Map> Hotplug<'f, P, M> {
    /// Starts a machine with its boot memory. Boot memory is present, online for any allocation,
    /// and never removed or unmapped. It can go offline and come online again. A kernel that wants
    /// to remove some of the memory that it finds at boot leaves it out of the map, and adds it
    /// afterwards.
    ///
    /// Cost: O(sections × ranges of the map). The call also zeroes the words (28 KiB for the first
    /// 8 GiB, and 12 KiB for each further 8 GiB) and writes the [records of CPUs](BootMap::cpus).
    /// If 36 KiB more are free, they become the word reserve, and as many frames more as
    /// [`Map::table_reserve`] returns become the table reserve.
    ///
    /// # Safety
    /// `map` is true. All of its RAM is mapped at the [base](Map::base) of `mapping`: RAM below
    /// [`mapped_below`](BootMap::mapped_below) is mapped now, and the rest is mapped before
    /// anything is allocated. RAM that the map does not list as reserved is used by nobody else,
    /// not even by another instance.
    ///
    /// # Errors
    /// [`BootError`].
    pub unsafe fn bootstrap<'m>(
        frames: &'f Frames<P>,
        mapping: M,
        map: impl Into<BootMap<'m>>,
    ) -> Result<Hotplug<'f, P, M>, BootError> {
        let map = map.into();
        let low_end = map.low_end.align_down(SECTION_FRAMES as u64);
        let kernel_map = FirmwareMap::new(&map, mapping.mappable_range())?;
        if !frames.start() {
            return Err(BootError::AlreadyStarted);
        }
        let table_reserve = mapping.table_reserve().min(MAX_TABLE_RESERVE as u64);
        frames.call().set_table_reserve(table_reserve);
        let metadata = kernel_map
            .place_metadata(frames.words(), WORD_RESERVE + table_reserve)
            .inspect_err(|_| frames.stop())?;
        let map = kernel_map.with_metadata(metadata);
        frames.set_direct_map(DirectMap::from_base(mapping.base()));
        frames.call().set_low_end(low_end);
        let mut hotplug = Hotplug::without_memory(frames, mapping);
        let boot_end = map.regions().map(|(region, _)| region.end()).last().unwrap_or(Pfn::ZERO);
        hotplug.zones.set_ends(low_end, boot_end.align_up(SECTION_FRAMES as u64));
        let mut unused = install_not_ram(frames, &kernel_map, metadata)?;
        unused = install_cpus(frames, map.cpus(), unused)?;
        for (region, node) in map.indexed_regions(frames.words()) {
            unused = hotplug.install_region(region, node, unused);
            unused = hotplug.bring_region_online(region, &map, unused)?;
            for part in [ZonePart::Low, ZonePart::Normal] {
                let range = region.intersection(part.bounds(low_end));
                hotplug.account_boot(range, part, node, &kernel_map);
            }
        }
        frames.call().note_metadata(metadata);
        unused =
            frames.call().fill_table_reserve_from(frames.call().fill_word_reserve_from(unused));
        if !unused.is_empty() {
            // These frames are a part of `metadata`, which `bring_region_online` has marked as
            // allocated.
            frames.free_range(unused).or_record_violation();
        }
        frames.call().clear_low_memory_hints(PfnRange::ALL.split_at(boot_end).0);
        Ok(hotplug)
    }

    /// Announces a region, and makes its words at the start of `memory`. Returns the rest of
    /// `memory`.
    fn install_region(&mut self, region: PfnRange, node: NodeIndex, memory: PfnRange) -> PfnRange {
        check_invariant(check_region(region).is_ok() && self.words().overlapping(region).is_none());
        // SAFETY: `place_metadata` found the frames of `memory` in RAM that is mapped and not
        // reserved, and `bring_region_online` marks the frames that become words as allocated
        // permanently. The instance is not in use yet.
        let mut supply = unsafe { FrameSupply::new(self.frames.direct_map(), memory) };
        // `place_metadata` has counted the memory that the words need, so this cannot fail.
        let (words, node_id) = (self.words(), self.words().node_of_index(node));
        let mut source: &mut dyn FrameSource = &mut supply;
        let announced = words
            .make_words(region, node, &mut source)
            .and_then(|()| words.announce(region, node_id, true, &mut source));
        if let Some(index) = announced.or_record_violation() {
            words.set_node(region, node);
            self.set_id_and_properties(index, Group::None, false);
        }
        supply.unused()
    }

    /// Brings a region's RAM online. Takes the frames for bitmaps from the start of `memory`.
    /// Returns the rest of `memory`.
    fn bring_region_online(
        &mut self,
        region: PfnRange,
        map: &FirmwareMap<'_>,
        mut memory: PfnRange,
    ) -> Result<PfnRange, BootError> {
        for section_range in region.chunks(SECTION_FRAMES as u64) {
            let part = self.frames.words().section_part(section_range).or_record_violation();
            let Some(SectionPart { section, blocks }) = part else { continue };
            let call = self.frames.call();
            for group in section_range.chunks(GROUP_FRAMES as u64) {
                let first = section.mask_of(group).trailing_zeros() as usize;
                // The region below may have made the bitmaps already.
                let is_missing = || section.bitmaps.pointer_of(first).load().0.is_null();
                if map.needs_bitmaps(group) && is_missing() {
                    let (bitmaps, remaining) = split_frames(memory, 1)?;
                    self.frames.call().install_bitmaps(section, first, bitmaps.start(), false);
                    memory = remaining;
                }
            }
            // Handle a section that is wholly free RAM in one step: nearly every section is.
            if map.free_in(section_range) == Some(section_range) {
                // Relaxed: later steps publish these bits.
                section.present.fetch_or(blocks, Ordering::Relaxed);
                section.online.fetch_or(blocks, Ordering::Relaxed);
                call.publish_blocks(section, blocks);
                continue;
            }
            let mut free = 0;
            for block in section.blocks(SECTION_MASK) {
                let range = block.range();
                // Skip a pageblock outside the region, because it may be hotplugged later, and a
                // pageblock without RAM.
                if !section_range.covers(range) || map.ram_in(range).is_none() {
                    continue;
                }
                // Relaxed: later steps publish these bits.
                section.present.fetch_or(block.mask(), Ordering::Relaxed);
                section.online.fetch_or(block.mask(), Ordering::Relaxed);
                if map.free_in(range) == Some(range) {
                    free |= block.mask();
                } else {
                    call.divide_as_taken(block);
                }
            }
            if free != 0 {
                call.publish_blocks(section, free);
            }
            drop(call);
            self.free_partial(section_range, free, section, map);
        }
        Ok(memory)
    }

    /// Adds the memory of `region` that has come online at boot to the statistics of its zone.
    /// `kernel_map` is the map without the engine's metadata: frames of metadata count as allocated, not
    /// as reserved.
    fn account_boot(
        &mut self,
        region: PfnRange,
        part: ZonePart,
        node: NodeIndex,
        kernel_map: &FirmwareMap<'_>,
    ) {
        let count_frames = |next: &dyn Fn(PfnRange) -> Option<PfnRange>| {
            let mut remaining = region;
            let mut frames = 0;
            while let Some(run) = next(remaining) {
                frames += run.frames();
                remaining = remaining.split_at(run.end()).1;
            }
            frames
        };
        let ram = count_frames(&|remaining| kernel_map.ram_in(remaining));
        let reserved = ram - count_frames(&|remaining| kernel_map.free_in(remaining));
        let mut online = 0;
        let mut remaining = region;
        while !remaining.is_empty() {
            let (run, state) = self.state_at(remaining.start(), remaining.end());
            if state == State::Online {
                online += run.frames();
                self.grow_zones(run);
            }
            remaining = remaining.split_at(run.end()).1;
        }
        self.mark_holes(region, kernel_map);
        self.count_holes(region, Change::Online);
        self.frames.count_allocated(reserved);
        PartRecord::change(self.words(), node, part, |record| {
            record.holes += online - ram;
        });
    }

    /// Marks as holes the pageblocks without RAM in those sections of `region` that have RAM, and
    /// records the frames of other pageblocks that are no RAM.
    fn mark_holes(&self, region: PfnRange, map: &FirmwareMap<'_>) {
        for SectionPart { section, .. } in self.section_parts(region) {
            let range = section.range();
            if map.ram_in(range).is_none_or(|ram| ram == range) {
                continue;
            }
            for block in section.blocks(SECTION_MASK) {
                if map.ram_in(block.range()).is_none() {
                    block.state().set_hole();
                    continue;
                }
                let mut remaining = block.range();
                while let Some(run) = map.not_ram_in(remaining) {
                    self.frames.call().record_not_ram(run);
                    remaining = remaining.split_at(run.end()).1;
                }
            }
        }
    }

    /// Frees the frames of `section_range` that are free in the map, except in the pageblocks
    /// `published`, which are wholly free and were published already.
    fn free_partial(
        &mut self,
        section_range: PfnRange,
        published: u64,
        section: SectionRef<'_>,
        map: &FirmwareMap<'_>,
    ) {
        for block in section.blocks(SECTION_MASK & !published) {
            let mut remaining = block.range().intersection(section_range);
            while let Some(run) = map.free_in(remaining) {
                // `bring_region_online` has marked these frames as allocated.
                self.frames.free_range(run).or_record_violation();
                remaining = remaining.split_at(run.end()).1;
            }
        }
    }
}

/// Installs the record of the frames that are no RAM, in pageblocks that are partly RAM, at the start
/// of `memory`. Returns the rest of `memory`.
fn install_not_ram<P: Platform>(
    frames: &Frames<P>,
    kernel_map: &FirmwareMap<'_>,
    memory: PfnRange,
) -> Result<PfnRange, BootError> {
    let needed = bitmap_frames(kernel_map.partial_sections().count() as u64);
    let (first_frames, remaining) = split_frames(memory, needed)?;
    let pointer = frames.direct_map().pointer(first_frames.start());
    // SAFETY: `place_metadata` found the frames of `memory` in RAM that is mapped and not reserved,
    // and `bring_region_online` marks them as allocated permanently. `first_frames` has as many
    // frames as these sections need, and `pointer` is aligned to 4 KiB. The instance is not in use
    // yet.
    unsafe { frames.install_not_ram(&mut kernel_map.partial_sections(), pointer) };
    Ok(remaining)
}

/// Installs the records of the CPUs at the start of `memory`. Returns the rest of `memory`.
fn install_cpus<P: Platform>(
    frames: &Frames<P>,
    cpus: u32,
    memory: PfnRange,
) -> Result<PfnRange, BootError> {
    let (first_frames, remaining) = split_frames(memory, cpu_frames(cpus))?;
    let pointer = frames.direct_map().pointer(first_frames.start());
    // SAFETY: `place_metadata` found the frames of `memory` in RAM that is mapped and not reserved,
    // and `bring_region_online` marks them as allocated permanently. `first_frames` has as many
    // frames as these records need. The instance is not in use yet.
    unsafe { frames.install_cpus(cpus, pointer) };
    Ok(remaining)
}

/// Returns the first `frames` frames of `memory`, and the rest. `place_metadata` has counted this many
/// frames, so this cannot fail. If it does, the boot must end: the caller would write to frames that
/// are not metadata.
fn split_frames(memory: PfnRange, frames: u64) -> Result<(PfnRange, PfnRange), BootError> {
    let first = PfnRange::with_len(memory.start(), frames).filter(|&first| memory.covers(first));
    let first = first.or_record_violation().ok_or(BootError::NoMemory)?;
    Ok((first, memory.split_at(first.end()).1))
}
