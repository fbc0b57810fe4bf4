//! Reports the state of memory blocks, which are ranges of 128 MiB to 2 GiB, for the listing of the
//! lab and for tests (feature `internals`).
//!
//! The engine stores nothing per memory block; it computes every answer from the words of the
//! sections.
#![cfg(feature = "internals")]

use super::Hotplug;
use crate::addr::PfnRange;
use crate::blocker::{Blocker, BlockerKind};
use crate::geometry::{PAGEBLOCK_FRAMES, PFN_LIMIT, SECTION_FRAMES};
use crate::mapping::Map;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Class, NodeId, Section, SectionPart, Zone};

/// A snapshot of a memory block that has present memory or device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryBlock {
    /// The range of the memory block.
    pub range: PfnRange,
    /// The node of the memory block. If its parts belong to several nodes, this is the node of the
    /// lowest part that is present or device memory.
    pub node: NodeId,
    /// The state of the memory block.
    pub state: MemoryBlockState,
    /// The zone in which the memory block is online; `None` if no part of it is online, or parts of
    /// it are online in both zones.
    pub zone: Option<Zone>,
    /// The number of its frames that are device memory.
    pub device: u64,
    /// The number of its frames that are poisoned.
    pub poisoned: u64,
    /// The lowest memory that prevents the block from being removed now, if any: frames in use in
    /// kernel memory, otherwise boot memory. The kernel has promised to migrate its data in movable
    /// memory, but not in kernel memory.
    pub blocker: Option<Blocker>,
}

/// The state of a memory block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryBlockState {
    /// All present memory of the block is online.
    Online,
    /// All present memory of the block is offline.
    Offline,
    /// An isolation token owns a part of the block.
    GoingOffline,
    /// A part of the block is online and a part is offline.
    Mixed,
    /// No part of the block is RAM, and some or all of it is device memory.
    Device,
}

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Returns the memory blocks that have present or device memory. Each is `frames` frames long
    /// and aligned to its size. `frames` is a power of two and at least a section, as in Linux;
    /// other numbers are rounded up.
    ///
    /// Cost: O(sections) of the regions, and two cache lines for each divided pageblock of kernel
    /// memory until one is found that is in use.
    pub fn memory_blocks(&self, frames: u64) -> impl Iterator<Item = MemoryBlock> {
        let frames = frames.clamp(SECTION_FRAMES as u64, PFN_LIMIT).next_power_of_two();
        self.words().announced().flat_map(move |region| {
            let blocks = region.range.chunks(frames);
            blocks.filter_map(move |block| self.memory_block(block))
        })
    }

    fn memory_block(&self, range: PfnRange) -> Option<MemoryBlock> {
        let mut counts = BlockCounts::default();
        let mut node = None;
        for SectionPart { section, blocks } in self.section_parts(range) {
            if counts.add(&section, blocks) {
                node.get_or_insert(section.node(self.words()));
            }
            counts.has_isolated |= is_leaving(SectionPart { section, blocks });
        }
        let state = match (counts.online, counts.offline) {
            (0, 0) if counts.device == 0 => return None,
            (0, 0) => MemoryBlockState::Device,
            _ if counts.has_isolated => MemoryBlockState::GoingOffline,
            (_, 0) => MemoryBlockState::Online,
            (0, _) => MemoryBlockState::Offline,
            _ => MemoryBlockState::Mixed,
        };
        let zone = match (counts.movable, counts.online - counts.movable) {
            (1.., 0) => Some(Zone::Movable),
            (0, 1..) => Some(Zone::Kernel),
            _ => None,
        };
        let poisoned = self.frames.call().poisoned_in(range).count() as u64;
        let device = u64::from(counts.device) * PAGEBLOCK_FRAMES as u64;
        let node = self.words().node_of_index(node?);
        let boot_memory = self.boot_region_at(range.start()).map(|boot| boot.intersection(range));
        let blocker = self
            .first_used_in_kernel_memory(range)
            .or(boot_memory.map(|boot| BlockerKind::BootMemory.at(boot)));
        Some(MemoryBlock { range, node, state, zone, device, poisoned, blocker })
    }

    /// Returns the lowest frames of `range` that are in use in kernel memory.
    fn first_used_in_kernel_memory(&self, range: PfnRange) -> Option<Blocker> {
        for SectionPart { section, blocks } in self.section_parts(range) {
            let kernel = section.available(Class::online(Zone::Kernel)) & blocks;
            for block in section.blocks(kernel) {
                if block.live_state().is_none() {
                    continue;
                }
                if let Some(range) = self.frames.call().used_in(block) {
                    return Some(BlockerKind::Unmovable("kernel memory in use").at(range));
                }
                if let Some(frame) = self.frames.call().poisoned_in_use(block.range()) {
                    return Some(BlockerKind::Poisoned.at(frame));
                }
            }
        }
        None
    }
}

/// Returns whether a token owns one of these pageblocks. Pageblocks that are being reported do not
/// count, because they stay online.
fn is_leaving(SectionPart { section, blocks }: SectionPart<'_>) -> bool {
    let held = section.isolated.load(Ordering::Acquire) & section.online.load(Ordering::Acquire);
    section.blocks(held & blocks).any(|block| !block.state().load().is_reporting())
}

/// Counts the pageblocks of a memory block by their state.
#[derive(Default)]
struct BlockCounts {
    online: u32,
    offline: u32,
    movable: u32,
    device: u32,
    has_isolated: bool,
}

impl BlockCounts {
    /// Adds pageblocks to the counts. Returns whether any of them is present or device memory.
    fn add(&mut self, section: &Section, blocks: u64) -> bool {
        let load = |word: &crate::sync::AtomicU64| word.load(Ordering::Acquire) & blocks;
        let (present, online) = (load(&section.present), load(&section.online));
        self.online += online.count_ones();
        self.offline += (present & !online).count_ones();
        self.movable += (online & load(&section.movable)).count_ones();
        let device = section.device_blocks() & blocks;
        self.device += device.count_ones();
        present | device != 0
    }
}
