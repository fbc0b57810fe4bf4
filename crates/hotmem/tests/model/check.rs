//! Compares the machine with the model.

use crate::ask::Ask;
use crate::lifecycle::NODES;
use crate::world::{BOOT, Block, DESCRIPTORS, Frame, Machine, SIZE, Tag, Words, World};
use hotmem::{Counts, PfnRange, State, ZonePart};
use hotmem_testkit::Validated as _;
use hotmem_testkit::{BLOCK, numbers, range};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl World<'_> {
    /// Reads which frames the engine has allocated or freed as metadata, the only fact that the
    /// model cannot predict. Returns how many it has allocated. The model knows which pageblocks
    /// hold descriptors.
    pub(crate) fn sync_metadata(&mut self) -> usize {
        let (mut kept, own): (Vec<_>, Vec<_>) =
            self.frames.metadata().partition(|metadata| metadata.frames.frames() >= BLOCK);
        kept.sort_by_key(|metadata| metadata.frames.start());
        assert!(self.kept().eq(kept.iter().copied()), "{kept:?}");
        let now: BTreeSet<u64> = own.iter().flat_map(|metadata| numbers(metadata.frames)).collect();
        let before = std::mem::replace(&mut self.metadata, now.clone());
        for &dropped in before.difference(&now) {
            self.frame[dropped as usize] = Frame::Free;
        }
        for &taken in now.difference(&before) {
            assert_eq!(self.frame[taken as usize], Frame::Free, "metadata at {taken:#x}");
            assert!(self.block_of(taken).online, "metadata at {taken:#x}");
            self.frame[taken as usize] = Frame::Metadata;
            self.blocks[(taken / BLOCK) as usize].reported = false;
        }
        now.difference(&before).count()
    }

    /// Checks whether metadata grew when words were made or existed already. Words that were not
    /// allocated came from the word reserve, which is refilled later.
    pub(crate) fn check_words(&mut self, there: bool, grown: bool) {
        let longest = if cfg!(hotmem_geometry = "small") { 2 } else { 3 };
        let is_exhausted = !self.can_grant(&Ask::frames(longest));
        assert!(there || grown || is_exhausted);
        assert!(!there || !grown || self.lacking);
        self.lacking = (self.lacking || !there) && is_exhausted;
    }

    /// Records that a region was withdrawn. Its words stay as long as other memory of their chunk
    /// is present.
    pub(crate) fn retire_words(&mut self, region: PfnRange) {
        let chunks = region.chunks(Words::CHUNK).map(|part| part.start().number() / Words::CHUNK);
        let is_there = |block: &Block| block.present || block.device || block.in_transit;
        let blocks =
            |chunk: u64| self.blocks.chunks((Words::CHUNK / BLOCK) as usize).nth(chunk as usize);
        let gone =
            chunks.filter(|&chunk| !blocks(chunk).is_some_and(|all| all.iter().any(is_there)));
        self.words.retire(gone);
    }

    /// Reads which pageblocks are still reported: an operation may have claimed and freed some of
    /// them.
    pub(crate) fn sync_reported(&mut self) {
        for (number, block) in (0..).zip(&mut self.blocks).filter(|(_, block)| block.reported) {
            let counts = self.frames.counts_in(range(number * BLOCK, BLOCK));
            block.reported = counts.reported != 0;
        }
    }

    /// Returns the first word of a frame that is not in use.
    fn untouched(&self, frame: u64) -> u64 {
        match self.frame[frame as usize] {
            Frame::Descriptors => DESCRIPTORS,
            _ => !frame,
        }
    }

    /// Marks memory that must not be accessed.
    pub(crate) fn forbid(&self, range: PfnRange) {
        for frame in numbers(range) {
            self.memory.word(frame).store(self.untouched(frame), Ordering::Relaxed);
        }
    }

    /// Checks that marked memory was not accessed, except for metadata.
    pub(crate) fn assert_untouched(&self, range: PfnRange) {
        let is_metadata = |&frame: &u64| self.frame[frame as usize] == Frame::Metadata;
        for frame in numbers(range).filter(|frame| !is_metadata(frame)) {
            let now = self.memory.word(frame).load(Ordering::Relaxed);
            assert_eq!(now, self.untouched(frame), "frame {frame:#x} was touched");
        }
    }
}

impl Machine<'_> {
    /// Compares each pageblock and each zone with the model.
    pub(crate) fn check(&mut self) {
        self.world.sync_reported();
        let numbers = 0..SIZE / BLOCK;
        let free: u64 = numbers.map(|number| self.check_block(range(number * BLOCK, BLOCK))).sum();
        assert_eq!(self.world.frames.counts().free, free);
        self.check_zones();
        self.world.check_descriptors();
    }

    /// Checks a pageblock. Returns the number of its free frames.
    fn check_block(&self, all: PfnRange) -> u64 {
        let world = &self.world;
        let block = world.block_of(all.start().number());
        let found = world.frames.counts_in(all);
        let frames_if = |is: bool| if is { BLOCK } else { 0 };
        let in_sight = block.online && !block.is_held();
        let (mut free, mut poisoned) = (0, 0);
        for frame in numbers(all).filter(|_| in_sight) {
            free += u64::from(world.frame[frame as usize] == Frame::Free);
            poisoned += u64::from(world.frame[frame as usize] == Frame::Poisoned);
        }
        let expected = Counts {
            announced: frames_if(block.announced),
            present: frames_if(block.present),
            online: frames_if(block.online),
            movable: frames_if(block.online && block.movable),
            isolated: frames_if(block.online && block.is_held()),
            reporting: frames_if(block.out),
            reported: frames_if(block.reported),
            free,
            poisoned,
            // Wholly free pageblocks may stay split as hints.
            free_whole: found.free_whole.min(frames_if(free == BLOCK)),
        };
        assert_eq!(found, expected, "{all:?}: {block:?}");
        let state = match (block.announced, block.present, block.online, block.movable) {
            (false, ..) => State::Unknown,
            (true, false, ..) if block.device => State::Device,
            (true, false, ..) => State::Absent,
            (true, true, false, _) => State::Offline,
            (true, true, true, false) => State::Online,
            (true, true, true, true) => State::OnlineMovable,
        };
        assert_eq!(self.hotplug.state_at(all.start(), all.end()), (all, state));
        free
    }

    /// Compares the statistics of zones and nodes with a walk over all pageblocks.
    fn check_zones(&self) {
        let world = &self.world;
        let mut zones = [[Walked::default(); 3]; NODES.len()];
        for number in (0..SIZE / BLOCK).filter(|&number| world.blocks[number as usize].online) {
            let node = world.node_of(number * BLOCK).expect("online memory is announced");
            let all = range(number * BLOCK, BLOCK);
            let zone = match world.blocks[number as usize].movable {
                true => 2,
                false => usize::from(all.start() >= world.low_end),
            };
            let nth = NODES.iter().position(|&other| other == node).expect("a few");
            zones[nth][zone].add(world, all);
        }
        for (node, walked) in NODES.into_iter().zip(zones) {
            for (part, walked) in ZonePart::ALL.into_iter().zip(walked) {
                let kept = self.hotplug.zone(node, part);
                let Walked { spanned, online, present, managed } = walked;
                let found = (kept.spanned, kept.online, kept.present, kept.managed);
                assert_eq!(found, (spanned, online, present, managed), "{node:?} {part:?}");
                let contiguous = world.boot_complete && online > 0 && spanned.frames() == online;
                assert_eq!(kept.contiguous, contiguous, "{node:?} {part:?}");
            }
        }
        let there = NODES.into_iter().zip(zones);
        let there = there.filter(|(_, zones)| zones.iter().any(|zone| zone.online > 0));
        let there: BTreeSet<_> = there.map(|(node, _)| node).collect();
        assert_eq!(world.nodes, there);
        assert!(self.hotplug.nodes().eq(there));
    }

    /// Validates the machine.
    pub(crate) fn validate(&self) {
        if let Err(fault) = self.world.frames.validated() {
            panic!("{fault:?}");
        }
    }

    /// Checks that all memory that is free in the model can be allocated frame by frame, and frees
    /// it again.
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

/// The statistics of a zone, found by a walk upwards over its online pageblocks.
#[derive(Clone, Copy, Default)]
struct Walked {
    spanned: PfnRange,
    online: u64,
    present: u64,
    managed: u64,
}

impl Walked {
    fn add(&mut self, world: &World<'_>, block: PfnRange) {
        let start = if self.online == 0 { block.start() } else { self.spanned.start() };
        self.spanned = PfnRange::new(start, block.end()).expect("upwards");
        self.online += BLOCK;
        for frame in numbers(block) {
            let frame = world.frame[frame as usize];
            let is_reserved = matches!(frame, Frame::Used(Tag { owner: BOOT, .. }));
            self.present += u64::from(frame != Frame::Hole);
            let is_own = matches!(frame, Frame::Hole | Frame::Descriptors);
            self.managed += u64::from(!is_own && !is_reserved);
        }
    }
}
