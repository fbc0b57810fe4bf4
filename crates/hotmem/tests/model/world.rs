//! Defines the model: the state of every frame and every pageblock.

use crate::describe::{At, Describing};
use crate::listeners::Listeners;
use crate::remove::Leaving;
use crate::report::Reporting;
use crate::requests::Action;
use crate::tokens::Token;
use fastrand::Rng;
use hotmem::{
    Addition, BootMap, BootRange, Bytes, Frames, Group, Hotplug, NodeId, OnlineType, Pfn, PfnRange,
    Policy, RegionId,
};
use hotmem_testkit::link::Link;
use hotmem_testkit::{BLOCK, Cpus, Memory, SECTION, env, numbers, pfn, range};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// The number of sections of a machine.
pub(crate) const SECTIONS: u64 = match (cfg!(miri), cfg!(hotmem_geometry = "small")) {
    (true, _) => 10,
    (_, true) => 24,
    (_, false) => 6,
};
/// The number of sections that boot memory lies in, the first ones.
pub(crate) const BOOT_SECTIONS: u64 = SECTIONS / 5;
pub(crate) const SIZE: u64 = SECTIONS * SECTION;
/// Whether every frame is checked each time. On large machines, only a sample is checked.
pub(crate) const LOOK_CLOSELY: bool = cfg!(hotmem_geometry = "small") && !cfg!(miri);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frame {
    /// Free, if its pageblock is online.
    Free,
    Used(Tag),
    /// It holds metadata.
    Metadata,
    /// It holds descriptors of its own section.
    Descriptors,
    /// No RAM.
    Hole,
    /// Out of use for good.
    Poisoned,
}

impl Frame {
    /// Returns whether the frame does not prevent the removal of its memory.
    pub(crate) fn is_unused(self) -> bool {
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
    pub announced: bool,
    /// Its node, while it is present or being added.
    pub node: NodeId,
    pub present: bool,
    pub device: bool,
    pub online: bool,
    pub movable: bool,
    pub reported: bool,
    /// How often the kernel has agreed to take it offline.
    pub agreed: u32,
    /// An isolation token of the test holds it.
    pub token: bool,
    /// It is out for reporting.
    pub out: bool,
    /// A removal or addition is under way.
    pub in_transit: bool,
    pub mapped: bool,
    /// The kernel has agreed to put it online again, in the zone that it had before.
    pub coming: bool,
    pub was_movable: bool,
    /// The place of its descriptors as RAM.
    pub described: Option<At>,
}

impl Block {
    pub(crate) fn is_held(&self) -> bool {
        self.token || self.out || self.agreed > 0
    }
}

/// The memory that has words. Words stay when the memory is withdrawn.
#[derive(Default, Debug)]
pub(crate) struct Words {
    chunks: BTreeSet<u64>,
    /// Of these, the chunks of withdrawn memory without present memory.
    retired: BTreeSet<u64>,
    nodes: BTreeSet<usize>,
    /// Groups of nodes with bits in the single leaf. The leaf itself has room for the first seven.
    groups: BTreeSet<usize>,
    /// The largest number of regions so far.
    most: usize,
}

impl Words {
    /// The number of frames that a chunk describes.
    pub(crate) const CHUNK: u64 = SECTION * if cfg!(hotmem_geometry = "small") { 4 } else { 64 };

    /// Records that a node needs its record. Returns whether it has one already.
    pub(crate) fn name(&mut self, node: NodeId) -> bool {
        // Nodes come in pairs.
        let index = node.0 as usize % hotmem::MAX_NODES;
        !self.nodes.insert(index / 2)
    }

    /// Records that memory is added. Returns whether its words and the record of its node exist
    /// already.
    pub(crate) fn come(&mut self, memory: PfnRange, node: NodeId) -> bool {
        let mut there = true;
        for chunk in memory.chunks(Self::CHUNK) {
            let chunk = chunk.start().number() / Self::CHUNK;
            there &= !self.chunks.insert(chunk);
            self.retired.remove(&chunk);
        }
        let index = node.0 as usize % hotmem::MAX_NODES;
        there &= index < 7 || !self.groups.insert(index / 8);
        there & self.name(node)
    }

    /// Records that some memory of these chunks was withdrawn, and no memory of them is present.
    pub(crate) fn retire(&mut self, chunks: impl Iterator<Item = u64>) {
        self.retired.extend(chunks.filter(|chunk| self.chunks.contains(chunk)));
    }

    /// Records that words of withdrawn memory are reclaimed. Returns how many bytes are freed.
    pub(crate) fn reclaim(&mut self) -> Bytes {
        let retired = std::mem::take(&mut self.retired);
        self.chunks.retain(|chunk| !retired.contains(chunk));
        let frames = if cfg!(hotmem_geometry = "small") { 1 } else { 3 };
        Bytes(retired.len() as u64 * frames * 4096)
    }

    /// Records that a region is announced beside `others`. Returns whether the list has an entry
    /// for it already.
    pub(crate) fn list(&mut self, others: usize) -> bool {
        // The first eight entries need no memory; the others are allocated frame by frame.
        let frames = |regions: usize| regions.saturating_sub(8).div_ceil(63);
        let before = self.most;
        self.most = before.max(others + 1);
        frames(before) == frames(self.most)
    }
}

/// The owner of memory that boot reserved.
pub(crate) const BOOT: u64 = 1;
/// The owner of page tables, and of descriptors in other memory.
pub(crate) const TABLES: u64 = 2;
/// The owner of descriptors in their own section.
pub(crate) const DESCRIPTORS: u64 = 3;

/// The model and its kernel.
pub(crate) struct World<'f> {
    pub frames: &'f Frames<Cpus>,
    pub memory: &'f Memory,
    pub rng: Rng,
    pub frame: Vec<Frame>,
    pub blocks: Vec<Block>,
    pub regions: Vec<Region>,
    pub words: Words,
    /// Whether some of the word reserve may be used up.
    pub lacking: bool,
    /// Boot memory, which is never removed.
    pub fixed: PfnRange,
    pub metadata: BTreeSet<u64>,
    /// Nodes that the kernel was told of.
    pub nodes: BTreeSet<NodeId>,
    /// The fallback order of each node.
    pub fallback: BTreeMap<NodeId, Vec<NodeId>>,
    /// Nodes that were announced, or named in a fallback order.
    pub named: BTreeSet<NodeId>,
    pub boot_complete: bool,
    /// Kernel memory below this is low.
    pub low_end: Pfn,
    pub listeners: Listeners,
    /// Poisoned frames, out of use or not.
    pub poisoned: BTreeSet<u64>,
    pub next_owner: u64,
    pub tables: Vec<(u64, PfnRange)>,
    pub tables_needed: u64,
    pub describing: Option<Describing>,
    /// The number of frames that the kernel has ever taken for page tables and descriptors.
    pub spare_taken: u64,
    /// The number of vetoes in 100 answers.
    pub vetoes: u32,
    pub retries: u32,
    /// The number of removals in 100 that the device refuses.
    pub refusals: u32,
    pub last_veto: Option<PfnRange>,
    /// While a shrink is polled: pageblocks that it has taken offline and not returned as a
    /// removal.
    pub ready: Option<Vec<u64>>,
    pub trace: bool,
}

/// The machine under test and the model of it.
pub(crate) struct Machine<'f> {
    pub hotplug: Hotplug<'f, Cpus, Link<World<'f>>>,
    pub world: World<'f>,
    pub requests: Vec<Action<'f>>,
    pub tokens: Vec<Token<'f>>,
    pub removals: Vec<Leaving>,
    /// Additions that were prepared, and whether as device memory.
    pub additions: Vec<(Addition<'f, Cpus>, bool)>,
    pub reporting: Reporting<'f>,
    pub policy: Policy,
    pub auto_online: OnlineType,
    /// Whether operations tend to fill the machine, or to empty it.
    pub filling: bool,
}

impl Machine<'_> {
    /// Boots a machine, makes `operations` operations on it, and empties it. Returns false if the
    /// memory map was too small for a machine.
    pub(crate) fn run(seed: u64, operations: u64) -> bool {
        Cpus::run_on(0);
        let mut rng = Rng::with_seed(seed);
        let memory = Memory::new(SIZE);
        let frames = Frames::new(Cpus);
        let trace = env("HOTMEM_TRACE").is_some();
        let Some(mut machine) = Machine::boot(&frames, &memory, &mut rng) else {
            return false;
        };
        machine.world.trace = trace;
        let mut progress = Progress { seed, operation: 0, done: false };
        for operation in 0..operations {
            progress.operation = operation;
            machine.step(operation);
        }
        machine.find_everything();
        if LOOK_CLOSELY {
            machine.empty();
        }
        progress.done = true;
        true
    }

    fn step(&mut self, operation: u64) {
        let every = if LOOK_CLOSELY { 1 } else { 100 };
        let world = &mut self.world;
        if world.rng.u32(..100) < 10 {
            Cpus::run_on(world.rng.usize(..3));
        }
        if operation.is_multiple_of(300) {
            self.filling = world.rng.bool();
            world.vetoes = if world.rng.u8(..4) == 0 { 20 } else { 0 };
            world.retries = if world.rng.u8(..4) == 0 { 30 } else { 0 };
            self.change_policy();
            self.change_order();
        }
        match self.world.rng.u32(..1000) {
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
        let mut some =
            |longest: u64| BootRange { start: rng.u64(..bytes), len: Bytes(rng.u64(..longest)) };
        let mut ram: Vec<_> = (0..4).map(|_| some(bytes / 2)).collect();
        let mut reserved: Vec<_> = (0..6).map(|_| some(bytes / 40)).collect();
        for range in ram.iter_mut().chain(&mut reserved) {
            range.len.0 = range.len.0.min(bytes - range.start);
        }
        // A random boundary; every other machine has none.
        let low_end = rng.u64(..2 * SIZE).saturating_sub(SIZE);
        let low_end = Pfn::new(low_end).expect("within the address limit");
        let map = BootMap { reserved: &reserved, low_end, ..BootMap::of_ram(&ram) };
        let hotplug = hotmem_testkit::start(frames, Link::new(memory.direct_map()), &map).ok()?;
        let mut world = World::new(frames, memory, rng.fork());
        let (id, region) = hotplug.regions().next()?;
        world.fixed = region;
        world.low_end = low_end.align_down(SECTION);
        let (node, group) = (NodeId::ZERO, Group::None);
        world.regions.push(Region { id, range: region, node, group });
        world.words.come(region, node);
        world.words.list(0);
        world.describing = Describing::some(rng);
        world.adopt(&ram, &reserved);
        let machine = Machine {
            hotplug,
            world,
            requests: vec![],
            tokens: vec![],
            removals: vec![],
            additions: vec![],
            reporting: Reporting::new(),
            policy: Policy::default(),
            auto_online: OnlineType::Offline,
            filling: true,
        };
        let mut machine = machine;
        machine.check();
        machine.validate();
        Some(machine)
    }
}

impl<'f> World<'f> {
    fn new(frames: &'f Frames<Cpus>, memory: &'f Memory, rng: Rng) -> World<'f> {
        World {
            frames,
            memory,
            rng,
            frame: vec![Frame::Free; SIZE as usize],
            blocks: vec![Block::default(); (SIZE / BLOCK) as usize],
            regions: vec![],
            words: Words::default(),
            fixed: PfnRange::EMPTY,
            metadata: BTreeSet::new(),
            nodes: BTreeSet::from([NodeId::ZERO]),
            named: BTreeSet::from([NodeId::ZERO]),
            fallback: BTreeMap::new(),
            boot_complete: true,
            low_end: Pfn::ZERO,
            listeners: Listeners::new((SIZE / BLOCK) as usize),
            poisoned: BTreeSet::new(),
            next_owner: DESCRIPTORS + 1,
            tables: vec![],
            tables_needed: 0,
            describing: None,
            spare_taken: 0,
            lacking: false,
            vetoes: 0,
            retries: 0,
            refusals: 25,
            last_veto: None,
            ready: None,
            trace: false,
        }
    }

    /// Records boot memory, frame by frame.
    fn adopt(&mut self, ram: &[BootRange], reserved: &[BootRange]) {
        let first = |r: &BootRange| r.start.div_ceil(4096)..(r.start + r.len.0) / 4096;
        let touched = |r: &BootRange| r.start / 4096..(r.start + r.len.0).div_ceil(4096);
        for frame in numbers(self.fixed) {
            let is_ram = ram.iter().any(|r| first(r).contains(&frame));
            let is_reserved = reserved.iter().any(|r| r.len.0 > 0 && touched(r).contains(&frame));
            let block = &mut self.blocks[(frame / BLOCK) as usize];
            block.announced = true;
            block.present |= is_ram;
            block.online |= is_ram;
            block.mapped |= is_ram;
            block.described = self.describing.filter(|_| block.present).map(|_| At::Boot);
            self.frame[frame as usize] = match (is_ram, is_reserved) {
                (false, _) => Frame::Hole,
                (true, false) => Frame::Free,
                (true, true) => {
                    self.memory.word(frame).store(BOOT, Ordering::Relaxed);
                    Frame::Used(Tag { owner: BOOT, movable: false })
                }
            };
        }
        for frame in 0..SIZE {
            if !self.block_of(frame).present {
                self.frame[frame as usize] = Frame::Free;
                self.forbid(range(frame, 1));
            }
        }
        self.sync_metadata();
    }

    pub(crate) fn has_poison(&self, range: PfnRange) -> bool {
        self.poisoned.range(numbers(range)).next().is_some()
    }

    pub(crate) fn block_of(&self, frame: u64) -> &Block {
        &self.blocks[(frame / BLOCK) as usize]
    }

    /// Returns the node of a present frame.
    pub(crate) fn node_of(&self, frame: u64) -> Option<NodeId> {
        let block = self.block_of(frame);
        (block.present || block.device).then_some(block.node)
    }

    /// Returns the pageblocks of a range.
    pub(crate) fn blocks_in(&mut self, range: PfnRange) -> &mut [Block] {
        let numbers = numbers(range.align_outward(BLOCK));
        &mut self.blocks[(numbers.start / BLOCK) as usize..(numbers.end / BLOCK) as usize]
    }

    /// Returns whether all pageblocks of a range have a property.
    pub(crate) fn all(&self, range: PfnRange, is: impl Fn(&Block) -> bool) -> bool {
        range.end() <= pfn(SIZE) && numbers(range).all(|frame| is(self.block_of(frame)))
    }

    /// Returns a random range of whole pageblocks.
    pub(crate) fn some_blocks(&mut self, longest: u64) -> PfnRange {
        let start = self.rng.u64(..SIZE / BLOCK);
        let len = self.rng.u64(1..=longest).min(SIZE / BLOCK - start);
        range(start * BLOCK, len * BLOCK)
    }

    /// Returns a range that is usually present and offline.
    pub(crate) fn some_offline(&mut self) -> Option<PfnRange> {
        let offline = |block: &Block| block.present && !block.online && !block.in_transit;
        match self.rng.u8(..10) {
            0 => Some(self.some_blocks(4)),
            _ => self.some_run(3 * SECTION / BLOCK, offline),
        }
    }

    /// Returns the longest run of pageblocks around a random one that have this property.
    pub(crate) fn some_run(
        &mut self,
        longest: u64,
        is: impl Fn(&Block) -> bool,
    ) -> Option<PfnRange> {
        let mut at = self.rng.u64(..SIZE / BLOCK);
        if self.describing.is_some() && self.rng.bool() {
            // Begin at a section, so that whole sections are added and removed.
            at -= at % (SECTION / BLOCK);
        }
        let found = (at..SIZE / BLOCK).chain(0..at).find(|&b| is(&self.blocks[b as usize]))?;
        let region = |b: u64| {
            let block = range(b * BLOCK, BLOCK);
            self.regions.iter().position(|region| region.range.covers(block))
        };
        let longest = self.rng.u64(1..=longest);
        let run = (found..SIZE / BLOCK)
            .take_while(|&b| is(&self.blocks[b as usize]) && region(b) == region(found))
            .take(longest as usize)
            .count() as u64;
        Some(range(found * BLOCK, run * BLOCK))
    }

    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{}", what());
        }
    }
}

/// Prints where a run failed, so that it can be replayed.
struct Progress {
    seed: u64,
    operation: u64,
    done: bool,
}

impl Drop for Progress {
    fn drop(&mut self) {
        if !self.done {
            eprintln!(
                "operation {} failed; replay with HOTMEM_SEED={} HOTMEM_OPERATIONS={}",
                self.operation,
                self.seed,
                self.operation + 1
            );
        }
    }
}
