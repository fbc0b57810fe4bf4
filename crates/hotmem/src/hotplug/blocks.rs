//! Memory blocks: a view of the machine for people and policy tools, in pieces of 128 MiB to 2 GiB.
//!
//! Nothing is kept per block; every answer is a question asked of the section words.

use super::{Blocker, Hotplug, Why};
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, PFN_LIMIT, SECTION_FRAMES};
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Class, NodeId, Part, Section, Zone};

/// A memory block, as far as it is present or a device's. A view of one moment: it holds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryBlock {
    /// Where it lies.
    pub range: PfnRange,
    /// The node that it belongs to, or else the lowest part of it that is there.
    pub node: NodeId,
    /// What it is now.
    pub state: MemoryBlockState,
    /// The zone that it is online in; `None` if it is not online, or online in both.
    pub zone: Option<Zone>,
    /// Frames of it that are device memory, whatever the rest of it is.
    pub device: u64,
    /// Frames of it that are poisoned: if it is offline, it cannot come online.
    pub poisoned: u64,
}

/// The state of a memory block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryBlockState {
    /// All that is present of it is online.
    Online,
    /// All that is present of it is offline.
    Offline,
    /// A part of it is isolated by a token.
    GoingOffline,
    /// A part of it is online and a part offline.
    Mixed,
    /// Nothing of it is RAM, and a part or all is a device's.
    Device,
}

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// The memory blocks that have something present or a device's, each `frames` frames (a power
    /// of two; at least a section, as in Linux) and aligned to that.
    ///
    /// Cost: O(sections) of the regions.
    pub fn memory_blocks(&self, frames: u64) -> impl Iterator<Item = MemoryBlock> {
        let frames = frames.clamp(SECTION_FRAMES as u64, PFN_LIMIT).next_power_of_two();
        self.words().announced().flat_map(move |region| {
            let blocks = region.range.chunks(frames);
            blocks.filter_map(move |block| self.memory_block(block))
        })
    }

    fn memory_block(&self, range: PfnRange) -> Option<MemoryBlock> {
        let mut all = Summary::default();
        let mut node = None;
        for Part { section, blocks } in self.parts(range) {
            if all.add(&section, blocks) {
                node.get_or_insert(section.node());
            }
            all.isolated |= is_leaving(Part { section, blocks });
        }
        let state = match (all.online, all.offline) {
            (0, 0) if all.device == 0 => return None,
            (0, 0) => MemoryBlockState::Device,
            _ if all.isolated => MemoryBlockState::GoingOffline,
            (_, 0) => MemoryBlockState::Online,
            (0, _) => MemoryBlockState::Offline,
            _ => MemoryBlockState::Mixed,
        };
        let zone = match (all.movable, all.online - all.movable) {
            (1.., 0) => Some(Zone::Movable),
            (0, 1..) => Some(Zone::Kernel),
            _ => None,
        };
        let poisoned = self.frames.poisoned_in(range).count() as u64;
        let device = u64::from(all.device) * PAGEBLOCK_FRAMES as u64;
        let node = self.words().node_named(node?);
        Some(MemoryBlock { range, node, state, zone, device, poisoned })
    }

    /// Whether a memory block could go offline as things are: what stands in the way for certain is
    /// named. What a kernel has in movable memory it has promised to migrate; what it has in
    /// kernel memory it has not. Of the view, only the range is asked for.
    ///
    /// # Errors
    /// The first [`Blocker`], from the bottom up.
    pub fn removable(&self, block: &MemoryBlock) -> Result<(), Blocker> {
        for Part { section, blocks } in self.parts(block.range) {
            let kernel = section.available(Class::online(Zone::Kernel)) & blocks;
            for found in section.blocks(kernel) {
                if found.state.load().is_live()
                    && let Some(range) = self.frames.used_in(&found)
                {
                    return Err(Blocker { range, why: Why::Pinned("kernel memory in use") });
                }
            }
        }
        Ok(())
    }
}

/// Whether a token holds one of these pageblocks. Those that are out for reporting come back.
fn is_leaving(Part { section, blocks }: Part<'_>) -> bool {
    let held = section.isolated.load(Ordering::Acquire) & section.online.load(Ordering::Acquire);
    section.blocks(held & blocks).any(|block| !block.state.load().is_out())
}

/// Pageblocks of a memory block, by what they are.
#[derive(Default)]
struct Summary {
    online: u32,
    offline: u32,
    movable: u32,
    device: u32,
    isolated: bool,
}

impl Summary {
    /// Says whether something is there.
    fn add(&mut self, section: &Section, blocks: u64) -> bool {
        let load = |word: &crate::sync::AtomicU64| word.load(Ordering::Acquire) & blocks;
        let (present, online) = (load(&section.present), load(&section.online));
        self.online += online.count_ones();
        self.offline += (present & !online).count_ones();
        self.movable += (online & load(&section.movable)).count_ones();
        let device = section.device() & blocks;
        self.device += device.count_ones();
        present | device != 0
    }
}
