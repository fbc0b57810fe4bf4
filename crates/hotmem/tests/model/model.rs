//! Defines the model: the state of every frame and every pageblock.

use crate::descriptors::{DescriptorPlace, DescriptorPolicy};
use crate::listeners::Listeners;
use crate::long_requests::LongRequest;
use crate::remove::PendingRemoval;
use crate::report::Reporting;
use crate::tokens::Token;
use fastrand::Rng;
use hotmem::{
    Addition, BootMap, BootRange, Bytes, Frames, Group, Hotplug, NodeId, OnlineType, Pfn, PfnRange,
    Policy, RegionId,
};
use hotmem_testkit::forwarding::ForwardingMapping;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, SECTION, env_number, numbers, pfn, range};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// The number of sections of a machine.
pub(crate) const SECTIONS: u64 = match (cfg!(miri), cfg!(hotmem_geometry = "small")) {
    (true, _) => 10,
    (_, true) => 24,
    (_, false) => 6,
};
/// The number of sections that boot memory lies in: these are the first sections of a machine.
pub(crate) const BOOT_SECTIONS: u64 = SECTIONS / 5;
pub(crate) const SIZE: u64 = SECTIONS * SECTION;
/// Whether the machine is compared with the model after every operation. Large machines are
/// compared only after some operations.
pub(crate) const CHECK_EVERY_OPERATION: bool = cfg!(hotmem_geometry = "small") && !cfg!(miri);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frame {
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

impl Frame {
    /// Returns whether the frame can be removed as it is, without a migration.
    pub(crate) fn is_removable(self) -> bool {
        matches!(self, Frame::Free | Frame::Poisoned | Frame::Descriptors)
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
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Block {
    pub is_announced: bool,
    /// The node of the pageblock, while it is present or being added.
    pub node: NodeId,
    pub is_present: bool,
    pub device: bool,
    pub online: bool,
    pub movable: bool,
    pub is_reported: bool,
    /// The number of offline requests in progress that the kernel has agreed to.
    pub agreed_requests: u32,
    /// Whether an isolation token of the test holds the pageblock.
    pub token: bool,
    /// Whether the host has the pageblock in a report that is not acknowledged.
    pub reporting: bool,
    /// Whether a removal or an addition of the pageblock is prepared, but not committed.
    pub is_being_removed: bool,
    pub mapped: bool,
    /// Whether the kernel has agreed that the pageblock goes online, but it is not online yet.
    pub going_online: bool,
    /// The value of `movable` before the kernel agreed that the pageblock goes online.
    pub was_movable: bool,
    /// The place of the pageblock's descriptors, while it is RAM with descriptors.
    pub descriptor_place: Option<DescriptorPlace>,
}

impl Block {
    pub(crate) fn is_held(&self) -> bool {
        self.token || self.reporting || self.agreed_requests > 0
    }
}

/// Records the memory that has words. Words stay when the memory is withdrawn.
#[derive(Default, Debug)]
pub(crate) struct Words {
    chunks: BTreeSet<u64>,
    /// Those of `chunks` that describe withdrawn memory and no present memory.
    retired_chunks: BTreeSet<u64>,
    /// The pairs of nodes that have a record.
    node_pairs: BTreeSet<usize>,
    /// The only leaf holds the bits of nodes 0 to 6 itself. The bits of all other nodes lie in
    /// memory that is allocated for eight nodes together: these are the groups that have it.
    node_groups: BTreeSet<usize>,
    /// The largest number of regions so far.
    most_regions: usize,
}

impl Words {
    /// The number of frames that a chunk describes.
    pub(crate) const CHUNK: u64 = SECTION * if cfg!(hotmem_geometry = "small") { 4 } else { 64 };

    /// Notes that a node is used. Returns whether the record of the node exists already.
    pub(crate) fn record_node(&mut self, node: NodeId) -> bool {
        // Two nodes share a record.
        let index = node.0 as usize % hotmem::MAX_NODES;
        !self.node_pairs.insert(index / 2)
    }

    /// Records that memory is added. Returns whether the words of the memory and the record of its
    /// node exist already.
    pub(crate) fn record_addition(&mut self, memory: PfnRange, node: NodeId) -> bool {
        let mut words_exist = true;
        for chunk in memory.chunks(Self::CHUNK) {
            let chunk = chunk.start().number() / Self::CHUNK;
            words_exist &= !self.chunks.insert(chunk);
            self.retired_chunks.remove(&chunk);
        }
        let index = node.0 as usize % hotmem::MAX_NODES;
        words_exist &= index < 7 || !self.node_groups.insert(index / 8);
        words_exist & self.record_node(node)
    }

    /// Notes that the last present memory of these chunks was withdrawn.
    pub(crate) fn retire(&mut self, chunks: impl Iterator<Item = u64>) {
        self.retired_chunks.extend(chunks.filter(|chunk| self.chunks.contains(chunk)));
    }

    /// Records that the words of withdrawn memory are reclaimed. Returns the number of bytes that
    /// are freed.
    pub(crate) fn reclaim(&mut self) -> Bytes {
        let retired = std::mem::take(&mut self.retired_chunks);
        self.chunks.retain(|chunk| !retired.contains(chunk));
        let frames = if cfg!(hotmem_geometry = "small") { 1 } else { 3 };
        Bytes(retired.len() as u64 * frames * 4096)
    }

    /// Records that a region is announced in addition to `other_regions` regions. Returns whether
    /// the list of regions has an unused entry, so that the announcement allocates nothing.
    pub(crate) fn record_region(&mut self, other_regions: usize) -> bool {
        // The first eight entries need no memory; the others are allocated frame by frame.
        let frames = |regions: usize| regions.saturating_sub(8).div_ceil(63);
        let before = self.most_regions;
        self.most_regions = before.max(other_regions + 1);
        frames(before) == frames(self.most_regions)
    }
}

/// The owner of memory that boot reserved.
pub(crate) const BOOT_OWNER: u64 = 1;
/// The owner of page tables, and of descriptors that lie outside the section that they describe.
pub(crate) const TABLES_OWNER: u64 = 2;
/// The owner of descriptors in their own section.
pub(crate) const DESCRIPTORS_OWNER: u64 = 3;

/// The model and its kernel.
pub(crate) struct Model<'f> {
    pub frames: &'f Frames<Cpus>,
    pub memory: &'f Memory,
    pub rng: Rng,
    pub frame_states: Vec<Frame>,
    pub blocks: Vec<Block>,
    pub regions: Vec<Region>,
    pub words: Words,
    /// Whether the word reserve may lack frames, so that the engine may refill it.
    pub reserve_may_be_short: bool,
    /// Boot memory, which is never removed.
    pub boot_memory: PfnRange,
    pub metadata: BTreeSet<u64>,
    /// The nodes that the kernel has received `node_appeared` for.
    pub nodes: BTreeSet<NodeId>,
    /// The fallback order of each node.
    pub fallback: BTreeMap<NodeId, Vec<NodeId>>,
    /// Nodes that memory was added to, or that a fallback order names.
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
    pub tables_needed: u64,
    pub descriptor_policy: Option<DescriptorPolicy>,
    /// The number of frames that the kernel has ever taken for page tables and descriptors.
    pub table_frames_taken: u64,
    /// The percentage of notifications before an online or offline that a listener vetoes.
    pub vetoes: u32,
    /// The percentage of migrations that the kernel answers with `Retry`.
    pub retry_percent: u32,
    /// The percentage of removals that the device refuses.
    pub refusals: u32,
    pub last_veto: Option<PfnRange>,
    /// While a shrink is polled: the pageblocks that the shrink has taken offline and not yet
    /// returned as a removal.
    pub offlined_by_shrink: Option<Vec<u64>>,
    pub is_traced: bool,
}

/// The machine under test and the model of it.
pub(crate) struct Machine<'f> {
    pub hotplug: Hotplug<'f, Cpus, ForwardingMapping<Model<'f>>>,
    pub model: Model<'f>,
    pub requests: Vec<LongRequest<'f>>,
    pub tokens: Vec<Token<'f>>,
    pub removals: Vec<PendingRemoval>,
    /// The prepared additions, their ranges, and whether they are of device memory.
    pub additions: Vec<(Addition<'f, Cpus>, PfnRange, bool)>,
    pub reporting: Reporting<'f>,
    pub policy: Policy,
    pub auto_online: OnlineType,
    /// Whether operations allocate more often than they free.
    pub is_filling: bool,
}

impl Machine<'_> {
    /// Boots a machine with a random memory map, makes `operations` operations on it, and removes
    /// its memory. Returns false if the memory map has too little memory to boot.
    pub(crate) fn run(seed: u64, operations: u64) -> bool {
        Cpus::run_on(0);
        let mut rng = Rng::with_seed(seed);
        let memory = Memory::new(SIZE);
        let frames = Frames::new(Cpus);
        let trace = env_number("HOTMEM_TRACE").is_some();
        let Some(mut machine) = Machine::boot(&frames, &memory, &mut rng) else {
            return false;
        };
        machine.model.is_traced = trace;
        let mut progress = ReplayHint { seed, operation: 0, is_done: false };
        for operation in 0..operations {
            progress.operation = operation;
            machine.step(operation);
        }
        machine.find_everything();
        if CHECK_EVERY_OPERATION {
            machine.remove_all_memory();
        }
        progress.is_done = true;
        true
    }

    fn step(&mut self, operation: u64) {
        let every = if CHECK_EVERY_OPERATION { 1 } else { 100 };
        let model = &mut self.model;
        if model.rng.u32(..100) < 10 {
            Cpus::run_on(model.rng.usize(..3));
        }
        if operation.is_multiple_of(300) {
            self.is_filling = model.rng.bool();
            model.vetoes = if model.rng.u8(..4) == 0 { 20 } else { 0 };
            model.retry_percent = if model.rng.u8(..4) == 0 { 30 } else { 0 };
            self.change_policy();
            self.change_order();
        }
        match self.model.rng.u32(..1000) {
            0..480 => self.allocate_or_free(),
            480..570 => self.bad_free(),
            570..740 => self.change_range_state(),
            740..850 => self.request(),
            850..900 => self.isolate(),
            900..960 => self.report(),
            960..965 => self.poison(),
            _ => self.bad_request(),
        }
        if operation % 10_000 == 9_999 {
            self.find_everything();
        }
        if operation.is_multiple_of(every) {
            self.check();
        }
        if operation.is_multiple_of(every * 50) {
            self.check_memory_blocks();
            self.check_scans();
            self.validate();
        }
    }

    fn boot<'f>(
        frames: &'f Frames<Cpus>,
        memory: &'f Memory,
        rng: &mut Rng,
    ) -> Option<Machine<'f>> {
        let bytes = (BOOT_SECTIONS * SECTION) << 12;
        let mut random_range =
            |longest: u64| BootRange { start: rng.u64(..bytes), len: Bytes(rng.u64(..longest)) };
        let mut ram: Vec<_> = (0..4).map(|_| random_range(bytes / 2)).collect();
        let mut reserved: Vec<_> = (0..6).map(|_| random_range(bytes / 40)).collect();
        for range in ram.iter_mut().chain(&mut reserved) {
            range.len.0 = range.len.0.min(bytes - range.start);
        }
        // The boundary of low memory is random in half of the machines. The others have none.
        let low_end = rng.u64(..2 * SIZE).saturating_sub(SIZE);
        let low_end = Pfn::new(low_end).expect("within the address limit");
        let map = BootMap { reserved: &reserved, low_end, ..BootMap::from(ram.as_slice()) };
        let hotplug =
            hotmem_testkit::start(frames, ForwardingMapping::new(memory.direct_map()), map).ok()?;
        let mut model = Model::new(frames, memory, rng.fork());
        let (id, region) = hotplug.regions().next()?;
        model.boot_memory = region;
        model.low_end = low_end.align_down(SECTION);
        let (node, group) = (NodeId::ZERO, Group::None);
        model.regions.push(Region { id, range: region, node, group });
        model.words.record_addition(region, node);
        model.words.record_region(0);
        model.descriptor_policy = DescriptorPolicy::random(rng);
        model.record_boot_memory(&ram, &reserved);
        let machine = Machine {
            hotplug,
            model,
            requests: vec![],
            tokens: vec![],
            removals: vec![],
            additions: vec![],
            reporting: Reporting::new(),
            policy: Policy::default(),
            auto_online: OnlineType::Offline,
            is_filling: true,
        };
        let mut machine = machine;
        machine.check();
        machine.validate();
        Some(machine)
    }
}

impl<'f> Model<'f> {
    fn new(frames: &'f Frames<Cpus>, memory: &'f Memory, rng: Rng) -> Model<'f> {
        Model {
            frames,
            memory,
            rng,
            frame_states: vec![Frame::Free; SIZE as usize],
            blocks: vec![Block::default(); (SIZE / PAGEBLOCK) as usize],
            regions: vec![],
            words: Words::default(),
            boot_memory: PfnRange::EMPTY,
            metadata: BTreeSet::new(),
            nodes: BTreeSet::from([NodeId::ZERO]),
            known_nodes: BTreeSet::from([NodeId::ZERO]),
            fallback: BTreeMap::new(),
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
            vetoes: 0,
            retry_percent: 0,
            refusals: 25,
            last_veto: None,
            offlined_by_shrink: None,
            is_traced: false,
        }
    }

    /// Records boot memory, frame by frame.
    fn record_boot_memory(&mut self, ram: &[BootRange], reserved: &[BootRange]) {
        let whole_frames = |r: &BootRange| r.start.div_ceil(4096)..(r.start + r.len.0) / 4096;
        let touched_frames = |r: &BootRange| r.start / 4096..(r.start + r.len.0).div_ceil(4096);
        for frame in numbers(self.boot_memory) {
            let is_ram = ram.iter().any(|r| whole_frames(r).contains(&frame));
            let is_reserved =
                reserved.iter().any(|r| r.len.0 > 0 && touched_frames(r).contains(&frame));
            let block = &mut self.blocks[(frame / PAGEBLOCK) as usize];
            block.is_announced = true;
            block.is_present |= is_ram;
            block.online |= is_ram;
            block.mapped |= is_ram;
            block.descriptor_place =
                self.descriptor_policy.filter(|_| block.is_present).map(|_| DescriptorPlace::Boot);
            self.frame_states[frame as usize] = match (is_ram, is_reserved) {
                (false, _) => Frame::Hole,
                (true, false) => Frame::Free,
                (true, true) => {
                    self.memory.word(frame).store(BOOT_OWNER, Ordering::Relaxed);
                    Frame::Used(Tag { owner: BOOT_OWNER, movable: false })
                }
            };
        }
        for frame in 0..SIZE {
            if !self.block_of(frame).is_present {
                self.frame_states[frame as usize] = Frame::Free;
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

    /// Returns the node of a present frame.
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
    pub(crate) fn random_blocks(&mut self, longest: u64) -> PfnRange {
        let start = self.rng.u64(..SIZE / PAGEBLOCK);
        let len = self.rng.u64(1..=longest).min(SIZE / PAGEBLOCK - start);
        range(start * PAGEBLOCK, len * PAGEBLOCK)
    }

    /// Returns a range that is usually present and offline.
    pub(crate) fn random_offline(&mut self) -> Option<PfnRange> {
        let offline = |block: &Block| block.is_present && !block.online && !block.is_being_removed;
        match self.rng.u8(..10) {
            0 => Some(self.random_blocks(4)),
            _ => self.random_run(3 * SECTION / PAGEBLOCK, offline),
        }
    }

    /// Returns a run of at most `longest` pageblocks of one region for which `is` holds. The run
    /// begins at the first such pageblock at or after a random one.
    pub(crate) fn random_run(
        &mut self,
        longest: u64,
        is: impl Fn(&Block) -> bool,
    ) -> Option<PfnRange> {
        let mut at = self.rng.u64(..SIZE / PAGEBLOCK);
        if self.descriptor_policy.is_some() && self.rng.bool() {
            // Begin at the start of a section, so that whole sections are added and removed.
            at -= at % (SECTION / PAGEBLOCK);
        }
        let first = (at..SIZE / PAGEBLOCK).chain(0..at).find(|&b| is(&self.blocks[b as usize]))?;
        let region = |b: u64| {
            let block = range(b * PAGEBLOCK, PAGEBLOCK);
            self.regions.iter().position(|region| region.range.covers(block))
        };
        let longest = self.rng.u64(1..=longest);
        let run = (first..SIZE / PAGEBLOCK)
            .take_while(|&b| is(&self.blocks[b as usize]) && region(b) == region(first))
            .take(longest as usize)
            .count() as u64;
        Some(range(first * PAGEBLOCK, run * PAGEBLOCK))
    }

    pub(crate) fn trace(&self, message: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{}", message());
        }
    }
}

/// Prints how to replay a run when it is dropped while `is_done` is false, as in a panic.
struct ReplayHint {
    seed: u64,
    operation: u64,
    is_done: bool,
}

impl Drop for ReplayHint {
    fn drop(&mut self) {
        if !self.is_done {
            eprintln!(
                "operation {} failed; replay with HOTMEM_SEED={} HOTMEM_OPERATIONS={}",
                self.operation,
                self.seed,
                self.operation + 1
            );
        }
    }
}
