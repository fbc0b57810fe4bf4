//! Defines the kernel of a test's partition, which vetoes changes and takes frames for page tables.

use crate::partition::LMB_FRAMES;
use hotmem::{Hooks, Migration, Pfn, PfnRange, Veto, Zone, geometry};
use hotmem_testkit::forwarding::{Free, TestMapping};
use std::collections::BTreeSet;

const SECTION_FRAMES: u64 = geometry::SECTION_FRAMES as u64;

/// A kernel that takes frames for page tables, vetoes the changes that a test chooses, and records
/// its mappings.
#[derive(Default)]
pub(crate) struct Kernel {
    /// The number of page tables for each LMB that is mapped.
    pub(crate) tables_per_lmb: u64,
    /// The number of page tables for each LMB that is mapped after an unmapping.
    pub(crate) tables_per_lmb_after_unmap: Option<u64>,
    /// The kernel vetoes ranges that contain one of these frames.
    pub(crate) veto_online: BTreeSet<u64>,
    pub(crate) veto_offline: BTreeSet<u64>,
    /// The number of vetoes before the kernel agrees. `None` means that it never agrees.
    pub(crate) remaining_vetoes: Option<u32>,
    /// Whether the kernel asks the engine to migrate each frame again later.
    pub(crate) migrates_later: bool,
    /// Whether sections that are added wholly hold their own descriptors.
    pub(crate) has_own_descriptors: bool,
    /// The pageblocks whose descriptors lie in their own section.
    own_descriptors: BTreeSet<u64>,
    /// The first frame of each pageblock that is mapped.
    pub(crate) mapped: BTreeSet<u64>,
    /// The frame of each page table, and the first frame of the range that it was taken for.
    table_frames: Vec<(Pfn, u64)>,
}

fn any_in(set: &BTreeSet<u64>, range: PfnRange) -> bool {
    set.range(range.start().number()..range.end().number()).next().is_some()
}

impl TestMapping for Kernel {
    fn tables_needed(&self, range: PfnRange) -> u64 {
        self.tables_per_lmb * (range.frames() / LMB_FRAMES).max(1)
    }

    fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        for block in range.chunks(512) {
            assert!(self.mapped.insert(block.start().number()), "a pageblock is mapped already");
        }
        for _ in 0..self.tables_per_lmb {
            self.table_frames.push((
                take().expect("the engine provides the frames that `tables_needed` has requested"),
                range.start().number(),
            ));
        }
    }

    fn unmap(&mut self, range: PfnRange) {
        self.tables_per_lmb = self.tables_per_lmb_after_unmap.unwrap_or(self.tables_per_lmb);
        for block in range.chunks(512) {
            assert!(self.mapped.remove(&block.start().number()), "a pageblock is not mapped");
        }
    }

    fn remap(&mut self, range: PfnRange) {
        for block in range.chunks(512) {
            assert!(self.mapped.insert(block.start().number()), "a pageblock is mapped already");
        }
    }

    fn release_tables(&mut self, range: PfnRange, free: &mut Free<'_>) {
        let is_unmapped =
            |number: u64| range.contains(Pfn::new(number).expect("the number is below the limit"));
        for (table, _) in self.table_frames.extract_if(.., |(_, start)| is_unmapped(*start)) {
            free(table).unwrap();
        }
    }

    fn descriptor_pageblocks(&self, _: PfnRange) -> u64 {
        u64::from(self.has_own_descriptors)
    }

    fn describe(&mut self, range: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {
        let whole_sections = range
            .chunks(SECTION_FRAMES)
            .filter(|section| self.has_own_descriptors && section.frames() == SECTION_FRAMES);
        self.own_descriptors.extend(
            whole_sections.flat_map(|section| section.chunks(512)).map(|b| b.start().number()),
        );
    }

    fn undescribe(&mut self, range: PfnRange, _: &mut Free<'_>) {
        self.own_descriptors.retain(|&block| {
            !range.contains(Pfn::new(block).expect("the number is below the limit"))
        });
        for start in range
            .chunks(SECTION_FRAMES)
            .map(PfnRange::start)
            .filter(|start| start.number().is_multiple_of(SECTION_FRAMES))
        {
            let section =
                PfnRange::with_len(start, SECTION_FRAMES).expect("the number is below the limit");
            assert!(
                !any_in(&self.own_descriptors, section),
                "the descriptors of a pageblock lie in removed memory"
            );
        }
    }
}

impl Hooks for Kernel {
    fn going_online(&mut self, range: PfnRange, _: Zone) -> Result<(), Veto> {
        let vetoed = any_in(&self.veto_online, range);
        self.veto_if(vetoed)
    }

    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        let vetoed = any_in(&self.veto_offline, range);
        self.veto_if(vetoed)
    }

    fn migrate(&mut self, _: PfnRange) -> Migration {
        match self.migrates_later {
            true => Migration::Retry,
            false => Migration::Unmovable("this kernel does not migrate"),
        }
    }
}

impl Kernel {
    fn veto_if(&mut self, vetoed: bool) -> Result<(), Veto> {
        match &mut self.remaining_vetoes {
            _ if !vetoed => return Ok(()),
            Some(0) => return Ok(()),
            Some(vetoes) => *vetoes -= 1,
            None => {}
        }
        Err(Veto("the test vetoes this LMB"))
    }
}
