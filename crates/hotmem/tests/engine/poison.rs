//! Tests that poisoned frames are never allocated again, and do not prevent their memory from going
//! offline or from being removed.

use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, boot, numbers, pfn, plug, range};
use std::collections::BTreeSet;

const BOOT_FRAMES: u64 = 2 * SECTION;
const HOTPLUG_FRAMES: u64 = 2 * SECTION;

fn with_instance(test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>, PfnRange)) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let mut hotplug = boot(&frames, &memory, BOOT_FRAMES);
    let hot = range(BOOT_FRAMES, HOTPLUG_FRAMES);
    plug(&mut hotplug, hot);
    // Divide a pageblock, so that the frame for the bitmaps of the section is allocated before the
    // test counts frames.
    let first = frames.alloc_range(AllocRequest::frames(1).at(hot.start()).movable()).unwrap();
    frames.free_range(first).unwrap();
    test(&frames, &mut hotplug, hot);
    frames.validated().unwrap();
}

fn offline(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange) -> Progress<PfnRange> {
    let mut offline = hotplug.offline(range).unwrap();
    let progress = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
    if progress != Progress::Ready(range) {
        offline.cancel(hotplug, &mut NoHooks);
    }
    progress
}

/// Allocates all free frames, one by one.
fn exhaust(frames: &Frames<OneCpu>) -> Vec<PfnRange> {
    std::iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1).movable()).ok()).collect()
}

#[test]
fn a_free_frame_is_quarantined_at_once() {
    with_instance(|frames, hotplug, hot| {
        let bad = pfn(BOOT_FRAMES + PAGEBLOCK + 3);
        let before = frames.validated().unwrap();
        assert_eq!(hotplug.poison(bad), Ok(Poisoned::Quarantined));
        assert_eq!(hotplug.poison(bad), Ok(Poisoned::Quarantined));
        assert!(hotplug.frames().poisoned().eq([(bad, Poisoned::Quarantined)]));
        let counts = frames.validated().unwrap();
        assert_eq!((counts.poisoned, counts.used), (1, before.used));
        assert_eq!(counts.free, before.free - 1);
        for request in [
            AllocRequest::frames(1).at(bad),
            AllocRequest::frames(PAGEBLOCK).at(pfn(BOOT_FRAMES + PAGEBLOCK)),
        ] {
            assert!(matches!(frames.alloc_range(request.movable()), Err(AllocError::NotFree(_))));
        }
        let all = exhaust(frames);
        assert!(all.iter().all(|range| !range.contains(bad)));
        assert_eq!(frames.counts().free, 0);
        all.into_iter().for_each(|range| frames.free_range(range).unwrap());
        let freed_poison = frames.free_range(range(bad.number(), 1)).unwrap_err();
        assert_eq!(freed_poison.kind, RangeErrorKind::NotAllocated);
        // `exhaust` has divided pageblocks everywhere, so each half of a section has a frame for
        // its bitmaps now. One of them had it before.
        let metadata = (BOOT_FRAMES + HOTPLUG_FRAMES) / (SECTION / 2) - 1;
        assert!(frames.validated().unwrap().free >= counts.free - metadata);
        assert_eq!(offline(hotplug, hot), Progress::Ready(hot));
    });
}

#[test]
fn a_frame_in_use_is_quarantined_when_it_is_freed() {
    for used_frames in [1, 5, PAGEBLOCK, 2 * PAGEBLOCK] {
        with_instance(|frames, hotplug, hot| {
            let used = frames.alloc_range(AllocRequest::frames(used_frames).movable()).unwrap();
            let bad = pfn(used.end().number() - 1);
            let before = frames.validated().unwrap();
            assert_eq!(hotplug.poison(bad), Ok(Poisoned::InUse));
            assert_eq!(frames.validated().unwrap(), before);
            let blocked = offline(hotplug, hot);
            let Progress::Pending(blocker) = blocked else { panic!("{blocked:?}") };
            let bad_frame = range(bad.number(), 1);
            assert!(match blocker.kind {
                BlockerKind::Unmovable(_) => !blocker.range.overlaps(bad_frame),
                kind => used_frames == 1 && kind == BlockerKind::Poisoned,
            });
            frames.free_range(used).unwrap();
            assert!(hotplug.frames().poisoned().eq([(bad, Poisoned::Quarantined)]));
            let after = frames.validated().unwrap();
            assert_eq!((after.poisoned, after.used), (1, before.used - used_frames));
            assert!(exhaust(frames).iter().all(|range| !range.contains(bad)));
        });
    }
}

/// A kernel that moves nothing, and frees what it is asked to migrate.
struct Freeing<'f> {
    frames: &'f Frames<OneCpu>,
    asked: Vec<PfnRange>,
}

impl Hooks for Freeing<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.asked.push(used);
        self.frames.free_range(used).unwrap();
        Migration::Freed
    }
}

#[test]
fn no_poisoned_frame_is_migrated() {
    with_instance(|frames, hotplug, hot| {
        let at = pfn(hot.start().number() + 8);
        let used = frames.alloc_range(AllocRequest::frames(8).at(at).movable()).unwrap();
        let start = used.start().number();
        let bad = range(start + 3, 1);
        assert_eq!(hotplug.poison(bad.start()), Ok(Poisoned::InUse));
        let mut kernel = Freeing { frames, asked: vec![] };
        let mut offline = hotplug.offline(hot).unwrap();
        // All other frames are migrated before the poisoned frame is the only one in the way.
        let progress = offline.poll(hotplug, &mut kernel, Budget::UNLIMITED);
        let blocker = Blocker { range: bad, kind: BlockerKind::Poisoned };
        assert_eq!(progress, Progress::Pending(blocker));
        assert_eq!(kernel.asked, [range(start, 3), range(start + 4, 4)]);
        frames.free_range(bad).unwrap();
        let progress = offline.poll(hotplug, &mut kernel, Budget::UNLIMITED);
        assert_eq!(progress, Progress::Ready(hot));
        assert_eq!(kernel.asked.len(), 2);
        assert!(frames.poisoned().eq([(bad.start(), Poisoned::Quarantined)]));
    });
}

#[test]
fn the_good_frames_of_an_allocation_are_freed_around_the_bad_ones() {
    with_instance(|frames, hotplug, _| {
        let used = frames.alloc_range(AllocRequest::frames(PAGEBLOCK).movable()).unwrap();
        let start = used.start().number();
        let bad = [0, 1, PAGEBLOCK / 2, PAGEBLOCK - 1].map(|offset| pfn(start + offset));
        for frame in bad {
            assert_eq!(hotplug.poison(frame), Ok(Poisoned::InUse));
        }
        // Free the allocation in two parts. Quarantined frames cannot be freed again.
        frames.free_range(range(start, PAGEBLOCK / 2 + 1)).unwrap();
        frames.validated().unwrap();
        let again = frames.free_range(used).unwrap_err();
        assert_eq!((again.range, again.kind), (used, RangeErrorKind::NotAllocated));
        frames.free_range(range(start + PAGEBLOCK / 2 + 1, PAGEBLOCK / 2 - 1)).unwrap();
        assert!(hotplug.frames().poisoned().all(|(_, state)| state == Poisoned::Quarantined));
        let counts = frames.validated().unwrap();
        assert_eq!(counts.poisoned, 4);
        let allocated: Vec<u64> = exhaust(frames).into_iter().flat_map(numbers).collect();
        for frame in numbers(used) {
            assert_eq!(allocated.contains(&frame), !bad.contains(&pfn(frame)), "{frame:#x}");
        }
    });
}

#[test]
fn a_partly_free_pageblock_with_a_poisoned_frame_is_not_freed_as_a_whole() {
    with_instance(|frames, hotplug, added| {
        let whole_block = frames
            .alloc_range(AllocRequest::frames(PAGEBLOCK).movable().at(added.start()))
            .unwrap();
        let frame = |n: u64| range(added.start().number() + n, 1);
        assert_eq!(hotplug.poison(frame(2).start()), Ok(Poisoned::InUse));
        frames.free_range(frame(PAGEBLOCK - 3)).unwrap();
        let before = frames.counts();
        let refused = Err(RangeError { range: whole_block, kind: RangeErrorKind::NotAllocated });
        assert_eq!((frames.free_range(whole_block), frames.counts()), (refused, before));
        frames.free_range(frame(2)).unwrap();
        assert_eq!(frames.counts().poisoned, before.poisoned + 1);
    });
}

#[test]
fn memory_comes_online_without_its_poisoned_frames_until_it_is_removed() {
    with_instance(|frames, hotplug, hot| {
        let (low, high) = (
            range(BOOT_FRAMES, PAGEBLOCK),
            range(BOOT_FRAMES + PAGEBLOCK, HOTPLUG_FRAMES - PAGEBLOCK),
        );
        let bad = pfn(BOOT_FRAMES + PAGEBLOCK - 1);
        hotplug.poison(bad).unwrap();
        assert_eq!(offline(hotplug, hot), Progress::Ready(hot));
        assert_eq!(frames.validated().unwrap().poisoned, 0);
        hotplug.online(high, OnlineType::Movable, &mut NoHooks).unwrap();
        // Offline memory can be poisoned as well.
        assert_eq!(hotplug.poison(low.start()), Ok(Poisoned::Quarantined));
        assert_eq!(hotplug.memory_blocks(SECTION).map(|block| block.poisoned).sum::<u64>(), 2);
        assert_eq!(frames.validated().unwrap().poisoned, 0);
        hotplug.online(low, OnlineType::Kernel, &mut NoHooks).unwrap();
        assert_eq!(frames.validated().unwrap().poisoned, 2);
        for poisoned in [bad, low.start()] {
            let refused = frames.alloc_range(AllocRequest::frames(1).at(poisoned));
            assert!(matches!(refused, Err(AllocError::NotFree(_))), "{refused:?}");
        }
        assert_eq!(offline(hotplug, low), Progress::Ready(low));
        hotplug.remove(low).unwrap();
        assert_eq!(hotplug.frames().poisoned().count(), 0);
        hotplug.add(low).unwrap();
        hotplug.online(low, OnlineType::Movable, &mut NoHooks).unwrap();
        assert!(
            frames.alloc_range(AllocRequest::frames(PAGEBLOCK).at(low.start()).movable()).is_ok()
        );
    });
}

/// Calls `undo`, which must run a shrink and undo it. The memory has poisoned frames in two zones.
/// Checks that the instance is unchanged afterwards.
fn check_undone(undo: impl for<'f> Fn(&mut Hotplug<'f, OneCpu>, Shrink<'f, OneCpu>)) {
    with_instance(|frames, hotplug, hot| {
        let last_section = range(BOOT_FRAMES + HOTPLUG_FRAMES - SECTION, SECTION);
        assert_eq!(offline(hotplug, last_section), Progress::Ready(last_section));
        hotplug.online(last_section, OnlineType::Kernel, &mut NoHooks).unwrap();
        let bad = [
            BOOT_FRAMES + HOTPLUG_FRAMES - 1,
            BOOT_FRAMES + HOTPLUG_FRAMES - PAGEBLOCK,
            BOOT_FRAMES + HOTPLUG_FRAMES - SECTION,
            BOOT_FRAMES,
        ]
        .map(pfn);
        for frame in bad {
            assert_eq!(hotplug.poison(frame), Ok(Poisoned::Quarantined));
        }
        let before = (frames.validated().unwrap(), hotplug.zone(NodeId::ZERO, Zone::Kernel));
        let shrink = Shrink::new(ShrinkOptions { frames: HOTPLUG_FRAMES, ..hot.into() });
        undo(hotplug, shrink);
        let after = (frames.validated().unwrap(), hotplug.zone(NodeId::ZERO, Zone::Kernel));
        assert_eq!(after, before);
        assert_eq!(
            hotplug.state_at(last_section.start(), hot.end()),
            (last_section, State::Online)
        );
        assert!(hotplug.frames().poisoned().all(|(_, state)| state == Poisoned::Quarantined));
        assert!(
            exhaust(frames).iter().all(|allocated| bad.iter().all(|&bad| !allocated.contains(bad)))
        );
    });
}

#[test]
fn a_refused_removal_of_memory_with_poison_is_undone() {
    check_undone(|hotplug, mut shrink| {
        let Progress::Ready(removal) = shrink.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) else {
            panic!("the shrink did not take all hotplugged memory");
        };
        assert_eq!(removal.range(), range(BOOT_FRAMES, HOTPLUG_FRAMES));
        hotplug.abandon_remove(removal, &mut NoHooks);
    });
}

#[test]
fn a_cancelled_shrink_of_memory_with_poison_is_undone() {
    for polls in [1, 2] {
        check_undone(|hotplug, mut shrink| {
            for _ in 0..polls {
                let shrunk = shrink.poll(hotplug, &mut NoHooks, Budget { pageblocks: 0 });
                assert!(matches!(shrunk, Progress::Working));
            }
            shrink.cancel(hotplug, &mut NoHooks);
        });
    }
}

#[test]
fn frames_poisoned_under_a_token_stay_quarantined_after_the_isolation() {
    with_instance(|frames, hotplug, hot| {
        let bad = [pfn(BOOT_FRAMES), pfn(BOOT_FRAMES + PAGEBLOCK - 1)];
        for isolation_end in ["release", "report", "split"] {
            let token = frames.isolate(hot).unwrap();
            for frame in bad {
                assert_eq!(hotplug.poison(frame), Ok(Poisoned::Quarantined));
            }
            assert_eq!(token.in_use(), None);
            match isolation_end {
                "release" => token.release(),
                "report" => token.mark_reported().unwrap(),
                _ => {
                    let (low, high) = token.split_at(pfn(BOOT_FRAMES + PAGEBLOCK));
                    low.release();
                    frames.validated().unwrap();
                    high.release();
                }
            }
            let counts = frames.validated().unwrap();
            assert_eq!(counts.poisoned, 2);
            // A later isolation keeps the marks of the report.
            assert_eq!(
                counts.reported,
                if isolation_end == "release" { 0 } else { HOTPLUG_FRAMES - PAGEBLOCK }
            );
        }
        assert!(
            exhaust(frames).iter().all(|allocated| bad.iter().all(|&bad| !allocated.contains(bad)))
        );
    });
}

#[test]
fn free_and_used_frames_can_be_poisoned_under_a_token() {
    with_instance(|frames, hotplug, _| {
        let used = frames.alloc_range(AllocRequest::frames(2).movable()).unwrap();
        let start = used.start().align_down(PAGEBLOCK);
        let token = frames.isolate(range(start.number(), PAGEBLOCK)).unwrap();
        // Poison a free frame and a frame in use.
        let free = pfn(start.number() + 5);
        assert_eq!(hotplug.poison(free), Ok(Poisoned::Quarantined));
        assert_eq!(hotplug.poison(used.start()), Ok(Poisoned::InUse));
        // The poisoned frame is the first of two in use, and is named last.
        let (bad, good) = (range(start.number(), 1), range(start.number() + 1, 1));
        assert_eq!(token.in_use(), Some(Blocker { range: good, kind: BlockerKind::Allocated }));
        frames.free_range(good).unwrap();
        assert_eq!(token.in_use(), Some(Blocker { range: bad, kind: BlockerKind::Poisoned }));
        frames.free_range(bad).unwrap();
        assert_eq!(token.in_use(), None);
        frames.validated().unwrap();
        token.release();
        assert_eq!(frames.validated().unwrap().poisoned, 2);
    });
}

#[test]
fn every_frame_of_a_pageblock_can_be_poisoned() {
    with_instance(|frames, hotplug, hot| {
        let block = range(BOOT_FRAMES, PAGEBLOCK);
        for frame in numbers(block) {
            assert_eq!(hotplug.poison(pfn(frame)), Ok(Poisoned::Quarantined));
            frames.validated().unwrap();
        }
        frames.isolate(range(BOOT_FRAMES, PAGEBLOCK)).unwrap().release();
        assert_eq!(frames.validated().unwrap().poisoned, block.frames());
        assert_eq!(offline(hotplug, hot), Progress::Ready(hot));
    });
}

#[test]
fn invalid_frames_cannot_be_poisoned() {
    with_instance(|frames, hotplug, _| {
        let before = frames.validated().unwrap();
        let beyond = pfn(BOOT_FRAMES + HOTPLUG_FRAMES);
        assert_eq!(
            hotplug.poison(beyond),
            Err(RangeError {
                range: range(BOOT_FRAMES + HOTPLUG_FRAMES, 1),
                kind: RangeErrorKind::NotPresent
            })
        );
        assert_eq!(
            hotplug.poison(Pfn::LIMIT),
            Err(RangeError {
                range: range(Pfn::LIMIT.number(), 0),
                kind: RangeErrorKind::NotPresent
            })
        );
        let metadata = frames.metadata().next().unwrap().frames;
        let refused = Err(RangeError { range: metadata, kind: RangeErrorKind::Metadata });
        assert_eq!(hotplug.poison(metadata.start()), refused);
        assert_eq!(frames.validated().unwrap(), before);
    });
}

#[test]
fn any_number_of_frames_can_be_poisoned() {
    with_instance(|frames, hotplug, hot| {
        let before = frames.validated().unwrap();
        let used = frames.alloc_range(AllocRequest::frames(PAGEBLOCK).movable()).unwrap();
        let all = if cfg!(miri) { 300 } else { 3000.min(HOTPLUG_FRAMES / 2) };
        let step = HOTPLUG_FRAMES / all;
        let bad: BTreeSet<_> =
            numbers(hot).step_by(usize::try_from(step).unwrap()).map(pfn).collect();
        for &frame in &bad {
            let expected =
                if used.contains(frame) { Poisoned::InUse } else { Poisoned::Quarantined };
            assert_eq!(hotplug.poison(frame), Ok(expected));
        }
        frames.free_range(used).unwrap();
        let counts = frames.validated().unwrap();
        assert_eq!((counts.poisoned, counts.online), (bad.len() as u64, before.online));
        // The table of poisoned frames has grown, and counts as words.
        let is_large = bad.len() > 256;
        assert_eq!(counts.words > before.words, is_large);
        assert!(frames.poisoned().all(|(_, state)| state == Poisoned::Quarantined));
        let listed: BTreeSet<_> = frames.poisoned().map(|(frame, _)| frame).collect();
        assert_eq!(listed, bad);
        assert!(exhaust(frames).iter().all(|frame| !bad.contains(&frame.start())));
    });
}
