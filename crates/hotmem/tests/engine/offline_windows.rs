//! Tests that a range is taken offline window by window, and that frames are not migrated from one
//! window to another.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, numbers, pfn, range};

const BOOT_FRAMES: u64 = SECTION;
const SECTIONS: u64 = 24;

/// A kernel that migrates every frame but `pinned`, and counts the frames.
struct MigratingHooks<'f> {
    frames: &'f Frames<OneCpu>,
    migrated_frames: u64,
    pinned: Option<u64>,
}

impl Hooks for MigratingHooks<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        for frame in used.chunks(1) {
            if self.pinned == Some(frame.start().number()) {
                return Migration::Unmovable("pinned");
            }
            self.frames.alloc_range(AllocRequest::frames(1).movable()).unwrap();
            self.frames.free_range(frame).unwrap();
            self.migrated_frames += 1;
        }
        Migration::Moved
    }
}

#[test]
fn frames_in_a_long_range_are_migrated_once() {
    // Take ranges at the bottom, in the middle and at the top of movable memory offline.
    for first in [0, SECTIONS / 4, SECTIONS / 2] {
        let memory = Memory::new(BOOT_FRAMES + SECTIONS * SECTION);
        let frames = Frames::new(OneCpu);
        let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
        let hot = range(BOOT_FRAMES, SECTIONS * SECTION);
        hotplug.announce(hot).unwrap();
        hotplug.add(hot).unwrap();
        hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
        let target = range(BOOT_FRAMES + first * SECTION, SECTIONS / 2 * SECTION);
        let mut live = 0;
        for section in target.chunks(SECTION) {
            for frame in numbers(section).step_by(7).take(5) {
                frames.alloc_range(AllocRequest::frames(1).movable().at(pfn(frame))).unwrap();
                live += 1;
            }
        }
        let mut kernel = MigratingHooks { frames: &frames, migrated_frames: 0, pinned: None };
        let mut offline = hotplug.offline(target).unwrap();
        let done = offline.poll(&mut hotplug, &mut kernel, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(target));
        assert_eq!(kernel.migrated_frames, live);
        frames.validated().unwrap();
    }
}

/// Lets `test` shrink the highest half of memory, of which each section has `live` frames in use;
/// boot memory, the other half, is free. Checks that a kernel has migrated as many frames as `test` returns.
fn check_migrations_of_shrink(
    live: u64,
    pinned: Option<u64>,
    test: impl for<'f> FnOnce(&mut Hotplug<'f, OneCpu>, &mut MigratingHooks<'f>, PfnRange) -> u64,
) {
    let boot = SECTIONS * SECTION;
    let memory = Memory::new(boot + SECTIONS * SECTION);
    let frames = Frames::new(OneCpu);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, boot);
    let hot = range(boot, SECTIONS * SECTION);
    hotmem_testkit::plug(&mut hotplug, hot);
    for section in hot.chunks(SECTION) {
        for part in section.chunks(SECTION / live) {
            frames.alloc_range(AllocRequest::frames(1).movable().at(part.start())).unwrap();
        }
    }
    let mut kernel = MigratingHooks { frames: &frames, migrated_frames: 0, pinned };
    let expected = test(&mut hotplug, &mut kernel, hot);
    assert_eq!(kernel.migrated_frames, expected);
    frames.validated().unwrap();
}

/// Polls until the shrink is over. Returns the number of frames that were removed.
fn remove_all<'f>(
    hotplug: &mut Hotplug<'f, OneCpu>,
    kernel: &mut MigratingHooks<'f>,
    options: ShrinkOptions,
    budget: Budget,
) -> u64 {
    let mut shrink = Shrink::new(options);
    let mut removed = 0;
    loop {
        match shrink.poll(hotplug, kernel, budget) {
            Progress::Ready(removal) => {
                removed += removal.range().frames();
                hotplug.commit_remove(removal);
            }
            Progress::Working => assert_ne!(budget, Budget::UNLIMITED),
            Progress::Pending(_) | Progress::Idle => return removed,
        }
    }
}

#[test]
fn a_shrink_migrates_each_frame_once() {
    let [few, many] = [SECTION / PAGEBLOCK / 4, SECTION / (PAGEBLOCK / 4)];
    for live in [few, many] {
        for budget in [Budget::UNLIMITED, Budget { pageblocks: 0 }] {
            // All of the memory.
            check_migrations_of_shrink(live, None, |hotplug, kernel, hot| {
                assert_eq!(remove_all(hotplug, kernel, hot.into(), budget), hot.frames());
                live * SECTIONS
            });
            // A third of it, in short runs.
            check_migrations_of_shrink(live, None, |hotplug, kernel, hot| {
                let frames = hot.frames() / 3;
                let max_run_frames = 3 * PAGEBLOCK;
                let options = ShrinkOptions { frames, max_run_frames, ..hot.into() };
                assert_eq!(remove_all(hotplug, kernel, options, budget), frames);
                live * SECTIONS / 3
            });
        }
    }
}

#[test]
fn a_shrink_migrates_each_frame_once_although_a_frame_in_its_way_stays() {
    // Four frames of each pageblock.
    let live = SECTION / (PAGEBLOCK / 4);
    // Memory in whose middle a frame stays, in the highest section and in one below.
    for section in [SECTIONS - 1, SECTIONS / 2] {
        let pinned = (SECTIONS + section) * SECTION + SECTION / 2;
        check_migrations_of_shrink(live, Some(pinned), |hotplug, kernel, hot| {
            let removed = remove_all(hotplug, kernel, hot.into(), Budget::UNLIMITED);
            assert_eq!(removed, hot.frames() - PAGEBLOCK);
            live * SECTIONS - 4
        });
    }
}
