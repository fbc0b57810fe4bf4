//! Tests which memory a kernel gets that zeroes free memory while it is idle.

use super::*;
use hotmem::Allocation;

const ONE_BLOCK: AllocRequest = AllocRequest::frames(PAGEBLOCK);

/// Frees memory that the caller says is zero. The tests have no contents.
fn free_as_zero(frames: &TestFrames<'_>, range: PfnRange) {
    // SAFETY: the callers have allocated the frames; nobody reads their contents.
    unsafe { frames.free_zeroed_raw(range) }.unwrap();
}

/// Returns the pageblocks that an idle kernel gets, and frees them as zero.
fn zero_all(frames: &TestFrames<'_>) -> Vec<PfnRange> {
    let zero = |allocation: Allocation<'_, _>| {
        let range = allocation.into_raw();
        free_as_zero(frames, range);
        range
    };
    frames.unzeroed_pageblocks().map(zero).collect()
}

#[test]
fn all_free_pageblocks_become_zero_once_in_ascending_order() {
    with_instance(|frames, _, _| {
        hotmem_testkit::keep_zero_marks(frames);
        let held = frames.alloc(ONE_BLOCK).unwrap();
        let free = frames.counts().free_whole;
        let zeroed = zero_all(frames);
        assert_eq!(zeroed.len() as u64 * PAGEBLOCK, free);
        assert!(zeroed.is_sorted_by_key(|range| range.start()));
        assert!(!zeroed.contains(&held.range()));
        assert_eq!(zero_all(frames), []);
        // What becomes dirty is found again.
        let dirty = held.range();
        drop(held);
        assert_eq!(zero_all(frames), [dirty]);
        let (_, contents) = frames.alloc_with_contents(ONE_BLOCK).unwrap();
        assert_eq!(contents, Contents::Filled(0));
    });
}

#[test]
fn a_walk_visits_each_pageblock_once_if_the_kernel_does_not_zero() {
    with_instance(|frames, _, _| {
        hotmem_testkit::keep_zero_marks(frames);
        let free = frames.counts().free_whole;
        assert_eq!(frames.unzeroed_pageblocks().count() as u64 * PAGEBLOCK, free);
        assert_eq!(frames.counts().free_whole, free);
        assert_eq!(frames.alloc_with_contents(ONE_BLOCK).unwrap().1, Contents::Undefined);
    });
}

#[test]
fn reported_memory_is_left_to_the_host() {
    with_instance(|frames, _, _| {
        hotmem_testkit::keep_zero_marks(frames);
        let mut reporter = eager_reporter(frames);
        while let Step::Ready(batch) = reporter.step(Duration::ZERO) {
            reporter.reported(batch.unwrap());
        }
        assert_eq!(zero_all(frames), []);
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn a_kernel_gets_no_memory_to_zero_while_no_marks_are_kept() {
    with_instance(|frames, _, _| {
        assert_eq!(zero_all(frames), []);
        hotmem_testkit::keep_zero_marks(frames);
        let mut pageblocks = frames.unzeroed_pageblocks();
        let first = pageblocks.next().unwrap().into_raw();
        // The kernel begins to fill free memory meanwhile.
        let poison = Contents::Filled(0xaaaa_aaaa);
        frames.set_contents(poison).unwrap();
        free_as_zero(frames, first);
        assert!(pageblocks.next().is_none());
        let here = ONE_BLOCK.within(first.start()..first.end());
        assert_eq!(frames.alloc_with_contents(here).unwrap().1, poison);
    });
}
