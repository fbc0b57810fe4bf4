//! Compares memory blocks with a walk over their pageblocks.

use crate::machine::Machine;
use crate::model::{Block, FrameState};
use hotmem::{BlockerKind, MemoryBlock, MemoryBlockState, PfnRange, Zone};
use hotmem_testkit::{PAGEBLOCK, SECTION, numbers};

impl Machine<'_> {
    /// Checks the state of each memory block, and its blocker.
    pub(crate) fn check_memory_blocks(&mut self) {
        let frames = SECTION << self.model.rng.u32(..3);
        let mut actual: Vec<_> = self.hotplug.memory_blocks(frames).collect();
        actual.iter().for_each(|block| self.check_blocker_of(block));
        actual.iter_mut().for_each(|block| block.blocker = None);
        actual.sort_by_key(|block| block.range.start());
        let mut regions = self.model.regions.clone();
        regions.sort_by_key(|region| region.range.start());
        let parts = regions.iter().flat_map(|region| region.range.chunks(frames));
        let expected: Vec<_> = parts.filter_map(|part| self.expected_block(part)).collect();
        assert_eq!(actual, expected);
    }

    fn expected_block(&self, range: PfnRange) -> Option<MemoryBlock> {
        let model = &self.model;
        let blocks = || range.chunks(PAGEBLOCK).map(|b| *model.block_of(b.start().number()));
        let any = |is: fn(&Block) -> bool| blocks().any(|block| is(&block));
        let (online, offline) = (any(|b| b.online), any(|b| b.is_present && !b.online));
        let device = blocks().filter(|block| block.device).count() as u64 * PAGEBLOCK;
        let is_going_offline = any(|b| b.online && b.is_held() && !b.reporting);
        let state = match (online, offline) {
            (false, false) if device == 0 => return None,
            (false, false) => MemoryBlockState::Device,
            _ if is_going_offline => MemoryBlockState::GoingOffline,
            (true, false) => MemoryBlockState::Online,
            (false, true) => MemoryBlockState::Offline,
            (true, true) => MemoryBlockState::Mixed,
        };
        let zone = match (any(|b| b.online && b.movable), any(|b| b.online && !b.movable)) {
            (true, false) => Some(Zone::Movable),
            (false, true) => Some(Zone::Kernel),
            _ => None,
        };
        let node = range.chunks(PAGEBLOCK).find_map(|b| model.node_of(b.start().number()))?;
        let poisoned = model.poisoned_frames.range(numbers(range)).count() as u64;
        Some(MemoryBlock { range, node, state, zone, device, poisoned, blocker: None })
    }

    /// Checks that the blocker that the engine returns does block the removal, and that no memory
    /// below the blocker does. If the engine returns none, checks that no memory blocks the
    /// removal.
    fn check_blocker_of(&self, block: &MemoryBlock) {
        let model = &self.model;
        let is_kernel_memory = |frame: &u64| {
            let block = model.block_of(*frame);
            block.online && !block.movable
        };
        let is_used = |frame: &u64| {
            let is_used = matches!(
                model.frame_states[*frame as usize],
                FrameState::Used(_) | FrameState::Hole
            );
            is_used && is_kernel_memory(frame) && !model.poisoned_frames.contains(frame)
        };
        let first = numbers(block.range).find(is_used);
        let is_boot = model.block_of(block.range.start().number()).is_boot;
        let Some(blocker) = block.blocker.filter(|b| b.kind != BlockerKind::BootMemory) else {
            assert_eq!((first, block.blocker.is_some()), (None, is_boot), "{block:?}");
            return;
        };
        assert!(block.range.covers(blocker.range), "{blocker:?}");
        // A poisoned frame in use is named only if its pageblock has no other frame in use.
        if blocker.kind == BlockerKind::Poisoned {
            assert!(numbers(blocker.range).all(|frame| model.poisoned_frames.contains(&frame)));
            assert!(first.is_none_or(|first| first >= blocker.range.start().number()));
            return;
        }
        assert!(matches!(blocker.kind, BlockerKind::Unmovable(_)), "{blocker:?}");
        // Metadata may block the removal as well.
        let is_blocking = |frame: u64| {
            is_used(&frame) || model.frame_states[frame as usize] == FrameState::Metadata
        };
        let blocking_frames = numbers(blocker.range);
        assert!(
            !blocking_frames.is_empty() && blocking_frames.clone().all(is_blocking),
            "{blocker:?}"
        );
        assert!(
            first.is_none_or(|first| first >= blocking_frames.start),
            "{blocker:?}, not {first:?}"
        );
    }
}
