//! Tests which memory is reported.

use super::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;

#[test]
fn everything_free_is_reported_once() {
    with_instance(|frames, _, wakeups| {
        let mut reporter = eager_reporter(frames);
        let free_whole = frames.counts().free_whole;
        let (reported, step) = report_until_idle(&mut reporter, ms(0));
        assert!(matches!(step, Step::Idle), "{step:?}");
        assert_eq!(count_pageblocks(&reported) * PAGEBLOCK, free_whole);
        let counts = frames.validated().unwrap();
        assert_eq!((counts.reported, counts.free_whole), (free_whole, free_whole));
        // The reporter is idle, and stays idle.
        assert!(matches!(reporter.step(ms(100_000)), Step::Idle));
        assert_eq!(wakeups.0.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn memory_that_is_used_and_freed_wakes_the_reporter_once_and_is_reported_again() {
    with_instance(|frames, _, wakeups| {
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        let used = frames.alloc_range(AllocRequest::frames(2 * PAGEBLOCK)).unwrap();
        assert_eq!(
            wakeups.0.load(Ordering::Relaxed),
            0,
            "an allocation does not wake the reporter"
        );
        for block in used.chunks(PAGEBLOCK) {
            frames.free_range(block).unwrap();
        }
        assert_eq!(wakeups.0.load(Ordering::Relaxed), 1, "two frees wake an idle reporter once");
        let (reported, step) = report_until_idle(&mut reporter, ms(0));
        assert!(matches!(step, Step::Idle));
        assert_eq!(count_pageblocks(&reported), 2);
        let statistics = reporter.statistics();
        assert_eq!(statistics.refaulted, 2);
        assert_eq!(statistics.reported * PAGEBLOCK, frames.counts().reported + 2 * PAGEBLOCK);
    });
}

#[test]
fn a_pageblock_that_is_divided_or_used_is_not_reported() {
    with_instance(|frames, _, _| {
        let one = frames.alloc_range(AllocRequest::frames(1)).unwrap();
        let whole_block = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
        let mut reporter = eager_reporter(frames);
        let (reported, _) = report_until_idle(&mut reporter, ms(0));
        for range in reported {
            assert!(!range.overlaps(one.align_outward(PAGEBLOCK)) && !range.overlaps(whole_block));
        }
        frames.free_range(one).unwrap();
        frames.free_range(whole_block).unwrap();
    });
}

#[test]
fn a_divided_pageblock_is_reported_when_all_its_frames_are_free() {
    with_instance(|frames, _, _| {
        let one = frames.alloc_range(AllocRequest::frames(1)).unwrap();
        frames.free_range(one).unwrap();
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
        assert_eq!(frames.counts().free_whole, frames.counts().free / PAGEBLOCK * PAGEBLOCK);
    });
}

#[test]
fn batches_and_ranges_have_the_sizes_of_the_settings() {
    with_instance(|frames, _, _| {
        for (batch, max_blocks) in [(1, 1), (2, 3), (16, 2), (32, SECTION / PAGEBLOCK)] {
            let settings = ReporterSettings {
                max_batch_ranges: batch,
                max_range_size: size_of_blocks(max_blocks),
                ..immediate_settings()
            };
            let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
            // Allocate and free all memory, so that none of it counts as reported.
            let allocated: Vec<_> =
                core::iter::from_fn(|| frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).ok())
                    .collect();
            allocated.iter().for_each(|&range| frames.free_range(range).unwrap());
            let mut total = 0;
            let mut largest = 0;
            loop {
                match reporter.step(ms(0)) {
                    Step::Ready(Ok(sent)) => {
                        assert!((1..=batch).contains(&sent.len()));
                        let sections = |r: &PfnRange| r.align_outward(SECTION).frames() / SECTION;
                        assert!(sent.iter().all(|range| sections(range) == 1));
                        largest = largest.max(sent.iter().map(|r| r.frames()).max().unwrap());
                        total += count_pageblocks(&sent) * PAGEBLOCK;
                        reporter.reported(sent);
                    }
                    Step::Working => {}
                    Step::Idle => break,
                    step => panic!("{step:?}"),
                }
            }
            assert_eq!(total, frames.counts().free_whole);
            assert!(largest <= max_blocks * PAGEBLOCK);
            if max_blocks < SECTION / PAGEBLOCK {
                assert_eq!(largest, max_blocks * PAGEBLOCK);
            }
        }
    });
}

#[test]
fn memory_that_is_with_the_host_cannot_be_allocated() {
    with_instance(|frames, hotplug, _| {
        let mut reporter = eager_reporter(frames);
        let before = frames.counts();
        let mut sent = Vec::new();
        while let Step::Ready(Ok(batch)) = reporter.step(ms(0)) {
            sent.push(batch);
        }
        let counts = frames.validated().unwrap();
        assert_eq!(counts.reporting, before.free_whole);
        assert_eq!(counts.free_whole, 0);
        assert!(frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).is_err());
        let first = sent[0][0];
        let first = range(first.start().number(), PAGEBLOCK);
        assert_eq!(
            frames.isolate(first).unwrap_err(),
            RangeError { range: first, kind: RangeErrorKind::Reporting }
        );

        // A request to go offline waits for the answer to the batch, and then continues.
        let all = range(SECTION, SECTION / 2);
        let mut offline = hotplug.offline(all).unwrap();
        match offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
            Progress::Pending(Blocker { kind: BlockerKind::Reporting, .. }) => {}
            other => panic!("{other:?}"),
        }
        sent.into_iter().for_each(|batch| reporter.reported(batch));
        match offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
            Progress::Ready(removed) => assert_eq!(removed, all),
            other => panic!("{other:?}"),
        }
        // Memory that comes online again does not count as reported, so it is reported again.
        hotplug.online(all, OnlineType::Kernel, &mut NoHooks).unwrap();
        let (reported, _) = report_until_idle(&mut reporter, ms(0));
        assert_eq!(count_pageblocks(&reported), SECTION / PAGEBLOCK / 2);
    });
}

#[test]
fn memory_that_is_added_later_is_reported() {
    with_instance(|frames, hotplug, wakeups| {
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        let added = range(BOOT_SECTIONS * SECTION, (ALL_SECTIONS - BOOT_SECTIONS) * SECTION);
        hotplug.add(added).unwrap();
        hotplug.online(added, OnlineType::Movable, &mut NoHooks).unwrap();
        assert_eq!(wakeups.0.load(Ordering::Relaxed), 1);
        let (reported, _) = report_until_idle(&mut reporter, ms(0));
        assert_eq!(count_pageblocks(&reported), added.frames() / PAGEBLOCK);
        assert!(reported.iter().all(|&range| added.covers(range)));
        // The memory can be removed.
        let mut offline = hotplug.offline(added).unwrap();
        let removed = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(removed, Progress::Ready(added));
        hotplug.remove(added).unwrap();
        assert!(
            matches!(report_until_idle(&mut reporter, ms(0)), (none, Step::Idle) if none.is_empty())
        );
    });
}

#[test]
fn memory_that_is_not_allocated_again_does_not_count_as_refaulted() {
    with_instance(|frames, hotplug, _| {
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        let refaulted = |reporter: &Reporter<'_, _>| reporter.statistics().refaulted;
        // Isolated memory that was released is reported again, but does not count as refaulted.
        let whole_block = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
        frames.free_range(whole_block).unwrap();
        report_until_idle(&mut reporter, ms(0));
        assert_eq!(refaulted(&reporter), 1);
        frames.isolate(whole_block).unwrap().release();
        assert_eq!(refaulted(&reporter), 1);
        report_until_idle(&mut reporter, ms(0));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
        assert_eq!(refaulted(&reporter), 1);
        // Memory that a token has marked as reported does not count as refaulted either.
        frames.isolate(whole_block).unwrap().mark_reported().unwrap();
        assert_eq!(refaulted(&reporter), 1);
        // Unplugged memory does not count as refaulted.
        let added = range(BOOT_SECTIONS * SECTION, SECTION);
        hotplug.add(added).unwrap();
        hotplug.online(added, OnlineType::Movable, &mut NoHooks).unwrap();
        report_until_idle(&mut reporter, ms(0));
        let before = refaulted(&reporter);
        assert_eq!(frames.counts_in(added).reported, frames.counts_in(added).free_whole);
        let mut offline = hotplug.offline(added).unwrap();
        let removed = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(removed, Progress::Ready(added));
        hotplug.remove(added).unwrap();
        assert_eq!(refaulted(&reporter), before);
        // If an earlier reporter has reported a pageblock, using the pageblock counts as a refault.
        drop(reporter);
        let reporter = eager_reporter(frames);
        assert_eq!(refaulted(&reporter), 0);
        let _used = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
        assert_eq!(refaulted(&reporter), 1);
    });
}

struct Vetoes;

impl hotmem::Hooks for Vetoes {
    fn going_offline(&mut self, _: PfnRange) -> Result<(), hotmem::Veto> {
        Err(hotmem::Veto("not now"))
    }
}

#[test]
fn memory_that_stays_online_after_all_is_not_reported_again() {
    with_instance(|frames, hotplug, _| {
        let plugged = range(BOOT_SECTIONS * SECTION, SECTION);
        hotplug.add(plugged).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        let reported = frames.counts().reported;
        // A veto.
        let mut shrink = hotmem::Shrink::new(plugged);
        let progress = shrink.poll(hotplug, &mut Vetoes, Budget::UNLIMITED);
        assert!(matches!(progress, Progress::Pending(_)), "{progress:?}");
        assert_eq!(frames.counts().reported, reported);
        // A frame in use that does not move, and a request that is cancelled.
        let at = plugged.start();
        let used = frames.alloc(AllocRequest::frames(1).movable().at(at)).unwrap();
        let expected = reported - PAGEBLOCK;
        assert_eq!(frames.counts().reported, expected);
        let mut offline = hotplug.offline(plugged).unwrap();
        let progress = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert!(matches!(progress, Progress::Pending(_)), "{progress:?}");
        offline.cancel(hotplug, &mut NoHooks);
        assert_eq!(frames.counts().reported, expected);
        let (again, _) = report_until_idle(&mut reporter, ms(1));
        assert_eq!(count_pageblocks(&again), 0);
        assert_eq!(reporter.statistics().refaulted, 1);
        // Memory that goes offline is not reported when it comes online again.
        drop(used);
        report_until_idle(&mut reporter, ms(2));
        let mut offline = hotplug.offline(plugged).unwrap();
        let progress = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(progress, Progress::Ready(plugged));
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
        assert_eq!(frames.counts().reported, reported - SECTION);
        assert_eq!(reporter.statistics().refaulted, 1);
    });
}
