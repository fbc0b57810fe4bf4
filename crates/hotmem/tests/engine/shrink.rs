//! Compares shrinks with a naive walk. A shrink takes units from the top down, skips those that
//! cannot be removed, and stops when it has removed as much as requested.

use fastrand::Rng;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, SECTION, env_number, numbers, pfn, range};
use std::collections::{BTreeMap, BTreeSet};

/// The number of frames of boot memory: enough for all frames that may be migrated.
const BOOT_FRAMES: u64 = 6 * SECTION;
const HOTPLUG_FRAMES: u64 = 6 * SECTION;

/// A kernel that refuses to migrate some of its frames.
struct Kernel<'f> {
    frames: &'f Frames<Cpus>,
    /// Whether each frame in use can be migrated.
    movable: BTreeMap<u64, bool>,
}

impl Hooks for Kernel<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        if numbers(used).any(|frame| !self.movable[&frame]) {
            return Migration::Unmovable("pinned");
        }
        for frame in numbers(used) {
            self.movable.remove(&frame);
            let new = self
                .frames
                .alloc_range(AllocRequest::frames(1).movable())
                .expect("boot memory suffices for all frames that are migrated");
            self.movable.insert(new.start().number(), true);
            self.frames.free_range(range(frame, 1)).expect("the kernel frees its own frame");
        }
        Migration::Moved
    }
}

/// Returns the units that a shrink by `frames` takes, highest first, and the first unit that it
/// cannot take.
fn expected_units(
    online: &BTreeSet<u64>,
    pinned: &BTreeSet<u64>,
    within: PfnRange,
    frames: u64,
    unit: u64,
) -> (Vec<u64>, Option<u64>) {
    let mut removed = vec![];
    let mut first_blocked = None;
    for unit_range in within.align_inward(unit).chunks(unit).rev() {
        if removed.len() as u64 == frames / unit {
            break;
        }
        if !numbers(unit_range).step_by(PAGEBLOCK_FRAMES).all(|block| online.contains(&block)) {
            continue;
        }
        if pinned.range(numbers(unit_range)).next().is_some() {
            first_blocked.get_or_insert(unit_range.start().number());
        } else {
            removed.push(unit_range.start().number());
        }
    }
    (removed, first_blocked)
}

#[test]
fn a_shrink_takes_what_a_naive_walk_takes() {
    let cases = if cfg!(hotmem_geometry = "small") { 2000 } else { 20 };
    let first = env_number("HOTMEM_SEED").unwrap_or(0x5eed);
    for seed in first..first + cases {
        let done = std::panic::catch_unwind(|| check_random_shrink(&mut Rng::with_seed(seed)));
        assert!(done.is_ok(), "replay with HOTMEM_SEED={seed}");
    }
}

fn check_random_shrink(rng: &mut Rng) {
    let memory = Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: Bytes(BOOT_FRAMES * FRAME_SIZE) }];
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &ram).unwrap();
    let mut kernel = Kernel { frames: &frames, movable: BTreeMap::new() };
    // A pageblock of boot memory stays divided, so that bitmap frames are allocated there.
    hotmem_testkit::divide_two_pageblocks(&frames);
    let middle = BOOT_FRAMES + rng.u64(1..HOTPLUG_FRAMES / PAGEBLOCK) * PAGEBLOCK;
    for region in [
        range(BOOT_FRAMES, middle - BOOT_FRAMES),
        range(middle, BOOT_FRAMES + HOTPLUG_FRAMES - middle),
    ] {
        hotplug.announce(region).unwrap();
    }
    let absent_percent = rng.u64(0..20);
    let mut online = BTreeSet::new();
    for block in (BOOT_FRAMES..BOOT_FRAMES + HOTPLUG_FRAMES).step_by(PAGEBLOCK_FRAMES) {
        if rng.u64(..100) >= absent_percent {
            hotplug.add(range(block, PAGEBLOCK)).unwrap();
            hotplug.online(range(block, PAGEBLOCK), OnlineType::Movable, &mut kernel).unwrap();
            online.insert(block);
        }
    }
    for _ in 0..rng.u64(..30) {
        let start = rng.u64(BOOT_FRAMES..BOOT_FRAMES + HOTPLUG_FRAMES);
        let len = rng.u64(1..=2 * PAGEBLOCK).min(BOOT_FRAMES + HOTPLUG_FRAMES - start);
        let movable = rng.u8(..3) != 0;
        if let Ok(allocated) =
            frames.alloc_range(AllocRequest::frames(len).at(pfn(start)).movable())
        {
            kernel.movable.extend(numbers(allocated).map(|frame| (frame, movable)));
        }
    }
    let pinned = kernel.movable.iter().filter(|(_, movable)| !**movable);
    let pinned: BTreeSet<u64> = pinned.map(|(&frame, _)| frame).collect();
    let unit = PAGEBLOCK << rng.u32(..=(2 * SECTION / PAGEBLOCK).ilog2());
    let max_run_frames = if rng.bool() { u64::MAX } else { rng.u64(..HOTPLUG_FRAMES) };
    let within = range(BOOT_FRAMES + rng.u64(..HOTPLUG_FRAMES / 2), HOTPLUG_FRAMES / 2);
    let within = if rng.bool() { range(BOOT_FRAMES, HOTPLUG_FRAMES) } else { within };
    let target = rng.u64(..HOTPLUG_FRAMES + SECTION);
    // A shrink does not take a unit that lies in two regions.
    let is_in_one_region = |unit_range: &PfnRange| {
        !(unit_range.start() < pfn(middle) && unit_range.end() > pfn(middle))
    };
    let units = range(BOOT_FRAMES, HOTPLUG_FRAMES).chunks(unit).filter(is_in_one_region);
    let one_region = units.flat_map(|unit_range| numbers(unit_range).step_by(PAGEBLOCK_FRAMES));
    let candidates: BTreeSet<u64> = one_region.filter(|block| online.contains(block)).collect();
    let (expected, first_blocked) = expected_units(&candidates, &pinned, within, target, unit);

    let mut shrink =
        Shrink::new(ShrinkOptions { frames: target, unit, max_run_frames, ..within.into() });
    let mut removed = vec![];
    let (remaining, blocker) = loop {
        match shrink.poll(&mut hotplug, &mut kernel, Budget { pageblocks: rng.u64(..20) }) {
            Progress::Ready(removal) => {
                assert!(removal.range().frames() <= (max_run_frames / unit * unit).max(unit));
                removed.extend(removal.range().chunks(unit).rev().map(|u| u.start().number()));
                hotplug.commit_remove(removal);
            }
            Progress::Working => {}
            ended => break (shrink.frames_left(), hotmem_testkit::blocker_of(ended)),
        }
    };
    assert_eq!(removed, expected, "{remaining} left: {blocker:?}, {first_blocked:?}");
    assert_eq!(remaining, target / unit * unit - removed.len() as u64 * unit);
    assert_eq!(blocker.map(|b| b.range.start().align_down(unit).number()), first_blocked);
    assert!(blocker.is_none_or(|blocker| blocker.kind == BlockerKind::Unmovable("pinned")));
    assert_eq!(frames.validated().unwrap().isolated, 0);
}

#[test]
fn a_shrink_that_is_over_takes_nothing_that_comes_online_later() {
    let memory = Memory::new(2 * SECTION);
    let frames = Frames::new(Cpus);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, SECTION);
    let hot = range(SECTION, SECTION);
    hotplug.announce(hot).unwrap();
    hotplug.add(hot).unwrap();
    let mut shrink = Shrink::new(hot);
    let first = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert!(matches!(first, Progress::Idle), "{first:?}");
    hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
    let again = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert!(matches!(again, Progress::Idle), "{again:?}");
}

#[test]
fn what_a_shrink_removes_lies_in_one_region_and_can_be_added_again() {
    let memory = Memory::new(2 * SECTION);
    let frames = Frames::new(Cpus);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, SECTION);
    // The regions meet within a section.
    let hot = range(SECTION, SECTION);
    let (low, high) = hot.split_at(pfn(SECTION + SECTION / 2));
    for region in [low, high] {
        hotplug.announce(region).unwrap();
        hotplug.add(region).unwrap();
        hotplug.online(region, OnlineType::Movable, &mut NoHooks).unwrap();
    }
    let mut shrink = Shrink::new(hot);
    let mut removed = vec![];
    while let Progress::Ready(removal) = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED)
    {
        removed.push(removal.range());
        hotplug.commit_remove(removal);
    }
    assert_eq!(removed, [high, low]);
    removed.into_iter().for_each(|range| hotplug.add(range).unwrap());
}
