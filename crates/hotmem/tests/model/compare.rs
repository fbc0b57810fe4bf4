//! Compares the machine with the model.

use crate::lifecycle::NODES;
use crate::machine::Machine;
use crate::model::{DESCRIPTORS_OWNER, FrameState, Model, SIZE};
use crate::model_request::ModelRequest;
use hotmem::{Counts, PfnRange, State, ZonePart};
use hotmem_testkit::Validated as _;
use hotmem_testkit::{PAGEBLOCK, numbers, range};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl Model<'_> {
    /// Reads from the engine which frames are metadata now, the only fact that the model cannot
    /// predict. Returns the number of frames that have become metadata. Checks that the engine
    /// lists the pageblocks with descriptors that the model knows.
    pub(crate) fn count_new_metadata(&mut self) -> usize {
        self.record_recalls();
        let (mut descriptor_ranges, engine_metadata): (Vec<_>, Vec<_>) =
            self.frames.metadata().partition(|metadata| metadata.frames.frames() >= PAGEBLOCK);
        descriptor_ranges.sort_by_key(|metadata| metadata.frames.start());
        assert!(
            self.descriptor_ranges().eq(descriptor_ranges.iter().copied()),
            "{descriptor_ranges:?}"
        );
        let metadata_now: BTreeSet<u64> =
            engine_metadata.iter().flat_map(|metadata| numbers(metadata.frames)).collect();
        let before = std::mem::replace(&mut self.metadata, metadata_now.clone());
        for &frame in before.difference(&metadata_now) {
            self.frame_states[frame as usize] = FrameState::Free;
        }
        for &frame in metadata_now.difference(&before) {
            assert_eq!(
                self.frame_states[frame as usize],
                FrameState::Free,
                "metadata at {frame:#x}"
            );
            assert!(self.block_of(frame).online, "metadata at {frame:#x}");
            self.frame_states[frame as usize] = FrameState::Metadata;
            self.blocks[(frame / PAGEBLOCK) as usize].is_reported = false;
        }
        metadata_now.difference(&before).count()
    }

    /// Checks that metadata grew if the words did not exist (`words_existed` is false), and
    /// otherwise only if the word reserve had to be refilled. If memory was exhausted, the words
    /// came from the word reserve, so metadata may grow later instead.
    pub(crate) fn check_words(&mut self, words_existed: bool, has_grown: bool) {
        let longest_piece = if cfg!(hotmem_geometry = "small") { 2 } else { 3 };
        let is_exhausted = !self.can_grant(&ModelRequest::frames(longest_piece));
        assert!(words_existed || has_grown || is_exhausted);
        assert!(!words_existed || !has_grown || self.reserve_may_be_short);
        self.reserve_may_be_short = (self.reserve_may_be_short || !words_existed) && is_exhausted;
    }

    /// Reads from the engine which pageblocks are still reported: an operation may have claimed and
    /// freed some of them.
    pub(crate) fn sync_reported(&mut self) {
        for (number, block) in (0..).zip(&mut self.blocks).filter(|(_, block)| block.is_reported) {
            let counts = self.frames.counts_in(range(number * PAGEBLOCK, PAGEBLOCK));
            block.is_reported = counts.reported != 0;
        }
    }

    /// Returns the marker that an unused frame holds in its first word.
    fn marker_of(&self, frame: u64) -> u64 {
        match self.frame_states[frame as usize] {
            FrameState::Descriptors => DESCRIPTORS_OWNER,
            _ => !frame,
        }
    }

    /// Writes the marker to each frame of memory that must not be accessed.
    pub(crate) fn mark_forbidden(&self, range: PfnRange) {
        for frame in numbers(range) {
            self.memory.word(frame).store(self.marker_of(frame), Ordering::Relaxed);
        }
    }

    /// Checks that all frames of marked memory except metadata still hold the marker.
    pub(crate) fn assert_untouched(&self, range: PfnRange) {
        let is_metadata = |&frame: &u64| self.frame_states[frame as usize] == FrameState::Metadata;
        for frame in numbers(range).filter(|frame| !is_metadata(frame)) {
            let now = self.memory.word(frame).load(Ordering::Relaxed);
            assert_eq!(now, self.marker_of(frame), "frame {frame:#x} was touched");
        }
    }
}

impl Machine<'_> {
    /// Compares each pageblock and each zone with the model.
    pub(crate) fn check(&mut self) {
        self.model.sync_reported();
        let numbers = 0..SIZE / PAGEBLOCK;
        let free: u64 =
            numbers.map(|number| self.check_block(range(number * PAGEBLOCK, PAGEBLOCK))).sum();
        assert_eq!(self.model.frames.counts().free, free);
        let is_used = |state: &&FrameState| matches!(state, FrameState::Used(_));
        let used = self.model.frame_states.iter().filter(is_used).count() as u64;
        assert_eq!(self.model.frames.allocated_frames(), Some(used));
        self.check_zones();
        self.model.check_descriptors();
    }

    /// Checks a pageblock. Returns the number of its free frames.
    fn check_block(&self, block_range: PfnRange) -> u64 {
        let model = &self.model;
        let block = model.block_of(block_range.start().number());
        let actual = model.frames.counts_in(block_range);
        let frames_if = |condition: bool| if condition { PAGEBLOCK } else { 0 };
        let is_allocatable = block.online && !block.is_held();
        let is_ram = |&frame: &u64| model.frame_states[frame as usize] != FrameState::Hole;
        let ram = numbers(block_range).filter(is_ram).count() as u64;
        let ram_if = |condition: bool| if condition { ram } else { 0 };
        let (mut free, mut poisoned) = (0, 0);
        for frame in numbers(block_range).filter(|_| is_allocatable) {
            free += u64::from(model.frame_states[frame as usize] == FrameState::Free);
            poisoned += u64::from(model.frame_states[frame as usize] == FrameState::Poisoned);
        }
        let (online, isolated) = (ram_if(block.online), ram_if(block.online && block.is_held()));
        let expected = Counts {
            announced: frames_if(block.is_announced),
            present: ram_if(block.is_present),
            online,
            movable: ram_if(block.online && block.movable),
            isolated,
            reporting: frames_if(block.reporting),
            reported: frames_if(block.is_reported),
            free,
            poisoned,
            used: online - free - isolated - poisoned,
            words: 0,
            bitmaps: 0,
            // A pageblock that a CPU's hint names may stay divided although all its frames are
            // free, so it may be missing here.
            free_whole: actual.free_whole.min(frames_if(free == PAGEBLOCK)),
        };
        assert_eq!(actual, expected, "{block_range:?}: {block:?}");
        let state = match (block.is_announced, block.is_present, block.online, block.movable) {
            (false, ..) => State::Unknown,
            (true, false, ..) if block.device => State::Device,
            (true, false, ..) => State::Absent,
            (true, true, false, _) if block.has_prepared_change => State::Removing,
            (true, true, false, _) => State::Offline,
            (true, true, true, false) => State::Online,
            (true, true, true, true) => State::OnlineMovable,
        };
        let (start, end) = (block_range.start(), block_range.end());
        assert_eq!(self.hotplug.state_at(start, end), (block_range, state));
        free
    }

    /// Compares the statistics of zones and nodes with a walk over all pageblocks.
    fn check_zones(&self) {
        let model = &self.model;
        let mut zones = [[WalkedZone::default(); 3]; NODES.len()];
        for number in (0..SIZE / PAGEBLOCK).filter(|&number| model.blocks[number as usize].online) {
            let node = model.node_of(number * PAGEBLOCK).expect("online memory is announced");
            let block_range = range(number * PAGEBLOCK, PAGEBLOCK);
            let part = match model.blocks[number as usize].movable {
                true => ZonePart::Movable,
                false if block_range.start() < model.low_end => ZonePart::Low,
                false => ZonePart::Normal,
            };
            let node = NODES.iter().position(|&other| other == node).expect("the node is in NODES");
            zones[node][part as usize].add(model, block_range);
        }
        for (node, walked) in NODES.into_iter().zip(zones) {
            for (part, walked) in ZonePart::ALL.into_iter().zip(walked) {
                let recorded = self.hotplug.zone(node, part);
                let WalkedZone { spanned, online, present } = walked;
                let actual = (recorded.spanned, recorded.online, recorded.present);
                assert_eq!(actual, (spanned, online, present), "{node:?} {part:?}");
                let contiguous = model.boot_complete && online > 0 && spanned.frames() == online;
                assert_eq!(recorded.contiguous, contiguous, "{node:?} {part:?}");
            }
        }
        let nodes_with_memory = NODES.into_iter().zip(zones);
        let nodes_with_memory =
            nodes_with_memory.filter(|(_, zones)| zones.iter().any(|zone| zone.online > 0));
        let nodes_with_memory: BTreeSet<_> = nodes_with_memory.map(|(node, _)| node).collect();
        assert_eq!(model.nodes, nodes_with_memory);
        assert!(self.hotplug.nodes().eq(nodes_with_memory));
    }

    /// Checks that the engine finds no fault in its own state.
    pub(crate) fn validate(&self) {
        if let Err(fault) = self.model.frames.validated() {
            panic!("{fault:?}");
        }
    }

    /// Allocates all free memory frame by frame, checks that no frame that is free in the model was
    /// left over, and frees all of it again.
    pub(crate) fn find_everything(&mut self) {
        let one = ModelRequest { movable: true, ..ModelRequest::frames(1) };
        let mut allocated = vec![];
        while let Some(frame) = self.model.alloc(&one) {
            allocated.push(frame);
        }
        self.model.rng.shuffle(&mut allocated);
        self.validate();
        self.check();
        for frame in allocated {
            self.model.free(frame);
        }
        self.validate();
    }
}

/// The statistics of a zone, computed from its online pageblocks in ascending order.
#[derive(Clone, Copy, Default)]
struct WalkedZone {
    spanned: PfnRange,
    online: u64,
    present: u64,
}

impl WalkedZone {
    fn add(&mut self, model: &Model<'_>, block: PfnRange) {
        let start = if self.online == 0 { block.start() } else { self.spanned.start() };
        self.spanned =
            PfnRange::new(start, block.end()).expect("pageblocks are added in ascending order");
        self.online += PAGEBLOCK;
        for frame in numbers(block) {
            self.present += u64::from(model.frame_states[frame as usize] != FrameState::Hole);
        }
    }
}
