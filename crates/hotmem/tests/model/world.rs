//! The model: what every frame and every pageblock is.

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

/// Sections of a machine.
pub(crate) const SECTIONS: u64 = match (cfg!(miri), cfg!(hotmem_geometry = "small")) {
    (true, _) => 10,
    (_, true) => 24,
    (_, false) => 6,
};
/// Of these, boot memory lies in the first.
pub(crate) const BOOT_SECTIONS: u64 = SECTIONS / 5;
pub(crate) const SIZE: u64 = SECTIONS * SECTION;
/// Small machines are looked at frame by frame all the time, large ones here and there.
pub(crate) const LOOK_CLOSELY: bool = cfg!(hotmem_geometry = "small") && !cfg!(miri);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frame {
    /// Free, if its pageblock is online.
    Free,
    Used(Tag),
    /// The engine's own.
    Metadata,
    /// The kernel's descriptors of the section that it lies in.
    Descriptors,
    /// No RAM.
    Hole,
    /// Out of use for good.
    Poisoned,
}

impl Frame {
    /// Whether it hinders nobody who takes the memory away.
    pub(crate) fn is_unused(self) -> bool {
        matches!(self, Frame::Free | Frame::Poisoned | Frame::Descriptors)
    }
}

/// Who has a frame.
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
    /// Whose it is while it is there, or being added.
    pub node: NodeId,
    pub present: bool,
    pub device: bool,
    pub online: bool,
    pub movable: bool,
    pub reported: bool,
    /// How often the kernel has agreed that it goes offline.
    pub agreed: u32,
    /// An isolation token of the test has it.
    pub token: bool,
    /// It is out for reporting.
    pub out: bool,
    /// A removal or addition is under way.
    pub in_transit: bool,
    pub mapped: bool,
    /// The kernel has agreed that it comes online; it was in this zone before.
    pub coming: bool,
    pub was_movable: bool,
    /// As RAM.
    pub described: Option<At>,
}

impl Block {
    pub(crate) fn is_held(&self) -> bool {
        self.token || self.out || self.agreed > 0
    }
}

/// For what there are words: these stay when what they were for is withdrawn.
#[derive(Default, Debug)]
pub(crate) struct Words {
    chunks: BTreeSet<u64>,
    /// Of these, those of withdrawn memory of which nothing is there.
    retired: BTreeSet<u64>,
    nodes: BTreeSet<usize>,
    /// Groups of nodes that have bits in the one leaf; those of the first seven are the leaf's own.
    groups: BTreeSet<usize>,
    /// Most regions that there were at one time.
    most: usize,
}

impl Words {
    /// Frames of a chunk.
    pub(crate) const CHUNK: u64 = SECTION * if cfg!(hotmem_geometry = "small") { 4 } else { 64 };

    /// What is kept of a node is needed. Says whether it has been there.
    pub(crate) fn name(&mut self, node: NodeId) -> bool {
        // Nodes come in pairs.
        let index = node.number() as usize % hotmem::MAX_NODES;
        !self.nodes.insert(index / 2)
    }

    /// Memory is added. Says whether its words and those of its node have been there.
    pub(crate) fn come(&mut self, memory: PfnRange, node: NodeId) -> bool {
        let mut there = true;
        for chunk in memory.chunks(Self::CHUNK) {
            let chunk = chunk.start().number() / Self::CHUNK;
            there &= !self.chunks.insert(chunk);
            self.retired.remove(&chunk);
        }
        let index = node.number() as usize % hotmem::MAX_NODES;
        there &= index < 7 || !self.groups.insert(index / 8);
        there & self.name(node)
    }

    /// Some memory of these chunks is announced no more, and nothing of them is there.
    pub(crate) fn retire(&mut self, chunks: impl Iterator<Item = u64>) {
        self.retired.extend(chunks.filter(|chunk| self.chunks.contains(chunk)));
    }

    /// The kernel gives back what is kept for memory that has gone: how many bytes.
    pub(crate) fn reclaim(&mut self) -> Bytes {
        let retired = std::mem::take(&mut self.retired);
        self.chunks.retain(|chunk| !retired.contains(chunk));
        let frames = if cfg!(hotmem_geometry = "small") { 1 } else { 3 };
        Bytes(retired.len() as u64 * frames * 4096)
    }

    /// A region is announced beside so many. Says whether its place in the list has been there.
    pub(crate) fn list(&mut self, others: usize) -> bool {
        // The first eight places need no memory, the others come by the frame.
        let frames = |regions: usize| regions.saturating_sub(8).div_ceil(63);
        let before = self.most;
        self.most = before.max(others + 1);
        frames(before) == frames(self.most)
    }
}

/// Owner of what was reserved at boot.
pub(crate) const BOOT: u64 = 1;
/// Owner of page tables, and of descriptors in frames of their own.
pub(crate) const TABLES: u64 = 2;
/// Owner of descriptors in what they describe.
pub(crate) const DESCRIPTORS: u64 = 3;

/// The model, and the kernel that lives on it.
pub(crate) struct World<'f> {
    pub frames: &'f Frames<Cpus>,
    pub memory: &'f Memory,
    pub rng: Rng,
    pub frame: Vec<Frame>,
    pub blocks: Vec<Block>,
    pub regions: Vec<Region>,
    pub words: Words,
    /// Some of what is kept for words may have been used.
    pub lacking: bool,
    /// Never removed: boot memory.
    pub fixed: PfnRange,
    pub metadata: BTreeSet<u64>,
    /// Nodes that have come, by what the kernel was told.
    pub nodes: BTreeSet<NodeId>,
    /// Where each node falls back to.
    pub fallback: BTreeMap<NodeId, Vec<NodeId>>,
    /// Nodes that something was announced on, or an order was set with.
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
    /// Frames that the kernel has ever taken for page tables and descriptors.
    pub spare_taken: u64,
    /// In percent.
    pub vetoes: u32,
    pub retries: u32,
    /// Of devices that memory is given back to.
    pub refusals: u32,
    pub last_veto: Option<PfnRange>,
    /// While a shrink is polled: pageblocks that it has taken offline and not handed over.
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
    /// What was prepared, and whether as a device's.
    pub additions: Vec<(Addition<'f, Cpus>, bool)>,
    pub reporting: Reporting<'f>,
    pub policy: Policy,
    pub auto_online: OnlineType,
    /// Tends to fill the machine, or to empty it.
    pub filling: bool,
}

impl Machine<'_> {
    /// Boots a machine, lives on it for so many operations, and leaves it. False if the memory map
    /// had too little for a machine.
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
            570..740 => self.travel(),
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
        // A boundary anywhere, or none, which every other machine has.
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

    /// What boot memory is, frame by frame.
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

    /// The node of a frame that is there.
    pub(crate) fn node_of(&self, frame: u64) -> Option<NodeId> {
        let block = self.block_of(frame);
        (block.present || block.device).then_some(block.node)
    }

    /// The pageblocks of a range, to be changed.
    pub(crate) fn blocks_in(&mut self, range: PfnRange) -> &mut [Block] {
        let numbers = numbers(range.align_outward(BLOCK));
        &mut self.blocks[(numbers.start / BLOCK) as usize..(numbers.end / BLOCK) as usize]
    }

    /// Whether something holds of all pageblocks of a range.
    pub(crate) fn all(&self, range: PfnRange, is: impl Fn(&Block) -> bool) -> bool {
        range.end() <= pfn(SIZE) && numbers(range).all(|frame| is(self.block_of(frame)))
    }

    /// Some whole pageblocks of the machine.
    pub(crate) fn some_blocks(&mut self, longest: u64) -> PfnRange {
        let start = self.rng.u64(..SIZE / BLOCK);
        let len = self.rng.u64(1..=longest).min(SIZE / BLOCK - start);
        range(start * BLOCK, len * BLOCK)
    }

    /// Something that is present and offline, as a rule.
    pub(crate) fn some_offline(&mut self) -> Option<PfnRange> {
        let offline = |block: &Block| block.present && !block.online && !block.in_transit;
        match self.rng.u8(..10) {
            0 => Some(self.some_blocks(4)),
            _ => self.some_run(3 * SECTION / BLOCK, offline),
        }
    }

    /// The longest run of pageblocks around a random one that has this property.
    pub(crate) fn some_run(
        &mut self,
        longest: u64,
        is: impl Fn(&Block) -> bool,
    ) -> Option<PfnRange> {
        let mut at = self.rng.u64(..SIZE / BLOCK);
        if self.describing.is_some() && self.rng.bool() {
            // So that whole sections come and go.
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

/// Tells where a run failed, so that it can be replayed.
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
