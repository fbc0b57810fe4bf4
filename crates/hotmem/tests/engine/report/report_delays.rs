//! Tests the settings that keep free memory unreported or delay its reports: `min_free_time`,
//! `min_unreported`, `keep_free`, `max_reporting` and `max_per_second`.

use super::*;
use hotmem_testkit::RawRanges as _;

#[test]
fn memory_is_reported_only_after_min_free_time() {
    with_instance(|frames, _, wakeups| {
        let settings =
            ReporterSettings { wake_delay: ms(10), min_free_time: ms(100), ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        assert!(matches!(reporter.step(ms(0)), Step::Pending(at) if at == ms(10)));
        assert!(matches!(report_until_idle(&mut reporter, ms(10)), (none, Step::Pending(at))
            if none.is_empty() && at == ms(110)));
        // The `min_free_time` of a pageblock begins again after a short use.
        let used = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
        frames.free_range(used).unwrap();
        let free_blocks = frames.counts().free_whole / PAGEBLOCK;
        let (reported, step) = report_until_idle(&mut reporter, ms(110));
        assert!(matches!(step, Step::Pending(at) if at == ms(210)), "{step:?}");
        assert_eq!(count_pageblocks(&reported), free_blocks - 1);
        assert!(reported.iter().all(|range| !range.overlaps(used)));
        let (reported, step) = report_until_idle(&mut reporter, ms(210));
        assert_eq!(reported, [used]);
        assert!(matches!(step, Step::Idle));
        assert_eq!(wakeups.0.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn memory_in_constant_use_is_never_reported() {
    with_instance(|frames, _, _| {
        let settings = ReporterSettings { min_free_time: ms(100), ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let mut now = 0;
        while !matches!(report_until_idle(&mut reporter, ms(now)), (_, Step::Idle)) {
            now += 100;
        }
        for round in 0..50 {
            let used = frames.alloc_range(AllocRequest::frames(4 * PAGEBLOCK)).unwrap();
            report_until_idle(&mut reporter, ms(now + round * 30));
            frames.free_range(used).unwrap();
            report_until_idle(&mut reporter, ms(now + round * 30));
        }
        // Only the first allocation took reported pageblocks.
        assert_eq!(reporter.statistics().refaulted, 4);
    });
}

#[test]
fn less_memory_than_min_unreported_is_not_reported() {
    with_instance(|frames, _, wakeups| {
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        reporter.settings =
            ReporterSettings { min_unreported: size_of_blocks(3), ..immediate_settings() };
        let used = frames.alloc_range(AllocRequest::frames(3 * PAGEBLOCK)).unwrap();
        for (i, block) in used.chunks(PAGEBLOCK).enumerate() {
            frames.free_range(block).unwrap();
            let (reported, step) = report_until_idle(&mut reporter, ms(0));
            assert!(matches!(step, Step::Idle), "{step:?}");
            assert_eq!(count_pageblocks(&reported), if i == 2 { 3 } else { 0 });
        }
        // Each free has woken the reporter.
        assert_eq!(wakeups.0.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn the_next_step_applies_a_lower_min_unreported_without_a_wakeup() {
    with_instance(|frames, _, wakeups| {
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        reporter.settings.min_unreported = size_of_blocks(2);
        let used = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
        report_until_idle(&mut reporter, ms(0));
        frames.free_range(used).unwrap();
        assert_eq!(count_pageblocks(&report_until_idle(&mut reporter, ms(0)).0), 0);
        let wakeups_before = wakeups.0.load(Ordering::Relaxed);
        reporter.settings.min_unreported = size_of_blocks(1);
        assert_eq!(count_pageblocks(&report_until_idle(&mut reporter, ms(0)).0), 1);
        assert_eq!(wakeups.0.load(Ordering::Relaxed), wakeups_before);
    });
}

#[test]
fn memory_to_keep_free_stays_unreported() {
    with_instance(|frames, _, _| {
        let settings = ReporterSettings { keep_free: size_of_blocks(2), ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let mut sent = Vec::new();
        let mut step = reporter.step(ms(0));
        while let Step::Ready(Ok(batch)) = step {
            sent.push(batch);
            assert!(frames.counts().free_whole >= 2 * PAGEBLOCK);
            step = reporter.step(ms(0));
        }
        assert_eq!(frames.counts().free_whole, 2 * PAGEBLOCK);
        sent.into_iter().for_each(|batch| reporter.reported(batch));
        assert!(
            matches!(report_until_idle(&mut reporter, ms(0)), (none, Step::Idle) if none.is_empty())
        );
        let counts = frames.counts();
        assert_eq!(counts.reported, counts.free_whole - 2 * PAGEBLOCK);
        // The next allocations, of a pageblock or of a frame, take the memory that was kept free.
        // It is kept free again after it is freed.
        let used = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
        let one = frames.alloc_range(AllocRequest::frames(1)).unwrap();
        assert_eq!(reporter.statistics().refaulted, 0);
        frames.free_range(used).unwrap();
        frames.free_range(one).unwrap();
        report_until_idle(&mut reporter, ms(0));
        assert_eq!(frames.counts(), counts);
    });
}

#[test]
fn each_node_keeps_memory_free() {
    with_instance_on_node(NodeId(1), |frames, hotplug, _| {
        let plugged = range(BOOT_SECTIONS * SECTION, (ALL_SECTIONS - BOOT_SECTIONS) * SECTION);
        hotplug.add(plugged).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
        let settings = ReporterSettings { keep_free: size_of_blocks(3), ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let (_, step) = report_until_idle(&mut reporter, ms(0));
        assert!(matches!(step, Step::Idle), "{step:?}");
        for node in [range(0, BOOT_SECTIONS * SECTION), plugged] {
            let counts = frames.counts_in(node);
            assert_eq!(counts.free_whole - counts.reported, 3 * PAGEBLOCK, "{node}");
        }
        // Each node keeps as much free again after its memory was used.
        let used: Vec<_> = (0..3)
            .map(|_| {
                frames.alloc_range(
                    AllocRequest::frames(PAGEBLOCK).movable().node(NodeChoice::Near(NodeId(1))),
                )
            })
            .collect::<Result<_, _>>()
            .unwrap();
        assert!(used.iter().all(|&range| plugged.covers(range)));
        assert_eq!(reporter.statistics().refaulted, 0);
        used.into_iter().for_each(|range| frames.free_range(range).unwrap());
        report_until_idle(&mut reporter, ms(0));
        let counts = frames.counts_in(plugged);
        assert_eq!(counts.free_whole - counts.reported, 3 * PAGEBLOCK);
    });
}

#[test]
fn unreported_memory_is_used_before_reported_memory() {
    with_instance(|frames, _, _| {
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        // The order of places moves the CPU's hint between sections.
        for place in [SECTION + 2 * PAGEBLOCK, 3 * PAGEBLOCK, SECTION, PAGEBLOCK] {
            let hinted_block =
                frames.alloc_range(AllocRequest::frames(PAGEBLOCK).at(pfn(place))).unwrap();
            let refaulted = reporter.statistics().refaulted;
            frames.free_range(hinted_block).unwrap();
            assert_eq!(frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap(), hinted_block);
            assert_eq!(reporter.statistics().refaulted, refaulted);
            let next = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
            assert_eq!(reporter.statistics().refaulted, refaulted + 1);
            frames.free_range(next).unwrap();
            report_until_idle(&mut reporter, ms(0));
            frames.free_range(hinted_block).unwrap();
            // An allocation that must divide a pageblock prefers unreported memory, too.
            let counts = frames.counts();
            let frames_in_divided_blocks = counts.free - counts.free_whole;
            let mut ones: Vec<_> = (0..=frames_in_divided_blocks)
                .map(|_| frames.alloc_range(AllocRequest::frames(1)).unwrap())
                .collect();
            assert!(hinted_block.covers(ones.pop().unwrap()));
            assert_eq!(reporter.statistics().refaulted, refaulted + 1);
            let one = range(hinted_block.start().number(), 1);
            ones.into_iter().chain([one]).for_each(|range| frames.free_range(range).unwrap());
            report_until_idle(&mut reporter, ms(0));
        }
    });
}

#[test]
fn unreported_memory_beyond_a_bound_hides_nothing_below_it() {
    with_instance(|frames, hotplug, _| {
        // Add a section. None of its frames holds metadata, so all its pageblocks are free.
        let section = range(BOOT_SECTIONS * SECTION, SECTION);
        hotplug.add(section).unwrap();
        hotplug.online(section, OnlineType::Kernel, &mut NoHooks).unwrap();
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        let request_above =
            AllocRequest::frames(2 * PAGEBLOCK).at(pfn(section.start().number() + 2 * PAGEBLOCK));
        let hinted_block = frames.alloc_range(request_above).unwrap();
        frames.free_range(hinted_block).unwrap();
        let below = AllocRequest::frames(2 * PAGEBLOCK).within(..hinted_block.start());
        let allocated: Vec<_> = core::iter::from_fn(|| frames.alloc_range(below).ok()).collect();
        assert!(allocated.contains(&range(section.start().number(), 2 * PAGEBLOCK)));
        allocated.into_iter().for_each(|range| frames.free_range(range).unwrap());
    });
}

#[test]
fn new_settings_during_a_round_apply_to_memory_that_was_kept_free() {
    with_instance(|frames, hotplug, _| {
        let far = range(ALL_SECTIONS * SECTION, BOOT_SECTIONS * SECTION);
        hotplug.announce(Announce { node: NodeId(1), ..far.into() }).unwrap();
        hotplug.add(far).unwrap();
        hotplug.online(far, OnlineType::Movable, &mut NoHooks).unwrap();
        // Keep free all pageblocks of the far node except one. The near node has no more free
        // pageblocks than that, so all of them are kept free.
        let keep_free = size_of_blocks(far.frames() / PAGEBLOCK - 1);
        let settings = ReporterSettings { keep_free, ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let batch = send(&mut reporter, ms(0));
        assert!(far.covers(batch[0]) && count_pageblocks(&batch) == 1);
        reporter.settings = immediate_settings();
        reporter.reported(batch);
        report_until_idle(&mut reporter, ms(1));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn no_more_memory_is_reporting_than_the_settings_allow() {
    with_instance(|frames, _, _| {
        let settings =
            ReporterSettings { max_reporting: size_of_blocks(2), ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let batch = send(&mut reporter, ms(0));
        assert_eq!(count_pageblocks(&batch), 2);
        assert!(matches!(reporter.step(ms(0)), Step::Pending(at) if at == settings.answer_timeout));
        reporter.reported(batch);
        report_until_idle(&mut reporter, ms(0));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn reports_do_not_exceed_the_rate() {
    with_instance(|frames, _, _| {
        let settings =
            ReporterSettings { max_per_second: Some(size_of_blocks(2)), ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let (reported, step) = report_until_idle(&mut reporter, ms(0));
        assert_eq!(count_pageblocks(&reported), 2);
        assert!(matches!(step, Step::Pending(at) if at == ms(1000)), "{step:?}");
        assert_eq!(count_pageblocks(&report_until_idle(&mut reporter, ms(999)).0), 0);
        assert_eq!(count_pageblocks(&report_until_idle(&mut reporter, ms(1000)).0), 2);
    });
}

#[test]
fn a_new_rate_holds_for_the_pause_after_the_last_batch() {
    with_instance(|frames, _, _| {
        let with_rate = |rate| ReporterSettings { max_per_second: rate, ..immediate_settings() };
        let mut reporter =
            Reporter::new(frames, with_rate(Some(Bytes(1))), Contents::Undefined).unwrap();
        let (reported, step) = report_until_idle(&mut reporter, ms(0));
        assert_eq!(count_pageblocks(&reported), 1);
        // A byte in a second: the pageblock's time is over after 18 hours, or more if it is larger.
        assert!(matches!(step, Step::Pending(at) if at > ms(60_000_000)), "{step:?}");
        reporter.settings = with_rate(Some(size_of_blocks(2)));
        let (reported, step) = report_until_idle(&mut reporter, ms(499));
        assert!(reported.is_empty());
        assert!(matches!(step, Step::Pending(at) if at == ms(500)), "{step:?}");
        reporter.settings = with_rate(None);
        let (reported, step) = report_until_idle(&mut reporter, ms(499));
        assert_eq!(count_pageblocks(&reported), frames.counts().free_whole / PAGEBLOCK - 1);
        assert!(matches!(step, Step::Idle), "{step:?}");
    });
}

#[test]
fn a_shorter_delay_applies_to_a_wait_that_has_begun() {
    with_instance(|frames, _, _| {
        let hour = Duration::from_secs(3600);
        let settings = ReporterSettings { wake_delay: hour, ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        assert!(matches!(reporter.step(ms(0)), Step::Pending(at) if at == hour));
        reporter.settings = ReporterSettings { min_free_time: hour, ..immediate_settings() };
        let (reported, step) = report_until_idle(&mut reporter, ms(1));
        assert!(reported.is_empty());
        assert!(matches!(step, Step::Pending(at) if at == hour + ms(1)), "{step:?}");
        reporter.settings.min_free_time = ms(5);
        let (_, step) = report_until_idle(&mut reporter, ms(2));
        assert!(matches!(step, Step::Pending(at) if at == ms(6)), "{step:?}");
        report_until_idle(&mut reporter, ms(6));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn a_shorter_pause_applies_after_a_refusal() {
    with_instance(|frames, _, _| {
        let hour = Duration::from_secs(3600);
        let settings = ReporterSettings { retry_pause: hour, ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let batch = send(&mut reporter, ms(0));
        reporter.failed(batch, ms(0));
        assert!(matches!(reporter.step(ms(1)), Step::Pending(at) if at == hour));
        reporter.settings.retry_pause = ms(10);
        assert!(matches!(reporter.step(ms(1)), Step::Pending(at) if at == ms(10)));
        report_until_idle(&mut reporter, ms(10));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}
