//! Defines the model: the state of every frame and every pageblock.

use crate::descriptors::{DescriptorPlace, DescriptorPolicy};
use crate::listeners::Listeners;
use crate::words::Words;
use fastrand::Rng;
use hotmem::{BootRange, Frames, Group, NodeId, Pfn, PfnRange, RegionId};
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, SECTION, numbers, pfn, range};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// The number of sections of the instance's memory.
pub(crate) const SECTIONS: u64 = match (cfg!(miri), cfg!(hotmem_geometry = "small")) {
    (true, _) => 10,
    (_, true) => 24,
    (_, false) => 6,
};
/// The number of sections that boot memory lies in: the first sections of the instance's memory.
pub(crate) const BOOT_SECTIONS: u64 = SECTIONS / 5;
/// The number of frames of the instance's memory.
pub(crate) const SIZE: u64 = SECTIONS * SECTION;
/// Whether the instance is compared with the model after every operation. A large instance is compared
/// only after some operations.
pub(crate) const CHECK_EVERY_OPERATION: bool = cfg!(hotmem_geometry = "small") && !cfg!(miri);

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameState {
    /// The frame is free if its pageblock is online; otherwise this value has no meaning.
    Free,
    Used(Tag),
    /// The frame holds metadata of the engine.
    Metadata,
    /// The frame holds descriptors of the section that it lies in.
    Descriptors,
    /// The frame is not RAM.
    Hole,
    /// The frame is poisoned, and is never allocated again.
    Poisoned,
}

impl FrameState {
    /// Returns whether the frame can be removed as it is, without a migration.
    pub(crate) fn is_removable(self) -> bool {
        matches!(self, FrameState::Free | FrameState::Poisoned | FrameState::Descriptors)
    }
}

/// The owner of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag {
    pub owner: u64,
    pub movable: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub id: RegionId,
    pub range: PfnRange,
    pub node: NodeId,
    pub group: Group,
    pub nodes_vary: bool,
}

/// The state of a pageblock.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Block {
    pub is_announced: bool,
    /// Whether the pageblock is boot memory, which is never removed.
    pub is_boot: bool,
    /// The node of the pageblock, while it is present or being added.
    pub node: NodeId,
    pub is_present: bool,
    pub device: bool,
    pub online: bool,
    pub movable: bool,
    pub is_reported: bool,
    /// The number of offline requests in progress that the kernel has agreed to.
    pub agreed_requests: u32,
    /// Of these requests, the number whose isolated memory an allocation has taken back. The kernel
    /// is told when they are polled.
    pub recalled_requests: u32,
    /// Whether an isolation token of the test holds the pageblock.
    pub token: bool,
    /// Whether the host has the pageblock in a report that is not acknowledged.
    pub reporting: bool,
    /// Whether a removal or an addition of the pageblock is prepared, but not committed.
    pub has_prepared_change: bool,
    pub mapped: bool,
    /// Whether the pageblock was added as zero, and was neither online nor being removed since.
    pub is_new_zero: bool,
    /// Whether the kernel has agreed that the pageblock goes online, but it is not online yet.
    pub going_online: bool,
    /// The value of `movable` before the kernel agreed that the pageblock goes online.
    pub was_movable: bool,
    /// The place of the pageblock's descriptors, while it is RAM with descriptors.
    pub descriptor_place: Option<DescriptorPlace>,
}

impl Block {
    /// Returns whether the pageblock is present, device memory, or being added or removed.
    pub(crate) fn is_in_use(&self) -> bool {
        self.is_present || self.device || self.has_prepared_change
    }

    pub(crate) fn is_held(&self) -> bool {
        self.token || self.reporting || self.agreed_requests > self.recalled_requests
    }
}

/// The owner of memory that boot reserved.
pub(crate) const BOOT_OWNER: u64 = 1;
/// The owner of page tables, and of descriptors that lie outside the section that they describe.
pub(crate) const TABLES_OWNER: u64 = 2;
/// The owner of descriptors in their own section.
pub(crate) const DESCRIPTORS_OWNER: u64 = 3;

/// The model: the states that the memory of the instance must have, and the records and settings of
/// the kernel that uses the instance.
pub(crate) struct Model<'f> {
    pub frames: &'f Frames<Cpus>,
    pub memory: &'f Memory,
    pub rng: Rng,
    pub frame_states: Vec<FrameState>,
    pub blocks: Vec<Block>,
    pub regions: Vec<Region>,
    pub words: Words,
    /// Whether the word reserve may lack frames, so that the engine may refill it.
    pub reserve_may_be_short: bool,
    pub metadata: BTreeSet<u64>,
    /// The nodes that the kernel has received `node_appeared` for.
    pub nodes: BTreeSet<NodeId>,
    /// Nodes that memory was added to.
    pub known_nodes: BTreeSet<NodeId>,
    pub boot_complete: bool,
    /// The end of low memory.
    pub low_end: Pfn,
    pub listeners: Listeners,
    /// The poisoned frames, including those that their owners still use.
    pub poisoned_frames: BTreeSet<u64>,
    pub next_owner: u64,
    /// The frames that hold page tables, and the range that each of them maps.
    pub tables: Vec<(u64, PfnRange)>,
    /// The number of frames that the kernel requests for the page tables of the next addition.
    pub tables_needed: u64,
    pub descriptor_policy: Option<DescriptorPolicy>,
    /// The number of frames that the kernel has ever taken for page tables and descriptors.
    pub table_frames_taken: u64,
    /// The percentage of requests to go online or offline that a listener vetoes.
    pub veto_percent: u32,
    /// The percentage of migrations that the kernel answers with `Retry`.
    pub retry_percent: u32,
    /// The percentage of removals that the device refuses.
    pub refusal_percent: u32,
    pub last_veto: Option<PfnRange>,
    /// While a shrink is polled: the pageblocks that the shrink has taken offline and not yet
    /// returned as a removal.
    pub offlined_by_shrink: Option<Vec<u64>>,
    /// The isolated memory of requests that wait, which an allocation may take back.
    pub parked: Vec<PfnRange>,
    /// While a shrink is polled or cancelled: the memory that an allocation has taken back from it,
    /// until the shrink tells the kernel.
    pub taken_back: Option<PfnRange>,
    pub is_traced: bool,
}

impl<'f> Model<'f> {
    pub(crate) fn new(frames: &'f Frames<Cpus>, memory: &'f Memory, rng: Rng) -> Model<'f> {
        Model {
            frames,
            memory,
            rng,
            frame_states: vec![FrameState::Free; SIZE as usize],
            blocks: vec![Block::default(); (SIZE / PAGEBLOCK) as usize],
            regions: vec![],
            words: Words::default(),
            metadata: BTreeSet::new(),
            nodes: BTreeSet::from([NodeId::ZERO]),
            known_nodes: BTreeSet::from([NodeId::ZERO]),
            boot_complete: true,
            low_end: Pfn::ZERO,
            listeners: Listeners::new((SIZE / PAGEBLOCK) as usize),
            poisoned_frames: BTreeSet::new(),
            next_owner: DESCRIPTORS_OWNER + 1,
            tables: vec![],
            tables_needed: 0,
            descriptor_policy: None,
            table_frames_taken: 0,
            reserve_may_be_short: false,
            veto_percent: 0,
            retry_percent: 0,
            refusal_percent: 25,
            last_veto: None,
            offlined_by_shrink: None,
            parked: vec![],
            taken_back: None,
            is_traced: false,
        }
    }

    /// Records boot memory, frame by frame.
    pub(crate) fn record_boot_memory(&mut self, ram: &[BootRange], reserved: &[BootRange]) {
        let whole_frames = |r: &BootRange| r.start.div_ceil(4096)..(r.start + r.len.0) / 4096;
        let touched_frames = |r: &BootRange| r.start / 4096..(r.start + r.len.0).div_ceil(4096);
        let boot_memory: Vec<_> = self.regions.iter().map(|region| region.range).collect();
        for frame in boot_memory.into_iter().flat_map(numbers) {
            let is_ram = ram.iter().any(|r| whole_frames(r).contains(&frame));
            let is_reserved =
                reserved.iter().any(|r| r.len.0 > 0 && touched_frames(r).contains(&frame));
            let block = &mut self.blocks[(frame / PAGEBLOCK) as usize];
            (block.is_announced, block.is_boot) = (true, true);
            block.is_present |= is_ram;
            block.online |= is_ram;
            block.mapped |= is_ram;
            block.descriptor_place =
                self.descriptor_policy.filter(|_| block.is_present).map(|_| DescriptorPlace::Boot);
            self.frame_states[frame as usize] = match (is_ram, is_reserved) {
                (false, _) => FrameState::Hole,
                (true, false) => FrameState::Free,
                (true, true) => {
                    self.memory.word(frame).store(BOOT_OWNER, Ordering::Relaxed);
                    FrameState::Used(Tag { owner: BOOT_OWNER, movable: false })
                }
            };
        }
        for frame in 0..SIZE {
            if !self.block_of(frame).is_present {
                self.frame_states[frame as usize] = FrameState::Free;
                self.mark_forbidden(range(frame, 1));
            }
        }
        self.count_new_metadata();
    }

    pub(crate) fn has_poison(&self, range: PfnRange) -> bool {
        self.poisoned_frames.range(numbers(range)).next().is_some()
    }

    pub(crate) fn block_of(&self, frame: u64) -> &Block {
        &self.blocks[(frame / PAGEBLOCK) as usize]
    }

    /// Returns the node of a frame that is RAM or device memory, or `None` for another frame.
    pub(crate) fn node_of(&self, frame: u64) -> Option<NodeId> {
        let block = self.block_of(frame);
        (block.is_present || block.device).then_some(block.node)
    }

    /// Returns the pageblocks of a range.
    pub(crate) fn blocks_in(&mut self, range: PfnRange) -> &mut [Block] {
        let numbers = numbers(range.align_outward(PAGEBLOCK));
        &mut self.blocks[(numbers.start / PAGEBLOCK) as usize..(numbers.end / PAGEBLOCK) as usize]
    }

    /// Returns whether all pageblocks of a range have a property.
    pub(crate) fn all_blocks_are(&self, range: PfnRange, is: impl Fn(&Block) -> bool) -> bool {
        range.end() <= pfn(SIZE) && numbers(range).all(|frame| is(self.block_of(frame)))
    }

    /// Returns a random range of whole pageblocks.
    pub(crate) fn random_blocks(&mut self, max_blocks: u64) -> PfnRange {
        let start = self.rng.u64(..SIZE / PAGEBLOCK);
        let len = self.rng.u64(1..=max_blocks).min(SIZE / PAGEBLOCK - start);
        range(start * PAGEBLOCK, len * PAGEBLOCK)
    }

    /// Returns a range that is usually present and offline.
    pub(crate) fn random_offline(&mut self) -> Option<PfnRange> {
        let offline =
            |block: &Block| block.is_present && !block.online && !block.has_prepared_change;
        match self.rng.u8(..10) {
            0 => Some(self.random_blocks(4)),
            _ => self.random_run(3 * SECTION / PAGEBLOCK, offline),
        }
    }

    /// Returns a run of at most `max_blocks` pageblocks of one region for which `is` holds. The run
    /// begins at the first such pageblock at or after a random one.
    pub(crate) fn random_run(
        &mut self,
        max_blocks: u64,
        is: impl Fn(&Block) -> bool,
    ) -> Option<PfnRange> {
        let mut start = self.rng.u64(..SIZE / PAGEBLOCK);
        if self.descriptor_policy.is_some() && self.rng.bool() {
            // Begin at the start of a section, so that whole sections are added and removed.
            start -= start % (SECTION / PAGEBLOCK);
        }
        let first =
            (start..SIZE / PAGEBLOCK).chain(0..start).find(|&b| is(&self.blocks[b as usize]))?;
        let region_of = |b: u64| {
            let block = range(b * PAGEBLOCK, PAGEBLOCK);
            self.regions.iter().position(|region| region.range.covers(block))
        };
        let max_blocks = self.rng.u64(1..=max_blocks);
        let run = (first..SIZE / PAGEBLOCK)
            .take_while(|&b| is(&self.blocks[b as usize]) && region_of(b) == region_of(first))
            .take(max_blocks as usize)
            .count() as u64;
        Some(range(first * PAGEBLOCK, run * PAGEBLOCK))
    }

    pub(crate) fn trace(&self, message: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{}", message());
        }
    }
}
