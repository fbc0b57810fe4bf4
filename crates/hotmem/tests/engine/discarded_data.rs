//! Tests that memory can be unplugged without free memory elsewhere if the kernel discards its
//! contents.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, numbers, pfn, range};
use std::collections::BTreeSet;

const BOOT_FRAMES: u64 = SECTION;
/// The start of hotplugged memory, aligned to the largest unit.
const HOT_START: u64 = 8 * SECTION;
const HOTPLUG_FRAMES: u64 = 8 * SECTION;

/// The number of free frames of boot memory in most tests: enough for the bitmap frames of
/// sections.
const FREE_BOOT_FRAMES: u64 = PAGEBLOCK;

/// A kernel with a cache, which it can discard, and data, which it can migrate.
struct Kernel<'f> {
    frames: &'f Frames<OneCpu>,
    page_cache: BTreeSet<u64>,
    discarded_frames: u64,
    migrated_frames: u64,
}

impl<'f> Kernel<'f> {
    /// Allocates all of `hot`. Frames for which `is_cache` returns true are cache, all others data.
    fn fill_memory(
        frames: &'f Frames<OneCpu>,
        hot: PfnRange,
        is_cache: impl Fn(u64) -> bool,
    ) -> Kernel<'f> {
        for block in hot.chunks(PAGEBLOCK) {
            frames
                .alloc_range(AllocRequest::frames(PAGEBLOCK).movable().at(block.start()))
                .unwrap();
        }
        let page_cache = numbers(hot).filter(|&frame| is_cache(frame)).collect();
        Kernel { frames, page_cache, discarded_frames: 0, migrated_frames: 0 }
    }
}

impl Hooks for Kernel<'_> {
    fn discard(&mut self, within: PfnRange) {
        let free = self.frames.counts().free;
        for frame in numbers(within).filter(|frame| self.page_cache.remove(frame)) {
            self.frames.free_range(range(frame, 1)).unwrap();
            self.discarded_frames += 1;
        }
        assert!(self.frames.counts().free >= free);
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        for frame in numbers(used) {
            let Ok(new) = self.frames.alloc_range(AllocRequest::frames(1).movable()) else {
                return Migration::Retry;
            };
            if self.page_cache.remove(&frame) {
                self.page_cache.insert(new.start().number());
            }
            self.frames.free_range(range(frame, 1)).unwrap();
            self.migrated_frames += 1;
        }
        Migration::Moved
    }
}

/// Runs `test` on an instance with hotplugged memory, and `free_frames` free frames in boot memory.
fn with_headroom(
    free_frames: u64,
    test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>, PfnRange),
) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(HOT_START + HOTPLUG_FRAMES));
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    let hot = range(HOT_START, HOTPLUG_FRAMES);
    hotplug.announce(hot).unwrap();
    hotmem_testkit::make_words(&mut hotplug, hot);
    while frames.counts().free > free_frames {
        frames.alloc_range(AllocRequest::frames(1)).unwrap();
    }
    hotplug.add(hot).unwrap();
    hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
    test(&frames, &mut hotplug, hot);
    frames.validated().unwrap();
}

/// Shrinks as far as possible. Returns the number of frames that could not be removed, and the
/// blocker.
fn shrink(
    hotplug: &mut Hotplug<'_, OneCpu>,
    kernel: &mut Kernel<'_>,
    within: PfnRange,
    unit: u64,
    budget: Budget,
) -> (u64, Option<Blocker>) {
    let mut shrink = Shrink::new(ShrinkOptions { unit, ..within.into() });
    loop {
        match shrink.poll(hotplug, kernel, budget) {
            Progress::Ready(removal) => hotplug.commit_remove(removal),
            Progress::Working => {}
            ended => return (shrink.frames_left(), hotmem_testkit::blocker_of(ended)),
        }
    }
}

#[test]
fn a_cache_is_removed_in_units_larger_than_the_free_memory_elsewhere() {
    for unit in [SECTION, 2 * SECTION, 8 * SECTION] {
        for budget in [Budget { pageblocks: 1 }, Budget::UNLIMITED] {
            with_headroom(FREE_BOOT_FRAMES, |frames, hotplug, hot| {
                let mut kernel = Kernel::fill_memory(frames, hot, |_| true);
                let result = shrink(hotplug, &mut kernel, hot, unit, budget);
                assert_eq!(result, (0, None));
                assert_eq!(frames.counts().present, BOOT_FRAMES);
                assert!(
                    kernel.discarded_frames >= HOTPLUG_FRAMES - FREE_BOOT_FRAMES,
                    "only FREE_BOOT_FRAMES frames can have been migrated"
                );
            });
        }
    }
}

#[test]
fn a_cache_goes_offline_all_at_once() {
    for budget in [Budget { pageblocks: 1 }, Budget::UNLIMITED] {
        with_headroom(FREE_BOOT_FRAMES, |frames, hotplug, hot| {
            let mut kernel = Kernel::fill_memory(frames, hot, |_| true);
            let mut offline = hotplug.offline(hot).unwrap();
            let result = loop {
                match offline.poll(hotplug, &mut kernel, budget) {
                    Progress::Working => {}
                    done => break done,
                }
            };
            assert_eq!(result, Progress::Ready(hot));
        });
    }
}

#[test]
fn frames_are_discarded_only_as_far_as_memory_to_migrate_them_is_missing() {
    with_headroom(SECTION / 2 + PAGEBLOCK, |frames, hotplug, hot| {
        // Every second frame is cache, and the free memory suffices for the data of one section.
        let mut kernel = Kernel::fill_memory(frames, hot, |frame| frame % 2 == 0);
        let top = range(HOT_START + HOTPLUG_FRAMES - SECTION, SECTION);
        let missing = SECTION - frames.counts().free;
        assert_eq!(shrink(hotplug, &mut kernel, top, SECTION, Budget::UNLIMITED), (0, None));
        assert!(
            kernel.discarded_frames >= missing && kernel.discarded_frames < missing + PAGEBLOCK
        );
        assert_eq!(kernel.discarded_frames + kernel.migrated_frames, SECTION);
    });
}

#[test]
fn without_headroom_data_is_neither_isolated_nor_migrated() {
    for unit in [SECTION, 8 * SECTION] {
        with_headroom(FREE_BOOT_FRAMES, |frames, hotplug, hot| {
            let mut kernel = Kernel::fill_memory(frames, hot, |_| false);
            let before = frames.validated().unwrap();
            let mut shrink =
                Shrink::new(ShrinkOptions { frames: HOTPLUG_FRAMES, unit, ..hot.into() });
            let (remaining, blocker) = loop {
                match shrink.poll(hotplug, &mut kernel, Budget { pageblocks: 1 }) {
                    Progress::Ready(removal) => panic!("{removal:?}"),
                    Progress::Working => assert_eq!(frames.validated().unwrap(), before),
                    ended => break (shrink.frames_left(), hotmem_testkit::blocker_of(ended)),
                }
            };
            assert_eq!(
                (remaining, kernel.migrated_frames, frames.validated().unwrap()),
                (HOTPLUG_FRAMES, 0, before)
            );
            assert!(matches!(
                blocker,
                Some(Blocker { kind: BlockerKind::NotEnoughFree { .. }, .. })
            ));
        });
    }
}

#[test]
fn only_the_units_that_hold_a_small_cache_are_removed() {
    with_headroom(FREE_BOOT_FRAMES, |frames, hotplug, hot| {
        let cached_range = range(HOT_START + 2 * SECTION, 3 * SECTION);
        let mut kernel =
            Kernel::fill_memory(frames, hot, |frame| cached_range.contains(pfn(frame)));
        let (remaining, blocker) = shrink(hotplug, &mut kernel, hot, SECTION, Budget::UNLIMITED);
        assert_eq!(
            (remaining, kernel.migrated_frames),
            (HOTPLUG_FRAMES - cached_range.frames(), 0)
        );
        assert!(matches!(blocker, Some(Blocker { kind: BlockerKind::NotEnoughFree { .. }, .. })));
        let state = hotplug.state_at(cached_range.start(), hot.end());
        assert_eq!(state, (cached_range, State::Absent));
    });
}

#[test]
fn an_offline_request_that_was_pending_calls_discard_again() {
    with_headroom(FREE_BOOT_FRAMES, |frames, hotplug, hot| {
        let mut kernel = Kernel::fill_memory(frames, hot, |_| false);
        let mut offline = hotplug.offline(hot).unwrap();
        let pending = offline.poll(hotplug, &mut kernel, Budget::UNLIMITED);
        assert!(matches!(
            pending,
            Progress::Pending(Blocker { kind: BlockerKind::NotEnoughFree { .. }, .. })
        ));
        kernel.page_cache.extend(numbers(hot));
        let done = offline.poll(hotplug, &mut kernel, Budget::UNLIMITED);
        assert_eq!((done, kernel.migrated_frames), (Progress::Ready(hot), 0));
    });
}

#[test]
fn a_shrink_that_discards_leaves_min_free_frames_free() {
    with_headroom(FREE_BOOT_FRAMES, |frames, hotplug, hot| {
        let mut kernel = Kernel::fill_memory(frames, hot, |_| true);
        // Discarding single frames divides pageblocks, for which bitmaps are allocated.
        let min_free_frames = frames.counts().free + SECTION / 2;
        hotplug.settings.min_free_frames = min_free_frames;
        let (remaining, blocker) = shrink(hotplug, &mut kernel, hot, SECTION, Budget::UNLIMITED);
        assert_eq!(remaining, SECTION);
        assert!(matches!(blocker, Some(Blocker { kind: BlockerKind::NotEnoughFree { .. }, .. })));
        assert!(frames.counts().free >= min_free_frames);
    });
}
