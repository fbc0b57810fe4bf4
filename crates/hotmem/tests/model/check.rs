//! Whether the machine is what the model says.

use crate::ask::Ask;
use crate::common::{BLOCK, numbers, range};
use crate::road::NODES;
use crate::world::{Block, Frame, Machine, SIZE, World};
use hotmem::{NodeId, PfnRange, State, Zone};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl World<'_> {
    /// Learns which frames the engine has taken for itself or dropped: the one thing that the model
    /// cannot know. Says how many it has taken.
    pub(crate) fn sync_metadata(&mut self) -> usize {
        let now: BTreeSet<u64> =
            self.frames.metadata().flat_map(|metadata| numbers(metadata.frames)).collect();
        let before = std::mem::replace(&mut self.metadata, now.clone());
        for &dropped in before.difference(&now) {
            self.frame[dropped as usize] = Frame::Free;
        }
        for &taken in now.difference(&before) {
            assert_eq!(self.frame[taken as usize], Frame::Free, "metadata at {taken:#x}");
            assert!(self.block_of(taken).online, "metadata at {taken:#x}");
            self.frame[taken as usize] = Frame::Metadata;
        }
        now.difference(&before).count()
    }

    fn pattern(frame: u64) -> u64 {
        !frame
    }

    /// Nobody may touch this memory.
    pub(crate) fn forbid(&self, range: PfnRange) {
        for frame in numbers(range) {
            self.memory.word(frame).store(Self::pattern(frame), Ordering::Relaxed);
        }
    }

    /// Nobody has touched it.
    pub(crate) fn assert_untouched(&self, range: PfnRange) {
        for frame in numbers(range) {
            let now = self.memory.word(frame).load(Ordering::Relaxed);
            assert_eq!(now, Self::pattern(frame), "frame {frame:#x} was touched");
        }
    }
}

impl Machine<'_> {
    /// Each pageblock is what the model says.
    pub(crate) fn check(&mut self) {
        let mut free_frames = 0;
        for number in 0..SIZE / BLOCK {
            let all = range(number * BLOCK, BLOCK);
            let world = &mut self.world;
            let block = world.blocks[number as usize];
            let counts = world.frames.counts_in(all);
            let frames_if = |is: bool| if is { BLOCK } else { 0 };
            let is_free = |frame: &u64| world.frame[*frame as usize] == Frame::Free;
            let free = match block.online && !block.is_held() {
                true => numbers(all).filter(is_free).count() as u64,
                false => 0,
            };
            free_frames += free;
            let is_out = |frame: &u64| world.frame[*frame as usize] == Frame::Poisoned;
            let in_sight = block.online && !block.is_held();
            let poisoned = numbers(all).filter(|f| in_sight && is_out(f)).count() as u64;
            let expected = (
                frames_if(block.announced),
                frames_if(block.present),
                frames_if(block.online),
                frames_if(block.online && block.is_held()),
                free,
                poisoned,
            );
            let found = (
                counts.announced,
                counts.present,
                counts.online,
                counts.isolated,
                counts.free,
                counts.poisoned,
            );
            assert_eq!(found, expected, "{all:?}: {block:?}");
            assert!(block.reported || counts.reported == 0, "{all:?}: {block:?}");
            world.blocks[number as usize].reported = counts.reported != 0;
            let state = match (block.announced, block.present, block.online, block.movable) {
                (false, ..) => State::Unknown,
                (true, false, ..) if block.device => State::Device,
                (true, false, ..) => State::Absent,
                (true, true, false, _) => State::Offline,
                (true, true, true, false) => State::Online,
                (true, true, true, true) => State::OnlineMovable,
            };
            assert_eq!(self.hotplug.state_at(all.start(), all.end()), (all, state));
        }
        assert_eq!(self.world.frames.counts().free, free_frames);
        let mut there = BTreeSet::new();
        for node in (0..NODES).filter_map(NodeId::new) {
            let online = Zone::ALL.map(|zone| self.check_zone(node, zone));
            if online != [0, 0] {
                there.insert(node);
            }
        }
        assert_eq!(self.world.nodes, there);
        assert!(self.hotplug.nodes().eq(there));
    }

    /// What is kept of a zone is what a walk over all pageblocks finds. Says what is online.
    fn check_zone(&self, node: NodeId, zone: Zone) -> u64 {
        let world = &self.world;
        let is_in = |block: &Block| block.online && block.movable == (zone == Zone::Movable);
        let members = || {
            let there = (0..SIZE / BLOCK).filter(|&number| is_in(&world.blocks[number as usize]));
            there.filter(|&number| world.node_of(number * BLOCK) == Some(node))
        };
        let online = members().count() as u64 * BLOCK;
        let is_hole = |frame: &u64| world.frame[*frame as usize] == Frame::Hole;
        let frames = members().flat_map(|number| number * BLOCK..(number + 1) * BLOCK);
        let holes = frames.filter(is_hole).count() as u64;
        let kept = self.hotplug.zone(node, zone);
        assert_eq!((kept.online, kept.present), (online, online - holes), "{zone:?}");
        if let (Some(first), Some(last)) = (members().next(), members().next_back()) {
            let spanned = range(first * BLOCK, (last + 1 - first) * BLOCK);
            assert_eq!(kept.spanned, spanned, "{zone:?}");
            let contiguous = spanned.frames() == online;
            assert_eq!(kept.is_contiguous(), contiguous, "{zone:?}");
        }
        online
    }

    /// The machine agrees with itself.
    pub(crate) fn validate(&self) {
        if let Err(fault) = self.world.frames.validate() {
            panic!("{fault:?}");
        }
    }

    /// Everything that the model says is free can be had, frame by frame, and given back.
    pub(crate) fn find_everything(&mut self) {
        let one = Ask { movable: true, ..Ask::frames(1) };
        let mut taken = vec![];
        while let Some(frame) = self.world.alloc(&one) {
            taken.push(frame);
        }
        self.world.rng.shuffle(&mut taken);
        self.validate();
        self.check();
        for frame in taken {
            self.world.free(frame);
        }
        self.validate();
    }
}
