//! Tests which memory is known to be zero after the host has taken it.

use super::*;
use hotmem::OneCpu;
use hotmem_testkit::{BITMAP_WORD_FRAMES, RawRanges as _, numbers};

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
        hotmem_testkit::keep_zero_marks(frames);
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
        hotmem_testkit::keep_zero_marks(frames);
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
fn whole_pageblocks_at_a_place_are_zero_if_all_of_them_are() {
    with_instance(|frames, _, _| {
        hotmem_testkit::keep_zero_marks(frames);
        report_as_zero(frames);
        let start = pfn(SECTION);
        // Makes the bitmaps. A later division that makes them would not know that its frames are zero.
        frames.alloc_range(AllocRequest::frames(1).at(pfn(SECTION + 3 * PAGEBLOCK))).unwrap();
        // A part of a pageblock, whole pageblocks, and both.
        for number in [1, PAGEBLOCK, 2 * PAGEBLOCK, PAGEBLOCK + 3] {
            let here = AllocRequest::frames(number).at(start);
            assert!(is_zero(frames, here), "{number} frames");
            assert!(!is_zero(frames, here), "{number} frames were used");
            report_as_zero(frames);
        }
        drop(frames.alloc(ONE_BLOCK.at(pfn(SECTION + PAGEBLOCK))).unwrap());
        assert!(!is_zero(frames, AllocRequest::frames(3 * PAGEBLOCK).at(start)));
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
        hotmem_testkit::keep_zero_marks(frames);
        let block = range(SECTION, PAGEBLOCK);
        report_as_zero(frames);
        let mut offline = hotplug.offline(block).unwrap();
        let taken = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert!(matches!(taken, Progress::Ready(_)), "{taken:?}");
        hotplug.online(block, OnlineType::AsBefore, &mut NoHooks).unwrap();
        assert!(!is_zero(frames, within(ONE_BLOCK, block)));
    });
}

#[test]
fn all_frames_of_reported_pageblocks_are_zero_once() {
    with_instance(|frames, _, _| {
        hotmem_testkit::keep_zero_marks(frames);
        let first = frames.alloc(AllocRequest::frames(1)).unwrap();
        report_as_zero(frames);
        let reported = frames.counts().reported;
        let mut held = Vec::new();
        let mut zero = 0;
        while let Ok((frame, contents)) = frames.alloc_with_contents(AllocRequest::frames(1)) {
            zero += u64::from(contents == Contents::Filled(0));
            held.push(frame);
        }
        // A division that makes bitmaps may write them to its pageblock, which is then not known to be
        // zero.
        assert!((reported - PAGEBLOCK..=reported).contains(&zero), "{zero} of {reported}");
        drop(held);
        let again = std::iter::from_fn(|| frames.alloc_with_contents(AllocRequest::frames(1)).ok());
        let again: Vec<_> = again.collect();
        assert!(again.iter().all(|(_, contents)| *contents == Contents::Undefined));
        drop(first);
    });
}

#[test]
fn a_free_makes_only_the_frames_of_its_word_unknown() {
    with_instance(|frames, _, _| {
        hotmem_testkit::keep_zero_marks(frames);
        let here = range(SECTION, PAGEBLOCK);
        // Makes the bitmaps. A later division that makes them would not know that its frames are zero.
        drop(frames.alloc(within(AllocRequest::frames(1), here)).unwrap());
        report_as_zero(frames);
        let first = frames.alloc(within(AllocRequest::frames(1), here)).unwrap();
        assert_eq!(first.range().start(), here.start());
        // Another frame keeps the pageblock divided.
        let _second = frames.alloc(within(AllocRequest::frames(1), here)).unwrap();
        drop(first);
        assert!(!is_zero(frames, within(AllocRequest::frames(1), here)));
        let rest = here.split_at(pfn(SECTION + BITMAP_WORD_FRAMES)).1;
        assert!(is_zero(frames, within(AllocRequest::frames(BITMAP_WORD_FRAMES), rest)));
    });
}

#[test]
fn a_search_that_finds_no_run_forgets_what_is_zero() {
    with_instance(|frames, _, _| {
        hotmem_testkit::keep_zero_marks(frames);
        drop(frames.alloc(AllocRequest::frames(1)).unwrap());
        report_as_zero(frames);
        let all: Vec<_> =
            std::iter::from_fn(|| frames.alloc(AllocRequest::frames(1)).ok()).collect();
        // Every second frame is free: no run. They are dirty.
        let (free, _held): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|frame| frame.range().start().number() % 2 == 0);
        drop(free);
        assert!(frames.alloc(AllocRequest::frames(2)).is_err());
        let ask = || frames.alloc_with_contents(AllocRequest::frames(1)).ok();
        let rest: Vec<_> = std::iter::from_fn(ask).collect();
        assert!(!rest.is_empty());
        assert!(rest.iter().all(|(_, contents)| *contents == Contents::Undefined));
    });
}

#[test]
fn pageblocks_that_are_freed_as_zero_are_zero() {
    with_instance(|frames, _, _| {
        hotmem_testkit::keep_zero_marks(frames);
        let run = AllocRequest::frames(2 * PAGEBLOCK);
        let (allocation, contents) = frames.alloc_with_contents(run).unwrap();
        assert_eq!(contents, Contents::Undefined);
        let range = allocation.into_raw();
        // SAFETY: the frames were allocated above; nobody reads their contents.
        unsafe { frames.free_zeroed_raw(range) }.unwrap();
        assert!(is_zero(frames, within(run, range)));
        // Frames of a divided pageblock are freed, and not known to be zero.
        let one = frames.alloc(within(AllocRequest::frames(1), range)).unwrap().into_raw();
        // SAFETY: as above.
        unsafe { frames.free_zeroed_raw(one) }.unwrap();
        assert!(!is_zero(frames, within(AllocRequest::frames(1), one)));
    });
}

#[test]
fn zeroed_frames_are_zero_whether_or_not_the_engine_has_to_write_zeroes() {
    let memory = Memory::new(BOOT_SECTIONS * SECTION);
    let frames = Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: Bytes(BOOT_SECTIONS * SECTION * FRAME_SIZE) }];
    let _hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &ram).unwrap();
    let dirty = frames.alloc(AllocRequest::frames(3)).unwrap();
    numbers(dirty.range()).for_each(|frame| memory.word(frame).store(1, Ordering::Relaxed));
    let here = within(AllocRequest::frames(3), dirty.range());
    drop(dirty);
    let zeroed = frames.alloc_zeroed(here).unwrap();
    assert!(numbers(zeroed.range()).flat_map(|frame| memory.words(frame)).all(|word| word == 0));
}

#[test]
fn memory_that_the_kernel_fills_later_is_not_known_to_be_zero() {
    with_instance(|frames, _, _| {
        hotmem_testkit::keep_zero_marks(frames);
        report_as_zero(frames);
        // A division marks the words of its pageblock; the others are free as wholes.
        let divided = frames.alloc(AllocRequest::frames(1)).unwrap();
        let around = divided.range().align_outward(PAGEBLOCK);
        let next_frame = within(AllocRequest::frames(1), around);
        let poison = Contents::Filled(0xaaaa_aaaa);
        frames.set_contents(poison).unwrap();
        assert_eq!(frames.alloc_with_contents(next_frame).unwrap().1, poison);
        assert_eq!(frames.alloc_with_contents(ONE_BLOCK).unwrap().1, poison);
        // Nor does it become zero when the kernel stops filling.
        frames.set_contents(Contents::Undefined).unwrap();
        assert!(!is_zero(frames, next_frame));
        assert!(!is_zero(frames, AllocRequest::frames(3 * PAGEBLOCK)));
    });
}

#[test]
fn each_pageblock_of_a_report_is_asked_for_while_no_marks_are_kept() {
    with_instance(|frames, _, _| {
        let mut reporter = eager_reporter(frames);
        let mut number = 0;
        while let Step::Ready(batch) = reporter.step(Duration::ZERO) {
            // A driver counts the pageblocks, because a device says how many it has initialised.
            reporter.reported_as(batch.unwrap(), |_| {
                number += 1;
                Contents::Undefined
            });
        }
        assert_ne!(number, 0);
        assert_eq!(number, reporter.statistics().reported);
    });
}
