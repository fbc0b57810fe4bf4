//! Defines a kernel that maps, allocates and migrates memory.

use crate::machine::pageblocks;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{
    AllocRequest, Allocation, Frames, Hooks, Migration, OneCpu, Pfn, PfnRange, Veto, Zone,
};
use hotmem_testkit::forwarding::{Free, TestMapping};
use std::collections::BTreeSet;

pub(crate) struct Kernel<'f> {
    frames: &'f Frames<OneCpu>,
    /// The pageblocks of plugged memory that are in the direct map.
    pub(crate) mapped: BTreeSet<u64>,
    /// The kernel's allocations.
    pub(crate) allocations: Vec<Allocation<'f, OneCpu>>,
    /// Whether the allocations cannot be migrated.
    pub(crate) has_pinned_allocations: bool,
    pub(crate) vetoes_offlining: bool,
    /// The reason for which the kernel vetoes all onlining, if it does.
    pub(crate) online_veto: Option<&'static str>,
    /// The number of frames for which `going_online` was called, but neither `onlined` nor
    /// `online_cancelled`.
    pub(crate) frames_going_online: u64,
    /// Whether sections that are added wholly keep a pageblock for their descriptors.
    pub(crate) keeps_descriptors: bool,
    /// The first pageblock that cannot be mapped. No pageblock above it can be mapped either.
    pub(crate) first_unmappable_pageblock: u64,
    /// The number of page tables for each pageblock.
    pub(crate) table_frames_per_pageblock: u64,
    /// The frames in use as page tables, each with the pageblock that it maps.
    pub(crate) tables: Vec<(u64, Pfn)>,
    /// The number of frames for which `going_offline` was called, but neither `offlined` nor
    /// `offline_cancelled`.
    pub(crate) frames_going_offline: u64,
    /// The number of calls of `migrate`.
    pub(crate) migrate_calls: u32,
}

impl<'f> Kernel<'f> {
    pub(crate) fn new(frames: &'f Frames<OneCpu>) -> Kernel<'f> {
        Kernel {
            frames,
            mapped: BTreeSet::new(),
            allocations: Vec::new(),
            has_pinned_allocations: false,
            vetoes_offlining: false,
            online_veto: None,
            frames_going_online: 0,
            keeps_descriptors: false,
            first_unmappable_pageblock: u64::MAX,
            table_frames_per_pageblock: 0,
            tables: Vec::new(),
            frames_going_offline: 0,
            migrate_calls: 0,
        }
    }

    pub(crate) fn allocate(&mut self, count: usize, request: AllocRequest) {
        for _ in 0..count {
            self.allocations.extend(self.frames.alloc(request).ok());
        }
    }

    /// Allocates this frame.
    pub(crate) fn allocate_at(&mut self, pfn: Pfn) -> PfnRange {
        let frame = self.frames.alloc(AllocRequest::frames(1).movable().at(pfn)).unwrap();
        let range = frame.range();
        self.allocations.push(frame);
        range
    }

    /// Replaces each allocation by a new allocation, which begins in the same pageblock if possible.
    pub(crate) fn replace_all(&mut self) {
        for allocation in &mut self.allocations {
            let block = allocation.range().align_outward(PAGEBLOCK_FRAMES as u64);
            let mut places = (block.start().number()..block.end().number()).filter_map(Pfn::new);
            let here = |pfn| self.frames.alloc(AllocRequest::frames(1).at(pfn)).ok();
            let elsewhere = || self.frames.alloc(AllocRequest::frames(1)).ok();
            *allocation = places.find_map(here).or_else(elsewhere).expect("enough memory is free");
        }
    }

    pub(crate) fn allocate_all_but(&mut self, frames_left: u64) {
        while self.frames.counts().free > frames_left {
            match self.frames.alloc(AllocRequest::frames(1)) {
                Ok(frame) => self.allocations.push(frame),
                Err(_) => break,
            }
        }
    }

    pub(crate) fn free_all(&mut self) {
        self.allocations.clear();
    }

    pub(crate) fn is_all_mapped(&self, range: PfnRange) -> bool {
        pageblocks(range).all(|block| self.mapped.contains(&block))
    }

    pub(crate) fn is_all_unmapped(&self, range: PfnRange) -> bool {
        pageblocks(range).all(|block| !self.mapped.contains(&block))
    }

    pub(crate) fn assert_unused(&self, range: PfnRange) {
        assert!(
            !self.allocations.iter().any(|allocation| allocation.range().overlaps(range)),
            "{range} is in use"
        );
    }
}

impl TestMapping for Kernel<'_> {
    fn can_map(&self, range: PfnRange) -> Result<(), Veto> {
        match pageblocks(range).any(|block| block >= self.first_unmappable_pageblock) {
            true => Err(Veto("mapped to something else")),
            false => Ok(()),
        }
    }

    fn tables_needed(&self, range: PfnRange) -> u64 {
        self.table_frames_per_pageblock * pageblocks(range).count() as u64
    }

    fn descriptor_pageblocks(&self, _: PfnRange) -> u64 {
        u64::from(self.keeps_descriptors)
    }

    fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        for block in pageblocks(range) {
            assert!(self.mapped.insert(block), "the pageblock is mapped already");
            for _ in 0..self.table_frames_per_pageblock {
                let table = take()
                    .expect("the engine provides the frames that `tables_needed` has requested");
                self.tables.push((block, table));
            }
        }
    }

    fn unmap(&mut self, range: PfnRange) {
        for block in pageblocks(range) {
            assert!(self.mapped.remove(&block), "the pageblock is not mapped");
        }
    }

    fn remap(&mut self, range: PfnRange) {
        for block in pageblocks(range) {
            assert!(self.mapped.insert(block), "the pageblock is mapped already");
        }
    }

    fn release_tables(&mut self, range: PfnRange, free: &mut Free<'_>) {
        let blocks = pageblocks(range);
        self.tables.retain(|(block, table)| {
            let is_freed = blocks.contains(block);
            if is_freed {
                free(*table).unwrap();
            }
            !is_freed
        });
    }
}

impl Hooks for Kernel<'_> {
    fn going_online(&mut self, range: PfnRange, _: Zone) -> Result<(), Veto> {
        match self.online_veto {
            Some(reason) => Err(Veto(reason)),
            None => {
                self.frames_going_online += range.frames();
                Ok(())
            }
        }
    }

    fn online_cancelled(&mut self, range: PfnRange) {
        self.frames_going_online = self
            .frames_going_online
            .checked_sub(range.frames())
            .expect("`going_online` was called before");
    }

    fn onlined(&mut self, range: PfnRange) {
        // For memory that is online again after a cancellation, `going_online` was not called.
        self.frames_going_online = self.frames_going_online.saturating_sub(range.frames());
    }

    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        if self.vetoes_offlining {
            return Err(Veto("vetoed by the test"));
        }
        self.frames_going_offline += range.frames();
        Ok(())
    }

    fn offlined(&mut self, range: PfnRange) {
        self.frames_going_offline = self
            .frames_going_offline
            .checked_sub(range.frames())
            .expect("`going_offline` was called before");
    }

    fn offline_cancelled(&mut self, range: PfnRange) {
        self.frames_going_offline = self
            .frames_going_offline
            .checked_sub(range.frames())
            .expect("`going_offline` was called before");
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.migrate_calls += 1;
        if self.has_pinned_allocations {
            return Migration::Unmovable("pinned by the test");
        }
        let Some(index) =
            self.allocations.iter().position(|allocation| allocation.range().overlaps(used))
        else {
            return if self.tables.iter().any(|(_, table)| used.contains(*table)) {
                Migration::Unmovable("a page table")
            } else {
                Migration::Freed
            };
        };
        match self
            .frames
            .alloc(AllocRequest::frames(self.allocations[index].range().frames()).movable())
        {
            Ok(new) => {
                // This drops the old allocation.
                self.allocations[index] = new;
                Migration::Moved
            }
            Err(_) => Migration::Retry,
        }
    }
}
