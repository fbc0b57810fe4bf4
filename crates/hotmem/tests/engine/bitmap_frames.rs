//! Tests that the frames that hold bitmaps lie together: they stay in use when all memory is free
//! again, so each pageblock that has one is never allocated as a whole again.

use hotmem::*;
use hotmem_testkit::{Memory, PAGEBLOCK, RawRanges as _, SECTION, Validated as _, pfn, range};

/// The memory whose bitmaps are made together: 1 GiB.
const GIB: u64 = if cfg!(hotmem_geometry = "small") { 4 * SECTION } else { 8 * SECTION };

/// Allocates all kernel memory by `request`, and frees it.
fn fill_and_free_all(frames: &Frames<OneCpu>, request: AllocRequest) {
    let mut allocated = vec![];
    while let Ok(range) = frames.alloc_range(request) {
        allocated.push(range);
    }
    let full = frames.counts();
    assert!(full.free < PAGEBLOCK, "{full:?}");
    allocated.into_iter().for_each(|range| frames.free_range(range).unwrap());
}

/// Returns the number of pageblocks that are not wholly free, and checks that only metadata is in
/// use. One of them may be a hint of the CPU: it stays divided.
fn divided_pageblocks(frames: &Frames<OneCpu>) -> u64 {
    let counts = frames.validated().unwrap();
    assert_eq!(counts.used, counts.words + counts.bitmaps);
    (counts.online - counts.free_whole) / PAGEBLOCK
}

#[test]
fn boot_memory_becomes_whole_again() {
    for (gib, run) in [(1, 1), (1, 8), (3, 1)] {
        let memory = Memory::new(gib * GIB);
        let frames = Frames::new(OneCpu);
        let _hotplug = hotmem_testkit::boot(&frames, &memory, gib * GIB);
        let before = divided_pageblocks(&frames);
        fill_and_free_all(&frames, AllocRequest::frames(run));
        let divided = divided_pageblocks(&frames) - before;
        assert!(divided <= gib + 1, "{divided} pageblocks of {gib} GiB, runs of {run}");
    }
}

#[test]
fn boot_memory_that_was_allocated_whole_and_freed_in_parts_becomes_whole_again() {
    let memory = Memory::new(2 * GIB);
    let frames = Frames::new(OneCpu);
    let _hotplug = hotmem_testkit::boot(&frames, &memory, 2 * GIB);
    let before = divided_pageblocks(&frames);
    let mut allocated = vec![];
    while let Ok(block) = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)) {
        allocated.push(block);
    }
    let half = PAGEBLOCK / 2;
    for block in allocated.iter().flat_map(|block| block.chunks(half)) {
        frames.free_range(block).unwrap();
    }
    let divided = divided_pageblocks(&frames) - before;
    assert!(divided <= 2 + 1, "{divided} pageblocks");
}

#[test]
fn plugged_memory_leaves_boot_memory_whole() {
    let boot = 2 * SECTION;
    let memory = Memory::new(boot + 2 * GIB);
    let frames = Frames::new(OneCpu);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, boot);
    let before = divided_pageblocks(&frames);
    let hot = range(boot, 2 * GIB);
    hotmem_testkit::plug(&mut hotplug, hot);
    // Boot memory and plugged memory are allocated by turns.
    let in_hot = AllocRequest::frames(1).movable().within(hot.start()..);
    let mut allocated = vec![];
    while let Ok(range) = frames.alloc_range(in_hot) {
        allocated.push(range);
        if (allocated.len() as u64).is_multiple_of(4 * GIB / boot) {
            allocated.push(frames.alloc_range(AllocRequest::frames(1).in_boot_memory()).unwrap());
        }
    }
    allocated.into_iter().for_each(|range| frames.free_range(range).unwrap());
    let divided = divided_pageblocks(&frames) - before;
    assert!(divided <= 2 + 2, "{divided} pageblocks");
    let mut offline = hotplug.offline(hot).unwrap();
    let progress = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert_eq!(progress, Progress::Ready(hot));
    hotplug.remove(hot).unwrap();
    frames.validated().unwrap();
}

#[test]
fn the_first_frame_of_a_whole_pageblock_is_freed_before_its_gib_has_bitmaps() {
    let boot = 2 * SECTION;
    let memory = Memory::new(3 * GIB);
    let frames = Frames::new(OneCpu);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, boot);
    let hot = range(2 * GIB, GIB);
    hotmem_testkit::plug(&mut hotplug, hot);
    let whole = AllocRequest::frames(PAGEBLOCK).movable().at(hot.start());
    let (first, others) = frames.alloc_range(whole).unwrap().split_at(pfn(2 * GIB + 1));
    frames.free_range(first).unwrap();
    // The bitmaps of the whole GiB took more frames than that one.
    assert!(frames.validated().unwrap().bitmaps > 1);
    frames.free_range(others).unwrap();
    frames.validated().unwrap();
}
