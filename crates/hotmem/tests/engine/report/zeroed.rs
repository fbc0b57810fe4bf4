//! Tests which memory is known to be zero after the host has taken it.

use super::*;
use hotmem::report::Step;

const ONE_BLOCK: AllocRequest = AllocRequest::frames(PAGEBLOCK);

/// Reports all free memory to a host that answers that it is zero.
fn report_as_zero(frames: &TestFrames<'_>) {
    let mut reporter = eager_reporter(frames);
    while let Step::Ready(batch) = reporter.step(Duration::ZERO) {
        reporter.reported_as(batch.unwrap(), |_| Contents::Filled(0));
    }
}

/// Allocates `request`, and returns whether the frames are known to be zero.
fn is_zero(frames: &TestFrames<'_>, request: AllocRequest) -> bool {
    let (_, contents) = frames.alloc_with_contents(request).unwrap();
    contents == Contents::Filled(0)
}

/// Returns the request, for frames of `bounds` only.
fn within(request: AllocRequest, bounds: PfnRange) -> AllocRequest {
    request.within(bounds.start()..bounds.end())
}

#[test]
fn a_reported_pageblock_is_zero_until_it_is_freed_again() {
    with_instance(|frames, _, _| {
        frames.keep_zero_marks();
        report_as_zero(frames);
        let (block, contents) = frames.alloc_with_contents(ONE_BLOCK).unwrap();
        assert_eq!(contents, Contents::Filled(0));
        let here = within(ONE_BLOCK, block.range());
        drop(block);
        assert!(!is_zero(frames, here));
    });
}

#[test]
fn a_run_of_pageblocks_is_zero_if_all_of_them_are() {
    with_instance(|frames, _, _| {
        frames.keep_zero_marks();
        report_as_zero(frames);
        let here = range(SECTION, 2 * PAGEBLOCK);
        let two = within(AllocRequest::frames(2 * PAGEBLOCK), here);
        let (block, contents) = frames.alloc_with_contents(two).unwrap();
        assert_eq!(contents, Contents::Filled(0));
        drop(block);
        report_as_zero(frames);
        drop(frames.alloc(within(ONE_BLOCK, here)).unwrap());
        assert!(!is_zero(frames, two), "one pageblock has been used");
    });
}

#[test]
fn no_memory_is_known_to_be_zero_unless_marks_are_kept() {
    with_instance(|frames, _, _| {
        report_as_zero(frames);
        assert!(!is_zero(frames, ONE_BLOCK));
    });
}

#[test]
fn memory_that_went_offline_and_came_back_is_not_known_to_be_zero() {
    with_instance(|frames, hotplug, _| {
        frames.keep_zero_marks();
        let block = range(SECTION, PAGEBLOCK);
        report_as_zero(frames);
        let mut offline = hotplug.offline(block).unwrap();
        let taken = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert!(matches!(taken, Progress::Ready(_)), "{taken:?}");
        hotplug.online(block, OnlineType::AsBefore, &mut NoHooks).unwrap();
        assert!(!is_zero(frames, within(ONE_BLOCK, block)));
    });
}
