//! Implements a device that plugs and unplugs memory, and the kernel that maps and migrates it.

use crate::allocations::{Allocations, NotMoved};
use crate::{HOTPLUG_START, SECOND_REGION_START, SIZE};
use fastrand::Rng;
use hotmem::{
    Budget, Hooks, Hotplug, Migration, OnlineType, Pfn, PfnRange, Progress, Shrink, ShrinkOptions,
    State,
};
use hotmem_testkit::forwarding::{ForwardingMapping, Free, TestMapping, with_kernel};
use hotmem_testkit::{Cpus, PAGEBLOCK, SECTION, numbers, pfn, range};
use std::fmt;

pub(crate) struct Plug<'f, 's> {
    hotplug: Hotplug<'f, Cpus, ForwardingMapping<Kernel<'f, 's>>>,
    kernel: Kernel<'f, 's>,
    rng: Rng,
    counts: PlugCounts,
}

pub(crate) struct Kernel<'f, 's> {
    allocations: &'s Allocations<'f>,
    migrated_frames: u64,
    /// The number of sections that were added as a whole.
    whole_sections_added: u64,
}

/// Counts of completed actions.
#[derive(Clone, Copy, Default, Debug)]
struct PlugCounts {
    additions: u64,
    removals: u64,
    abandoned_removals: u64,
    offlinings: u64,
    cancellations: u64,
    reports: u64,
    blocked_requests: u64,
}

impl TestMapping for Kernel<'_, '_> {
    fn descriptor_pageblocks(&self, _: PfnRange) -> u64 {
        1
    }

    fn describe(&mut self, range: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {
        for section in range.chunks(SECTION).filter(|section| section.frames() == SECTION) {
            self.allocations
                .add_descriptors(section.split_at(pfn(section.start().number() + PAGEBLOCK)).0);
            self.whole_sections_added += 1;
        }
    }

    fn undescribe(&mut self, range: PfnRange, _: &mut Free<'_>) {
        self.allocations.remove_descriptors(range);
    }

    fn map(&mut self, range: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {
        self.allocations.set_present(range, true);
    }

    fn unmap(&mut self, range: PfnRange) {
        self.allocations.set_present(range, false);
    }

    fn remap(&mut self, range: PfnRange) {
        self.allocations.set_present(range, true);
    }
}

impl Hooks for Kernel<'_, '_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        let mut answer = Migration::Freed;
        for frame in numbers(used) {
            match self.allocations.migrate_frame(frame) {
                Ok(()) => {
                    self.migrated_frames += 1;
                    answer = Migration::Moved;
                }
                Err(NotMoved::Unmovable) => return Migration::Unmovable("not movable"),
                Err(NotMoved::Retry) => return Migration::Retry,
            }
        }
        answer
    }
}

impl<'f, 's> Plug<'f, 's> {
    pub(crate) fn new(
        mut hotplug: Hotplug<'f, Cpus, ForwardingMapping<Kernel<'f, 's>>>,
        allocations: &'s Allocations<'f>,
        rng: Rng,
    ) -> Self {
        hotplug.announce(range(HOTPLUG_START, SECOND_REGION_START - HOTPLUG_START)).unwrap();
        hotplug.announce(range(SECOND_REGION_START, SIZE - SECOND_REGION_START)).unwrap();
        Plug {
            hotplug,
            kernel: Kernel { allocations, migrated_frames: 0, whole_sections_added: 0 },
            rng,
            counts: PlugCounts::default(),
        }
    }

    pub(crate) fn step(&mut self) {
        match self.rng.u8(..10) {
            0..5 => self.add(),
            5 => self.shrink(),
            6 => self.offline(),
            7 => self.isolate(),
            _ => std::thread::yield_now(),
        }
    }

    /// Puts all offline memory online.
    pub(crate) fn online_all(&mut self) {
        while let Some(offline) = self.random_run(State::Offline) {
            self.hotplug.online(offline, OnlineType::AsBefore, &mut self.kernel).unwrap();
        }
    }

    /// Returns the first run of pageblocks of the hot regions in this state, from a random place
    /// up.
    fn random_run(&mut self, target: State) -> Option<PfnRange> {
        let from = self.rng.u64(HOTPLUG_START..SIZE) / PAGEBLOCK * PAGEBLOCK;
        let regions: Vec<PfnRange> = self.hotplug.regions().map(|(_, range)| range).collect();
        let hot = || regions.iter().filter(|region| region.start() >= pfn(HOTPLUG_START));
        let parts = hot().map(|region| region.split_at(pfn(from)).1).chain(hot().copied());
        parts.filter(|part| !part.is_empty()).find_map(|part| {
            let mut remaining = part;
            while !remaining.is_empty() {
                let (run, state) = self.hotplug.state_at(remaining.start(), remaining.end());
                if state == target {
                    return Some(run);
                }
                remaining = remaining.split_at(run.end()).1;
            }
            None
        })
    }

    /// Returns a section that can be added as a whole.
    fn absent_section(&self) -> Option<PfnRange> {
        let regions = self.hotplug.regions().map(|(_, region)| region.align_inward(SECTION));
        regions.flat_map(|region| region.chunks(SECTION)).find(|section| {
            self.hotplug.state_at(section.start(), section.end()) == (*section, State::Absent)
        })
    }

    fn random_part(&mut self, run: PfnRange) -> PfnRange {
        let blocks = run.frames() / PAGEBLOCK;
        let first = self.rng.u64(..blocks);
        let count = self.rng.u64(1..=blocks - first);
        range(run.start().number() + first * PAGEBLOCK, count * PAGEBLOCK)
    }

    fn add(&mut self) {
        let Some(run) = self.random_run(State::Absent) else { return };
        let section =
            self.absent_section().filter(|_| self.counts.additions == 0 || self.rng.bool());
        let part = section.unwrap_or_else(|| self.random_part(run));
        with_kernel(&mut self.hotplug, &mut self.kernel, |hotplug, _| hotplug.add(part)).unwrap();
        let kind = if self.rng.u8(..4) == 0 { OnlineType::Kernel } else { OnlineType::Movable };
        self.hotplug.online(part, kind, &mut self.kernel).unwrap();
        self.counts.additions += 1;
    }

    fn shrink(&mut self) {
        let all = range(HOTPLUG_START, SIZE - HOTPLUG_START);
        let unit = PAGEBLOCK << self.rng.u32(..=(SECTION / PAGEBLOCK).ilog2());
        let mut shrink =
            Shrink::new(ShrinkOptions { frames: self.rng.u64(..all.frames()), unit, ..all.into() });
        for _ in 0..self.rng.u64(..200) {
            match with_kernel(&mut self.hotplug, &mut self.kernel, |hotplug, hooks| {
                shrink.poll(hotplug, hooks, Budget { pageblocks: 8 })
            }) {
                Progress::Ready(removal) if self.rng.u8(..4) == 0 => {
                    with_kernel(&mut self.hotplug, &mut self.kernel, |hotplug, hooks| {
                        hotplug.abandon_remove(removal, hooks)
                    });
                    self.counts.abandoned_removals += 1;
                }
                Progress::Ready(removal) => {
                    with_kernel(&mut self.hotplug, &mut self.kernel, |hotplug, _| {
                        hotplug.commit_remove(removal)
                    });
                    self.counts.removals += 1;
                }
                Progress::Working => {}
                progress => {
                    self.counts.blocked_requests +=
                        u64::from(hotmem_testkit::blocker_of(progress).is_some());
                    return;
                }
            }
        }
        with_kernel(&mut self.hotplug, &mut self.kernel, |hotplug, hooks| {
            shrink.cancel(hotplug, hooks);
        });
        self.counts.cancellations += 1;
    }

    fn offline(&mut self) {
        let zone = [State::Online, State::OnlineMovable, State::OnlineMovable][self.rng.usize(..3)];
        let Some(run) = self.random_run(zone) else { return };
        let part = self.random_part(run);
        let mut request = self.hotplug.offline(part).unwrap();
        for _ in 0..self.rng.u64(..200) {
            match request.poll(&mut self.hotplug, &mut self.kernel, Budget { pageblocks: 8 }) {
                Progress::Ready(range) => {
                    assert_eq!(range, part);
                    self.counts.offlinings += 1;
                    return;
                }
                Progress::Working => {}
                Progress::Pending(_) => self.counts.blocked_requests += 1,
                Progress::Idle => panic!("an offline request that was not done is idle"),
            }
        }
        request.cancel(&mut self.hotplug, &mut self.kernel);
        self.counts.cancellations += 1;
    }

    /// Isolates random memory for a short time, and marks it as reported if it is free.
    fn isolate(&mut self) {
        let Some(run) = self.random_run(State::OnlineMovable) else { return };
        let part = self.random_part(run);
        let Ok(token) = self.kernel.allocations.frames.isolate(part) else { return };
        for _ in 0..self.rng.u8(..3) {
            std::thread::yield_now();
        }
        match token.mark_reported() {
            Ok(()) => self.counts.reports += 1,
            Err((token, _)) => token.release(),
        }
    }

    pub(crate) fn has_done_everything(&self) -> bool {
        let counts = &self.counts;
        let counts = [
            counts.additions,
            counts.removals,
            counts.abandoned_removals,
            counts.offlinings,
            counts.cancellations,
            counts.reports,
            counts.blocked_requests,
            self.kernel.migrated_frames,
            self.kernel.whole_sections_added,
        ];
        counts.iter().all(|&count| count > 0)
    }
}

impl fmt::Debug for Plug<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kernel { migrated_frames, whole_sections_added, .. } = self.kernel;
        write!(f, "{:?}, {migrated_frames} frames migrated, ", self.counts)?;
        write!(f, "{whole_sections_added} whole sections added")
    }
}
