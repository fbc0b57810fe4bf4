//! Tests which memory is known to be zero after the host has returned it to its lender.

use fastrand::Rng;
use hotmem::{
    AllocRequest, Contents, Frames, LentMemory, OneCpu, PfnRange, RangeError, RangeErrorKind,
};
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, RawRanges as _, SECTION, numbers, pfn, range};
use std::sync::atomic::Ordering::Relaxed;

type Lender<'f> = LentMemory<'f, OneCpu>;

/// The number of frames of boot memory.
const FRAMES: u64 = 4 * SECTION;
const ONE_BLOCK: AllocRequest = AllocRequest::frames(PAGEBLOCK);

/// Runs `test` on an instance of boot memory that keeps zero marks.
fn with_lender(test: impl FnOnce(&Frames<OneCpu>, &Memory, &mut Lender<'_>)) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(FRAMES));
    let _hotplug = hotmem_testkit::boot(&frames, &memory, FRAMES);
    hotmem_testkit::keep_zero_marks(&frames);
    // Divide a pageblock, which then has the bitmaps of all this memory, and space for the lender's
    // records. So no other pageblock that a test divides gets metadata.
    let free_whole = frames.counts().free_whole;
    while frames.counts().free_whole == free_whole {
        frames.alloc_range(AllocRequest::frames(1)).unwrap();
    }
    test(&frames, &memory, &mut Lender::new(&frames));
    frames.validated().unwrap();
}

fn halves(range: PfnRange) -> (PfnRange, PfnRange) {
    range.split_at(pfn(range.start().number() + range.frames() / 2))
}

/// Returns whether `range` is free as a whole and known to be zero.
fn is_zero(frames: &Frames<OneCpu>, range: PfnRange) -> bool {
    let request = AllocRequest::frames(range.frames()).within(range.start()..range.end());
    frames.alloc_with_contents(request).unwrap().1 == Contents::Filled(0)
}

#[test]
fn a_pageblock_that_is_promised_to_be_zero_is_zero_until_it_is_used() {
    with_lender(|frames, _, lent| {
        let block = lent.allocate(ONE_BLOCK, &[]).unwrap();
        lent.mark_zeroed(block).unwrap();
        lent.free_as_promised(block).unwrap();
        assert_eq!(lent.frames(), 0);
        assert!(is_zero(frames, block));
        assert!(!is_zero(frames, block), "it was used");
        // The promise was for one return.
        lent.allocate(ONE_BLOCK.at(block.start()), &[]).unwrap();
        lent.free_as_promised(block).unwrap();
        assert!(!is_zero(frames, block));
    });
}

#[test]
fn parts_of_pageblocks_are_not_known_to_be_zero() {
    with_lender(|frames, _, lent| {
        let block = lent.allocate(ONE_BLOCK, &[]).unwrap();
        let (low, high) = halves(block);
        lent.mark_zeroed(low).unwrap();
        lent.mark_zeroed(high).unwrap();
        lent.free_as_promised(block).unwrap();
        assert!(!is_zero(frames, block), "nobody has promised the whole pageblock");
        lent.allocate(ONE_BLOCK.at(block.start()), &[]).unwrap();
        lent.mark_zeroed(block).unwrap();
        lent.free_as_promised(low).unwrap();
        lent.free_as_promised(high).unwrap();
        assert!(!is_zero(frames, block), "it was freed in two parts");
    });
}

#[test]
fn a_promise_ends_when_a_part_of_the_pageblock_is_freed() {
    with_lender(|frames, _, lent| {
        let block = lent.allocate(ONE_BLOCK, &[]).unwrap();
        lent.mark_zeroed(block).unwrap();
        let (low, high) = halves(block);
        lent.free_as_promised(low).unwrap();
        // The kernel uses the part, and the lender gets it again, so that it has the whole
        // pageblock.
        let low_again = AllocRequest::frames(low.frames()).at(low.start());
        drop(frames.alloc(low_again).unwrap());
        lent.allocate(low_again, &[]).unwrap();
        assert_eq!(lent.frames_in(block), block.frames());
        lent.free_as_promised(block).unwrap();
        assert!(!is_zero(frames, low));
        assert!(!is_zero(frames, high));
    });
}

#[test]
fn promised_pageblocks_are_zero_in_whatever_order_they_come_back() {
    with_lender(|frames, _, lent| {
        let blocks: Vec<_> = (0..6).map(|_| lent.allocate(ONE_BLOCK, &[]).unwrap()).collect();
        for &block in &blocks[..4] {
            lent.mark_zeroed(block).unwrap();
            lent.mark_zeroed(block).unwrap();
        }
        for index in [5, 0, 3, 1, 4, 2] {
            lent.free_as_promised(blocks[index]).unwrap();
        }
        for (index, &block) in blocks.iter().enumerate() {
            assert_eq!(is_zero(frames, block), index < 4, "{index}");
        }
    });
}

#[test]
fn promises_are_believed_only_by_who_asks_for_it_and_their_record_is_freed() {
    with_lender(|frames, _, lent| {
        let free = frames.counts().free;
        let block = lent.allocate(ONE_BLOCK, &[]).unwrap();
        lent.mark_zeroed(block).unwrap();
        lent.free(block).unwrap();
        assert!(!is_zero(frames, block));
        assert_eq!(frames.counts().free, free);
        lent.allocate(ONE_BLOCK.at(block.start()), &[]).unwrap();
        lent.free_as_promised(block).unwrap();
        assert!(!is_zero(frames, block), "the promise was forgotten");
    });
}

#[test]
fn promises_of_memory_that_is_not_lent_are_refused() {
    with_lender(|_, _, lent| {
        let block = lent.allocate(ONE_BLOCK, &[]).unwrap();
        let beyond = range(block.start().number(), PAGEBLOCK + 1);
        for (refused, kind) in
            [(beyond, RangeErrorKind::NotLent), (PfnRange::EMPTY, RangeErrorKind::Empty)]
        {
            let error = Err(RangeError { range: refused, kind });
            assert_eq!(lent.mark_zeroed(refused), error);
            assert_eq!(lent.free_as_promised(refused), error);
        }
        assert_eq!(lent.frames(), PAGEBLOCK);
        lent.free_as_promised(block).unwrap();
    });
}

#[test]
fn nothing_is_recorded_unless_marks_are_kept() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(FRAMES));
    let _hotplug = hotmem_testkit::boot(&frames, &memory, FRAMES);
    let mut lent = Lender::new(&frames);
    let block = lent.allocate(ONE_BLOCK, &[]).unwrap();
    lent.mark_zeroed(block).unwrap();
    hotmem_testkit::keep_zero_marks(&frames);
    lent.free_as_promised(block).unwrap();
    assert!(!is_zero(&frames, block));
}

#[test]
fn without_memory_for_the_record_promises_are_forgotten() {
    with_lender(|frames, _, lent| {
        let block = lent.allocate(ONE_BLOCK, &[]).unwrap();
        let mut all = Vec::new();
        while let Ok(one) = frames.alloc_range(AllocRequest::frames(1)) {
            all.push(one);
        }
        lent.mark_zeroed(block).unwrap();
        lent.free_as_promised(block).unwrap();
        assert!(!is_zero(frames, block));
        all.into_iter().for_each(|one| frames.free_range(one).unwrap());
    });
}

#[test]
fn the_record_of_promises_can_be_moved() {
    with_lender(|frames, _, lent| {
        let blocks: Vec<_> = (0..3).map(|_| lent.allocate(ONE_BLOCK, &[]).unwrap()).collect();
        let moved = |lent: &mut Lender<'_>| {
            let each = range(0, FRAMES).chunks(1);
            each.filter(|&one| lent.move_record(one).unwrap()).count()
        };
        let before = moved(lent);
        blocks.iter().for_each(|&block| lent.mark_zeroed(block).unwrap());
        assert!(moved(lent) > before);
        blocks.iter().for_each(|&block| lent.free_as_promised(block).unwrap());
        assert!(blocks.iter().all(|&block| is_zero(frames, block)));
    });
}

/// Allocates frames, and reads them if the engine says that they are zero. Writes to them, and
/// returns them and the number of frames that were zero.
fn allocate(frames: &Frames<OneCpu>, memory: &Memory, len: u64) -> Option<(PfnRange, u64)> {
    let (allocation, contents) = frames.alloc_with_contents(AllocRequest::frames(len)).ok()?;
    let range = allocation.into_raw();
    let is_zero = contents == Contents::Filled(0);
    let mut words = numbers(range).map(|n| memory.word(n).load(Relaxed));
    assert!(!is_zero || words.all(|word| word == 0), "{range} is not zero");
    numbers(range).for_each(|n| memory.word(n).store(1, Relaxed));
    Some((range, if is_zero { range.frames() } else { 0 }))
}

/// Promises those lent pageblocks within `within` that the host has zeroed.
fn promise(memory: &Memory, lent: &mut Lender<'_>, within: PfnRange) {
    let is_zero = |&block: &PfnRange| numbers(block).all(|n| memory.word(n).load(Relaxed) == 0);
    for block in within.chunks(PAGEBLOCK).filter(is_zero) {
        if lent.frames_in(block) == block.frames() {
            lent.mark_zeroed(block).unwrap();
        }
    }
}

/// The host zeroes what it promises, and overwrites all other lent memory.
#[test]
fn what_is_said_to_be_zero_is_zero() {
    for seed in 0..20 {
        with_lender(|frames, memory, lent| {
            let mut rng = Rng::with_seed(seed);
            let mut used = Vec::new();
            for _ in 0..300 {
                let len = [1, 5, PAGEBLOCK / 2, PAGEBLOCK, 2 * PAGEBLOCK][rng.usize(..5)];
                match rng.u8(..6) {
                    0 | 1 => {
                        let Ok(lent) = lent.allocate(AllocRequest::frames(len), &[]) else {
                            continue;
                        };
                        let word = if rng.bool() { 0 } else { u64::MAX };
                        numbers(lent).for_each(|n| memory.word(n).store(word, Relaxed));
                    }
                    2 => promise(memory, lent, range(0, rng.u64(..FRAMES))),
                    3 => {
                        if let Some(run) = lent.highest_in(range(0, rng.u64(..FRAMES)), len) {
                            lent.free_as_promised(run).unwrap();
                        }
                    }
                    4 => used.extend(allocate(frames, memory, len).map(|(range, _)| range)),
                    _ if used.is_empty() => {}
                    _ => frames.free_range(used.swap_remove(rng.usize(..used.len()))).unwrap(),
                }
            }
            promise(memory, lent, range(0, FRAMES));
            while let Some(run) = lent.highest_in(PfnRange::ALL, u64::MAX) {
                lent.free_as_promised(run).unwrap();
            }
            used.into_iter().for_each(|range| frames.free_range(range).unwrap());
            // At least one pageblock is promised at the end.
            let block = lent.allocate(ONE_BLOCK, &[]).unwrap();
            numbers(block).for_each(|n| memory.word(n).store(0, Relaxed));
            lent.mark_zeroed(block).unwrap();
            lent.free_as_promised(block).unwrap();
            let all = std::iter::from_fn(|| allocate(frames, memory, PAGEBLOCK));
            assert!(all.map(|(_, zeroed)| zeroed).sum::<u64>() >= PAGEBLOCK);
        });
    }
}
