//! Takes snapshots of the state of an instance, for comparison.

use crate::ranges::{PAGEBLOCK, SECTION, numbers, pfn, range};
use crate::raw::{RawRanges, Validated};
use hotmem::{
    Counts, Hotplug, Map, MemoryBlock, Metadata, NodeId, Pfn, PfnRange, Platform, Poisoned,
    RangeErrorKind, RegionId, State, Zone, ZoneInfo,
};
use std::collections::BTreeSet;

/// The distance of the frames that a snapshot queries. Snapshots of large instances are a sample.
const SAMPLE_STEP: usize = if cfg!(hotmem_geometry = "small") { 1 } else { 61 };

/// All state of an instance that can be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    blocks: Vec<(State, Counts)>,
    metadata: Vec<Metadata>,
    words: u64,
    regions: Vec<(RegionId, PfnRange)>,
    zones: Vec<(NodeId, [ZoneInfo; 2])>,
    memory_blocks: Vec<MemoryBlock>,
    poisoned_frames: Vec<(Pfn, Poisoned)>,
    free_frames: Vec<u64>,
}

impl Snapshot {
    /// Returns the snapshot without the record of which free pageblocks are divided: an allocation
    /// that is freed at once may leave one divided.
    #[must_use]
    pub fn ignoring_divisions(mut self) -> Self {
        self.blocks.iter_mut().for_each(|(_, counts)| counts.free_whole = 0);
        self
    }

    /// Takes a snapshot of the first `size` frames. The test names the frames in use as `used`. For
    /// each other frame that is not metadata, a refused free shows that the frame is not allocated.
    ///
    /// # Panics
    /// Panics if the instance's state is inconsistent.
    #[must_use]
    pub fn of<P: Platform, M: Map>(
        hotplug: &Hotplug<'_, P, M>,
        size: u64,
        used: &[PfnRange],
    ) -> Self {
        let frames = hotplug.frames();
        frames.validated().expect("the instance is consistent");
        let metadata: Vec<_> = frames.metadata().collect();
        let state =
            |block: u64| hotplug.state_at(pfn(block * PAGEBLOCK), pfn((block + 1) * PAGEBLOCK)).1;
        let used_or_metadata: BTreeSet<u64> = (used.iter().copied())
            .chain(metadata.iter().map(|metadata| metadata.frames))
            .flat_map(numbers)
            .collect();
        let is_free = |&frame: &u64| {
            !used_or_metadata.contains(&frame)
                && match frames
                    .free_range(range(frame, 1))
                    .expect_err("a frame that the test does not list in `used` is not allocated")
                    .kind
                {
                    RangeErrorKind::NotAllocated => true,
                    RangeErrorKind::Foreign => false,
                    kind => unreachable!("{kind:?}"),
                }
        };
        let blocks = (0..size / PAGEBLOCK)
            .map(|block| (state(block), frames.counts_in(range(block * PAGEBLOCK, PAGEBLOCK))));
        Snapshot {
            blocks: blocks.collect(),
            words: frames.counts().words,
            regions: hotplug.regions().collect(),
            zones: hotplug
                .nodes()
                .map(|node| (node, Zone::ALL.map(|zone| hotplug.zone(node, zone))))
                .collect(),
            memory_blocks: hotplug.memory_blocks(SECTION).collect(),
            poisoned_frames: hotplug.frames().poisoned().collect(),
            free_frames: (0..size).step_by(SAMPLE_STEP).filter(is_free).collect(),
            metadata,
        }
    }
}
