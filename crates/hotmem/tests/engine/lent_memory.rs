//! Tests memory that is lent to the host: which frames are lent, and that they are never pinned.

use fastrand::Rng;
use hotmem::{
    AllocError, AllocRequest, Contents, Frames, Hotplug, LentMemory, MAX_PINS, NoHooks, OneCpu,
    OnlineType, PfnRange, RangeError, RangeErrorKind,
};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{DISTANT_PFN, Memory, PAGEBLOCK, SECTION, numbers, pfn, range};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

type Lender<'f> = LentMemory<'f, OneCpu>;

/// Runs `test` on an instance of four sections of boot memory.
fn with_instance(test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>)) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(4 * SECTION));
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, 4 * SECTION);
    // Divide a pageblock, which then has the bitmaps of all this memory, and space for the records of
    // lenders. So a pageblock that a test divides becomes whole again.
    let free_whole = frames.counts().free_whole;
    while frames.counts().free_whole == free_whole {
        frames.alloc_range(AllocRequest::frames(1)).unwrap();
    }
    test(&frames, &mut hotplug);
    frames.validated().unwrap();
}

/// Returns a whole pageblock that is free.
fn free_block(frames: &Frames<OneCpu>) -> PfnRange {
    let block = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
    frames.free_range(block).unwrap();
    block
}

fn free_all(lent: &mut Lender<'_>) {
    while let Some(run) = lent.highest_in(PfnRange::ALL, u64::MAX) {
        lent.free(run).unwrap();
    }
    assert_eq!(lent.frames(), 0);
}

fn pin(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange) -> Result<(), RangeError> {
    hotplug.pin(range, |_| {})
}

fn assert_lent(hotplug: &mut Hotplug<'_, OneCpu>, target: PfnRange) {
    let Err(RangeError { range, kind: RangeErrorKind::Lent }) = pin(hotplug, target) else {
        panic!("{target} can be pinned, although frames of its pageblock are lent")
    };
    assert!(range.overlaps(target));
}

#[test]
fn lent_memory_cannot_be_pinned_until_all_of_its_pageblock_has_come_back() {
    with_instance(|frames, hotplug| {
        let mut lent = Lender::new(frames);
        let block = lent.allocate(AllocRequest::frames(PAGEBLOCK), &[]).unwrap();
        let part = range(block.start().number() + 7, 1);
        assert_lent(hotplug, part);
        let (low, high) = block.split_at(pfn(block.start().number() + PAGEBLOCK / 2));
        lent.free(low).unwrap();
        assert_lent(hotplug, high);
        assert_eq!(
            lent.free(block),
            Err(RangeError { range: block, kind: RangeErrorKind::NotLent })
        );
        lent.free(high).unwrap();
        pin(hotplug, block).unwrap();
        let refused = lent.allocate(AllocRequest::frames(1).at(part.start()), &[]);
        assert_eq!(refused, Err(AllocError::NotFree(part)));
        assert!(hotplug.unpin(block));
        assert_eq!(lent.allocate(AllocRequest::frames(1).at(part.start()), &[]), Ok(part));
        assert_lent(hotplug, block);
        lent.free(part).unwrap();
    });
}

#[test]
fn a_pageblock_in_use_can_be_pinned_when_its_lent_frames_have_come_back() {
    with_instance(|frames, hotplug| {
        let block = free_block(frames);
        let at = |n| AllocRequest::frames(1).at(pfn(block.start().number() + n));
        let mut lent = Lender::new(frames);
        let used = frames.alloc(at(0)).unwrap();
        let first = lent.allocate(at(1), &[]).unwrap();
        let second = lent.allocate(at(2), &[]).unwrap();
        lent.free(first).unwrap();
        assert_lent(hotplug, used.range());
        lent.free(second).unwrap();
        pin(hotplug, used.range()).unwrap();
    });
}

#[test]
fn a_lender_does_not_end_the_mark_of_another_lender() {
    with_instance(|frames, hotplug| {
        let block = free_block(frames);
        let at = |n| AllocRequest::frames(1).at(pfn(block.start().number() + n));
        let (mut one, mut other) = (Lender::new(frames), Lender::new(frames));
        let first = one.allocate(at(1), &[]).unwrap();
        let second = other.allocate(at(2), &[]).unwrap();
        one.free(first).unwrap();
        assert_lent(hotplug, second);
        other.free(second).unwrap();
        // Nobody knows who was the last one, until the pageblock has been free.
        let all = frames.alloc(AllocRequest::frames(PAGEBLOCK).at(block.start())).unwrap();
        pin(hotplug, all.range()).unwrap();
    });
}

#[test]
fn a_refused_loan_leaves_no_mark() {
    with_instance(|frames, hotplug| {
        // Two pageblocks, of which the second has a pinned frame.
        let two = frames.alloc_range(AllocRequest::frames(2 * PAGEBLOCK)).unwrap();
        frames.free_range(two).unwrap();
        let pinned = range(two.end().number() - 1, 1);
        pin(hotplug, pinned).unwrap();
        let mut lent = Lender::new(frames);
        let request = AllocRequest::frames(2 * PAGEBLOCK).at(two.start());
        assert_eq!(lent.allocate(request, &[]), Err(AllocError::NotFree(two)));
        assert_eq!(lent.frames(), 0);
        // A part of the pageblocks is in use, so that a mark would stay.
        let used = frames.alloc(AllocRequest::frames(1).at(two.start())).unwrap();
        pin(hotplug, used.range()).unwrap();
    });
}

#[test]
fn allocations_go_around_pinned_memory_and_memory_to_be_avoided() {
    for frames_of_pin in [1, 3, PAGEBLOCK, 2 * PAGEBLOCK] {
        with_instance(|frames, hotplug| {
            let step = 4 * SECTION / MAX_PINS as u64;
            let pins: Vec<_> =
                (0..MAX_PINS as u64).map(|n| range(n * step, frames_of_pin)).collect();
            for &pinned in &pins {
                pin(hotplug, pinned).unwrap();
            }
            let avoid = [range(SECTION, SECTION)];
            let mut lent = Lender::new(frames);
            let free = frames.counts().free;
            for size in [PAGEBLOCK, 1] {
                while let Ok(range) = lent.allocate(AllocRequest::frames(size), &avoid) {
                    assert!(pins.iter().chain(&avoid).all(|closed| !closed.overlaps(range)));
                }
            }
            let closed = SECTION + pins.iter().map(|pin| pin.frames()).sum::<u64>();
            // The engine's own metadata is not free.
            assert!(lent.frames() + closed + 8 >= free, "{} of {free}", lent.frames());
            free_all(&mut lent);
        });
    }
}

#[test]
fn a_loan_for_which_no_record_can_be_made_changes_nothing() {
    with_instance(|frames, _| {
        let mut all = Vec::new();
        while let Ok(one) = frames.alloc_range(AllocRequest::frames(1)) {
            all.push(one);
        }
        let mut lent = Lender::new(frames);
        // The highest frames, whose record is the largest.
        all.sort_by_key(|one| one.start());
        let mut freed = 0;
        let range = loop {
            frames.free_range(all.pop().unwrap()).unwrap();
            freed += 1;
            let before = frames.counts();
            match lent.allocate(AllocRequest::frames(1), &[]) {
                Ok(range) => break range,
                Err(error) => assert_eq!(error, AllocError::OutOfMemory),
            }
            assert_eq!((frames.counts(), lent.frames()), (before, 0));
        };
        assert!((2..=3).contains(&freed), "{freed}");
        assert_eq!(frames.counts().free, 0);
        lent.free(range).unwrap();
        assert_eq!(frames.counts().free, freed, "the record is not freed");
    });
}

#[test]
fn the_record_can_be_moved_out_of_memory_that_is_to_be_removed() {
    with_instance(|frames, _| {
        let mut lent = Lender::new(frames);
        let before = frames.counts().free;
        let loan = |_| lent.allocate(AllocRequest::frames(PAGEBLOCK + 1), &[]).ok();
        let runs: Vec<_> = (0..10).map_while(loan).collect();
        assert!(runs.len() > 1);
        let recorded = before - frames.counts().free - lent.frames();
        let all: Vec<_> = range(0, 4 * SECTION).chunks(1).collect();
        let mut moved = 0;
        for &one in &all {
            moved += u64::from(lent.move_record(one).unwrap());
        }
        // A node may be moved to a frame that is looked at later.
        assert!(moved >= 1 && recorded >= 1, "{moved} of {recorded}");
        for run in runs {
            assert_eq!(lent.frames_in(run), run.frames());
            lent.free(run).unwrap();
        }
        assert_eq!(lent.frames(), 0);
    });
}

#[test]
fn freed_memory_has_the_contents_of_free_memory() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(SECTION));
    let _hotplug = hotmem_testkit::boot(&frames, &memory, SECTION);
    frames.set_contents(Contents::Filled(0)).unwrap();
    let mut lent = Lender::new(&frames);
    for size in [1, PAGEBLOCK] {
        let range = lent.allocate(AllocRequest::frames(size), &[]).unwrap();
        let word = memory.word(range.start().number());
        word.store(u64::MAX, Relaxed);
        lent.free(range).unwrap();
        assert_eq!(word.load(Relaxed), 0);
    }
    // The record itself was freed, too.
    let all = std::iter::from_fn(|| frames.alloc(AllocRequest::frames(1)).ok());
    for one in all.collect::<Vec<_>>() {
        assert!(memory.words(one.range().start().number()).all(|word| word == 0));
    }
}

/// Compares the record with a set of numbers, for memory near the start and far away.
#[test]
fn the_record_agrees_with_a_set_of_numbers() {
    for seed in 0..20 {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(3 * SECTION));
        let mut hotplug = hotmem_testkit::boot(&frames, &memory, 3 * SECTION);
        // Only the engine's words of this memory are accessed.
        let distant = range(DISTANT_PFN, SECTION);
        hotplug.announce(distant).unwrap();
        hotplug.add(distant).unwrap();
        hotplug.online(distant, OnlineType::Movable, &mut NoHooks).unwrap();
        let mut lent = Lender::new(&frames);
        let mut oracle = BTreeSet::new();
        let mut rng = Rng::with_seed(seed);
        let place = |rng: &mut Rng| match rng.u8(..3) {
            0 => DISTANT_PFN + rng.u64(..SECTION),
            _ => rng.u64(..3 * SECTION),
        };
        for _ in 0..400 {
            let at = place(&mut rng);
            let len = [1, 1, 3, 64, 200, PAGEBLOCK, 2000][rng.usize(..7)];
            let within = range(at, len);
            if rng.bool() {
                if let Ok(range) = lent.allocate(AllocRequest::frames(len).at(within.start()), &[])
                {
                    numbers(range).for_each(|n| assert!(oracle.insert(n)));
                }
            } else if let Some(run) = lent.highest_in(within, rng.u64(1..600)) {
                numbers(run).for_each(|n| assert!(oracle.remove(&n)));
                lent.free(run).unwrap();
            }
            let within = range(place(&mut rng), rng.u64(..3000));
            let expected = oracle.range(numbers(within)).count() as u64;
            assert_eq!(lent.frames_in(within), expected);
            let highest = lent.highest_in(within, u64::MAX);
            assert_eq!(
                highest.map(|run| run.end().number() - 1),
                oracle.range(numbers(within)).next_back().copied()
            );
            if let Some(run) = highest {
                let below = run.start().number().checked_sub(1);
                let goes_on = below.is_some_and(|n| {
                    numbers(within).contains(&n) && oracle.contains(&n) && n % 32768 != 32767
                });
                assert!(!goes_on, "the run {run} is longer");
            }
            let lowest = lent.lowest_in(within, u64::MAX);
            assert_eq!(
                lowest.map(|run| run.start().number()),
                oracle.range(numbers(within)).next().copied()
            );
            if let Some(run) = lowest {
                let end = run.end().number();
                let goes_on = numbers(within).contains(&end) && oracle.contains(&end);
                assert!(!goes_on || end % 32768 == 0, "the run {run} is longer");
                assert_eq!(lent.frames_in(run), run.frames());
                assert_eq!(
                    lent.lowest_in(run, 2),
                    Some(run.split_at(pfn(end.min(run.start().number() + 2))).0)
                );
            }
            assert_eq!(lent.frames(), oracle.len() as u64);
        }
        free_all(&mut lent);
        frames.validated().unwrap();
    }
}
