//! Tests that pinned memory is never reported to the host.

use super::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;

/// Pins `range` with a callback that touches no frame.
fn pin(hotplug: &mut Hotplug<'_, &WakeupCount>, range: PfnRange) -> Result<(), RangeError> {
    hotplug.pin(range, |_| {})
}

fn assert_refused(hotplug: &mut Hotplug<'_, &WakeupCount>, target: PfnRange, reason: RangeError) {
    let refused =
        hotplug.pin(target, |frames| panic!("pin named {frames}, although it was refused"));
    assert_eq!(refused, Err(reason));
    assert!(!hotplug.unpin(target), "{target} was pinned, although pin was refused");
}

#[test]
fn pinned_memory_is_never_reported() {
    with_instance(|frames, hotplug, wakeups| {
        let mut reporter = eager_reporter(frames);
        let pinned = range(PAGEBLOCK + 1, 1);
        let batch = send(&mut reporter, ms(0));
        let reporting_range = batch[0];
        let first = range(reporting_range.start().number(), PAGEBLOCK);
        assert_refused(
            hotplug,
            reporting_range,
            RangeError { range: first, kind: RangeErrorKind::Reporting },
        );
        reporter.failed(batch, ms(0));
        pin(hotplug, pinned).unwrap();
        let (reported, step) = report_until_idle(&mut reporter, ms(100_000));
        assert!(matches!(step, Step::Idle));
        let pinned_block = pinned.align_outward(PAGEBLOCK);
        assert!(reported.iter().all(|range| !range.overlaps(pinned_block)));
        assert_eq!(frames.counts_in(pinned_block).reported, 0);
        assert!(!hotplug.unpin(range(pfn(5 * PAGEBLOCK).number(), 1)));
        let wakeups_before = wakeups.0.load(Ordering::Relaxed);
        assert!(hotplug.unpin(pinned));
        assert_eq!(
            wakeups.0.load(Ordering::Relaxed),
            wakeups_before + 1,
            "unpin wakes the reporter once"
        );
        let (reported, _) = report_until_idle(&mut reporter, ms(200_000));
        assert!(reported.contains(&pinned_block) || frames.counts_in(pinned_block).free_whole == 0);
    });
}

#[test]
fn memory_that_is_unpinned_during_a_round_is_reported() {
    with_instance(|frames, hotplug, _| {
        let settings = ReporterSettings {
            max_batch_ranges: 1,
            max_range_size: size_of_blocks(1),
            ..immediate_settings()
        };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let pinned = range((BOOT_SECTIONS - 1) * SECTION, SECTION);
        pin(hotplug, pinned).unwrap();
        // A round goes from the top down, so it has passed the pinned memory.
        let batch = send(&mut reporter, ms(0));
        assert!(batch[0].end() <= pinned.start());
        assert!(hotplug.unpin(pinned));
        reporter.reported(batch);
        report_until_idle(&mut reporter, ms(0));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn pins_need_no_reporter_and_outlive_it() {
    with_instance(|frames, hotplug, _| {
        let pinned = range((BOOT_SECTIONS - 1) * SECTION, SECTION);
        pin(hotplug, pinned).unwrap();
        for _ in 0..2 {
            let mut reporter = eager_reporter(frames);
            let (reported, _) = report_until_idle(&mut reporter, ms(0));
            assert!(reported.iter().all(|range| !range.overlaps(pinned)), "{reported:?}");
            drop(reporter);
        }
        assert_eq!(frames.counts_in(pinned).reported, 0);
    });
}

#[test]
fn pin_names_all_frames_for_a_touch_and_none_is_reported_afterwards() {
    with_instance(|frames, hotplug, _| {
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        // Pin memory that is free and reported, memory in use, and memory partly in use: the host
        // may have taken the RAM of any of them.
        let allocated = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
        let one = frames.alloc_range(AllocRequest::frames(1)).unwrap();
        let all = range(0, BOOT_SECTIONS * SECTION);
        let refaulted = reporter.statistics().refaulted;
        let mut touched = Vec::new();
        hotplug.pin(all, |frames| touched.push(frames)).unwrap();
        assert!(touched.iter().map(|range| range.frames()).sum::<u64>() == all.frames());
        assert!(touched.iter().all(|range| range.frames() <= PAGEBLOCK));
        let counts = frames.validated().unwrap();
        assert_eq!(counts.reported, 0);
        assert_eq!(reporter.statistics().refaulted, refaulted, "a pin does not count as a refault");
        for range in [allocated, one] {
            frames.free_range(range).unwrap();
        }
        assert_eq!(count_pageblocks(&report_until_idle(&mut reporter, ms(0)).0), 0);
        assert!(hotplug.unpin(all));
        report_until_idle(&mut reporter, ms(0));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn pin_names_only_the_online_part_of_its_range() {
    with_instance(|_, hotplug, _| {
        let across = range(BOOT_SECTIONS * SECTION - 3, 7);
        let mut touched = Vec::new();
        hotplug.pin(across, |frames| touched.push(frames)).unwrap();
        assert_eq!(
            touched,
            [range(BOOT_SECTIONS * SECTION - 3, 3)],
            "only the part in boot memory is online"
        );
        let empty = range(0, 0);
        let error = RangeError { range: empty, kind: RangeErrorKind::Empty };
        assert_refused(hotplug, empty, error);
    });
}

#[test]
fn absent_memory_can_be_pinned_before_it_is_added() {
    with_instance(|frames, hotplug, _| {
        let plugged = range(BOOT_SECTIONS * SECTION, (ALL_SECTIONS - BOOT_SECTIONS) * SECTION);
        pin(hotplug, plugged).unwrap();
        hotplug.add(plugged).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
        let (reported, _) = report_until_idle(&mut eager_reporter(frames), ms(0));
        assert!(reported.iter().all(|range| !range.overlaps(plugged)));
    });
}

#[test]
fn isolated_memory_is_not_pinned_and_pinned_memory_is_not_marked() {
    with_instance(|frames, hotplug, _| {
        let free = range((BOOT_SECTIONS - 1) * SECTION, PAGEBLOCK);
        let token = frames.isolate(free).unwrap();
        assert_refused(hotplug, free, RangeError { range: free, kind: RangeErrorKind::Isolated });
        token.release();
        let allocated = frames.alloc_range(AllocRequest::frames(1)).unwrap();
        let block = allocated.align_outward(PAGEBLOCK);
        let token = frames.isolate(block).unwrap();
        assert_refused(
            hotplug,
            allocated,
            RangeError { range: block, kind: RangeErrorKind::Isolated },
        );
        token.release();
        pin(hotplug, range(free.start().number() + 1, 1)).unwrap();
        let before = frames.counts();
        let (token, reason) = frames.isolate(free).unwrap().mark_reported().unwrap_err();
        assert_eq!(reason, Blocker { range: free, kind: BlockerKind::Pinned });
        token.release();
        assert_eq!(frames.validated().unwrap(), before);
    });
}

#[test]
fn a_range_does_not_include_pinned_or_reported_pageblocks() {
    with_instance(|frames, hotplug, _| {
        let settings = ReporterSettings {
            max_batch_ranges: 1,
            max_range_size: size_of_blocks(1),
            ..immediate_settings()
        };
        let mut reporter = Reporter::new(frames, settings, Contents::Filled(0)).unwrap();
        let [first] = send(&mut reporter, ms(0))[..] else { panic!("one range") };
        let below = |n: u64| range(first.start().number() - n * PAGEBLOCK, PAGEBLOCK);
        pin(hotplug, below(1)).unwrap();
        frames.isolate(below(2)).unwrap().mark_reported().unwrap();
        assert_eq!(send(&mut reporter, ms(0))[..], [below(3)]);
    });
}

#[test]
fn reporting_memory_cannot_be_pinned_across_regions() {
    with_instance(|frames, hotplug, _| {
        // One region ends within a section, where the next region begins.
        let ends = range((ALL_SECTIONS + 1) * SECTION, SECTION / 2);
        let begins = range(ends.end().number(), SECTION / 2);
        let both = range(ends.end().number() - PAGEBLOCK, 2 * PAGEBLOCK);
        for region in [ends, begins] {
            hotplug.announce(region).unwrap();
            hotplug.add(region).unwrap();
            hotplug.online(region, OnlineType::Movable, &mut NoHooks).unwrap();
        }
        let mut reporter = eager_reporter(frames);
        let batch = send(&mut reporter, ms(0));
        assert!(batch.iter().any(|reporting_range| reporting_range.overlaps(both)));
        let RangeError { range: reporting_range, kind: RangeErrorKind::Reporting } =
            pin(hotplug, both).unwrap_err()
        else {
            panic!("the pin was refused for another reason than a report")
        };
        assert!(both.covers(reporting_range) && reporting_range.frames() == PAGEBLOCK);
        reporter.reported(batch);
        pin(hotplug, both).unwrap();
        assert_eq!(frames.counts_in(both).reported, 0);
    });
}

#[test]
fn at_most_max_pins_can_exist() {
    with_instance(|_, hotplug, _| {
        for _ in 0..MAX_PINS {
            pin(hotplug, range(0, 1)).unwrap();
        }
        let error = RangeError { range: range(0, 1), kind: RangeErrorKind::TooMany(MAX_PINS) };
        assert_eq!(pin(hotplug, range(0, 1)), Err(error));
        (0..MAX_PINS).for_each(|_| assert!(hotplug.unpin(range(0, 1))));
        assert!(!hotplug.unpin(range(0, 1)));
    });
}
