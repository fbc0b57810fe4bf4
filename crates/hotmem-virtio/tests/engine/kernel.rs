//! A kernel that maps memory, allocates it and migrates it.

use crate::machine::pageblocks;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{
    AllocRequest, Allocation, Frames, Hooks, Migration, OneCpu, Pfn, PfnRange, Veto, Zone,
};
use hotmem_testkit::link::Maps;
use std::collections::BTreeSet;

pub(crate) struct Kernel<'f> {
    frames: &'f Frames<OneCpu>,
    /// Pageblocks of plugged memory in the direct map.
    pub(crate) mapped: BTreeSet<u64>,
    /// Its allocations.
    pub(crate) held: Vec<Allocation<'f, OneCpu>>,
    /// Whether its allocations are pinned.
    pub(crate) pinned: bool,
    pub(crate) veto: bool,
    /// The reason of a veto against all onlining, if there is one.
    pub(crate) online_veto: Option<&'static str>,
    /// Frames for which `going_online` was called, but neither `onlined` nor `online_cancelled`.
    pub(crate) coming: u64,
    /// Whether sections that are added as a whole keep a pageblock for their descriptors.
    pub(crate) keeps_descriptors: bool,
    /// Pageblocks from this one on cannot be mapped.
    pub(crate) maps_below: u64,
    /// Frames of page tables for each pageblock.
    pub(crate) table_frames_per_pageblock: u64,
    /// The number of frames in use as page tables.
    pub(crate) tables: usize,
    table_frames: Vec<(u64, Pfn)>,
    /// Frames for which `going_offline` was called, but neither `offlined` nor `offline_cancelled`.
    pub(crate) frames_going_offline: u64,
    /// The number of calls of `migrate`.
    pub(crate) moves_asked: u32,
}

impl<'f> Kernel<'f> {
    pub(crate) fn new(frames: &'f Frames<OneCpu>) -> Kernel<'f> {
        Kernel {
            frames,
            mapped: BTreeSet::new(),
            held: Vec::new(),
            pinned: false,
            veto: false,
            online_veto: None,
            coming: 0,
            keeps_descriptors: false,
            maps_below: u64::MAX,
            table_frames_per_pageblock: 0,
            tables: 0,
            table_frames: Vec::new(),
            frames_going_offline: 0,
            moves_asked: 0,
        }
    }

    pub(crate) fn take(&mut self, count: usize, want: AllocRequest) {
        for _ in 0..count {
            self.held.extend(self.frames.alloc(want).ok());
        }
    }

    /// Allocates this frame.
    pub(crate) fn take_at(&mut self, pfn: Pfn) -> PfnRange {
        let frame = self.frames.alloc(AllocRequest::frames(1).movable().at(pfn)).unwrap();
        let range = frame.range();
        self.held.push(frame);
        range
    }

    /// Replaces each allocation by another one, which begins in the same pageblock if it can.
    pub(crate) fn replace_all(&mut self) {
        for held in &mut self.held {
            let block = held.range().align_outward(PAGEBLOCK_FRAMES as u64);
            let mut places = (block.start().number()..block.end().number()).filter_map(Pfn::new);
            let here = |pfn| self.frames.alloc(AllocRequest::frames(1).at(pfn)).ok();
            let elsewhere = || self.frames.alloc(AllocRequest::frames(1)).ok();
            *held = places.find_map(here).or_else(elsewhere).expect("there is memory");
        }
    }

    pub(crate) fn allocate_all_but(&mut self, left: u64) {
        while self.frames.counts().free > left {
            match self.frames.alloc(AllocRequest::frames(1)) {
                Ok(frame) => self.held.push(frame),
                Err(_) => break,
            }
        }
    }

    pub(crate) fn free_all(&mut self) {
        self.held.clear();
    }

    pub(crate) fn is_all_mapped(&self, range: PfnRange) -> bool {
        pageblocks(range).all(|block| self.mapped.contains(&block))
    }

    pub(crate) fn is_all_unmapped(&self, range: PfnRange) -> bool {
        pageblocks(range).all(|block| !self.mapped.contains(&block))
    }

    pub(crate) fn assert_unused(&self, range: PfnRange) {
        assert!(!self.held.iter().any(|held| held.range().overlaps(range)), "{range} is in use");
    }
}

impl Maps for Kernel<'_> {
    fn can_map(&self, range: PfnRange) -> Result<(), Veto> {
        match pageblocks(range).any(|block| block >= self.maps_below) {
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
            assert!(self.mapped.insert(block), "mapped twice");
            for _ in 0..self.table_frames_per_pageblock {
                let table = take().expect("a spare frame that was promised");
                self.table_frames.push((block, table));
            }
        }
        self.tables = self.table_frames.len();
    }

    fn unmap(&mut self, range: PfnRange) {
        for block in pageblocks(range) {
            assert!(self.mapped.remove(&block), "not mapped");
        }
    }

    fn remap(&mut self, range: PfnRange) {
        for block in pageblocks(range) {
            assert!(self.mapped.insert(block), "still mapped");
        }
    }

    fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        let blocks = pageblocks(range);
        self.table_frames.retain(|(block, table)| {
            let stays = !blocks.contains(block);
            if !stays {
                free(*table);
            }
            stays
        });
        self.tables = self.table_frames.len();
    }
}

impl Hooks for Kernel<'_> {
    fn going_online(&mut self, range: PfnRange, _: Zone) -> Result<(), Veto> {
        match self.online_veto {
            Some(why) => Err(Veto(why)),
            None => {
                self.coming += range.frames();
                Ok(())
            }
        }
    }

    fn online_cancelled(&mut self, range: PfnRange) {
        self.coming =
            self.coming.checked_sub(range.frames()).expect("cancelled without an announcement");
    }

    fn onlined(&mut self, range: PfnRange) {
        // Memory that is online again after a cancellation was not announced.
        self.coming = self.coming.saturating_sub(range.frames());
    }

    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        if self.veto {
            return Err(Veto("vetoed by the test"));
        }
        self.frames_going_offline += range.frames();
        Ok(())
    }

    fn offlined(&mut self, range: PfnRange) {
        self.frames_going_offline = self
            .frames_going_offline
            .checked_sub(range.frames())
            .expect("offline without an announcement");
    }

    fn offline_cancelled(&mut self, range: PfnRange) {
        self.frames_going_offline = self
            .frames_going_offline
            .checked_sub(range.frames())
            .expect("cancelled without an announcement");
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.moves_asked += 1;
        if self.pinned {
            return Migration::Unmovable("pinned by the test");
        }
        let Some(at) = self.held.iter().position(|held| held.range().overlaps(used)) else {
            return if self.table_frames.iter().any(|(_, table)| used.contains(*table)) {
                Migration::Unmovable("a page table")
            } else {
                Migration::Freed
            };
        };
        match self.frames.alloc(AllocRequest::frames(self.held[at].range().frames()).movable()) {
            Ok(new) => {
                // The old allocation is dropped.
                self.held[at] = new;
                Migration::Moved
            }
            Err(_) => Migration::Retry,
        }
    }
}
