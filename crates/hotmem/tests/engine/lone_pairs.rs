//! Counts the divisions of pageblocks while one run is allocated and freed again and again.

use hotmem::*;
use hotmem_testkit::LONGEST_RUN;
use hotmem_testkit::{Memory, PAGEBLOCK, RawRanges as _, SECTION, Validated as _, range};

/// The number of pairs of an allocation and a free for each request. All requests together make more
/// than a million pairs.
const PAIRS: u64 = if cfg!(miri) {
    5
} else if cfg!(debug_assertions) {
    200
} else {
    50_000
};
const LENGTHS: [u64; 16] = [1, 2, 3, 4, 5, 8, 12, 16, 31, 32, 33, 64, 65, 128, 200, 256];

/// Makes [`PAIRS`] pairs. Returns in how many of them the allocation divided a pageblock: the
/// pageblock had been wholly free, and not divided, before.
fn divisions(frames: &Frames<OneCpu>, request: AllocRequest) -> u64 {
    let mut divisions = 0;
    let mut last_block = PfnRange::EMPTY;
    for _ in 0..PAIRS {
        let is_whole = frames.counts_in(last_block).free_whole == PAGEBLOCK;
        let run = frames.alloc_range(request).unwrap();
        let block = range(run.start().number() / PAGEBLOCK * PAGEBLOCK, PAGEBLOCK);
        divisions += u64::from(is_whole || block != last_block);
        last_block = block;
        frames.free_range(run).unwrap();
    }
    divisions
}

#[test]
fn a_lone_run_divides_a_pageblock_no_more_than_twice() {
    let lengths = LENGTHS.into_iter().filter(|&frames| frames <= LONGEST_RUN);
    for request in lengths.flat_map(|frames| {
        let aligned = AllocRequest::frames(frames).aligned(frames.next_power_of_two());
        [AllocRequest::frames(frames), aligned, aligned.movable()]
    }) {
        let memory = Memory::new(2 * SECTION);
        let frames = Frames::new(OneCpu);
        let _hotplug = hotmem_testkit::boot(&frames, &memory, 2 * SECTION);
        let divisions = divisions(&frames, request);
        assert!(divisions <= 2, "{divisions} divisions for {request:?}");
        frames.validated().unwrap();
    }
}

#[test]
fn a_pageblock_that_stays_divided_for_runs_is_allocated_as_a_whole() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(OneCpu);
    let _hotplug = hotmem_testkit::boot(&frames, &memory, SECTION);
    let whole = || {
        let mut blocks = vec![];
        while let Ok(block) = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)) {
            blocks.push(block);
        }
        let count = blocks.len();
        blocks.into_iter().for_each(|block| frames.free_range(block).unwrap());
        count
    };
    // The first allocation of a frame may need a frame for the bitmaps.
    let frame = frames.alloc_range(AllocRequest::frames(1)).unwrap();
    frames.free_range(frame).unwrap();
    let before = whole();
    let run = frames.alloc_range(AllocRequest::frames(2)).unwrap();
    frames.free_range(run).unwrap();
    let is_divided = |counts: Counts| counts.free - counts.free_whole >= PAGEBLOCK;
    assert!(is_divided(frames.counts()), "the pageblock of the run was joined");
    assert_eq!(whole(), before);
    frames.validated().unwrap();
}
