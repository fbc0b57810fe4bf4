//! Tests that enough memory can be allocated while a host is slow or never answers.

use super::*;
use hotmem::{AllocError, report::Unanswered};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;

/// So many sections that the part of their pageblocks that may be reporting at one time, an eighth,
/// is at least one pageblock.
const SECTIONS: u64 = 128 * PAGEBLOCK / SECTION;

/// Runs `test` on an instance with `sections` sections of boot memory and `movable` sections of
/// movable memory.
fn with_memory(
    sections: u64,
    movable: u64,
    test: impl FnOnce(&TestFrames<'_>, &mut Hotplug<'_, &WakeupCount>),
) {
    let wakeups = WakeupCount::default();
    let memory = Memory::new((sections + movable) * SECTION);
    let frames = Frames::new(&wakeups);
    let ram = [BootRange { start: 0, len: Bytes(sections * SECTION * FRAME_SIZE) }];
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &ram).unwrap();
    if movable > 0 {
        let plugged = range(sections * SECTION, movable * SECTION);
        hotplug.announce(plugged).unwrap();
        hotplug.add(plugged).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
    }
    test(&frames, &mut hotplug);
    frames.validated().unwrap();
}

/// Returns settings that report much memory.
fn settings() -> [ReporterSettings; 4] {
    let keep_none_free = ReporterSettings { keep_free: Bytes::ZERO, ..ReporterSettings::default() };
    let everything = ReporterSettings {
        max_reporting: Bytes::gib(1024),
        max_batch_ranges: 64,
        ..ReporterSettings::EAGER
    };
    [ReporterSettings::default(), keep_none_free, ReporterSettings::EAGER, everything]
}

/// Steps until the reporter sends no more batches to a host that never answers. Returns the
/// batches.
fn send_all(reporter: &mut Reporter<'_, &WakeupCount>) -> Vec<Batch> {
    let mut sent = Vec::new();
    let mut now = ms(0);
    loop {
        match reporter.step(now) {
            Step::Ready(Ok(batch)) => sent.push(batch),
            Step::Working => {}
            Step::Pending(at) if at < ms(5000) => now = at,
            _ => return sent,
        }
    }
}

/// Allocates by `request`, for `len` frames, until that fails. Returns the ranges and the error.
fn exhaust(
    frames: &TestFrames<'_>,
    request: AllocRequest,
    len: u64,
) -> (Vec<PfnRange>, AllocError) {
    let mut allocated = Vec::new();
    loop {
        match frames.alloc_range(request) {
            Ok(range) => allocated.push(range),
            Err(error) => {
                assert!(allocated.iter().all(|range| range.frames() == len));
                return (allocated, error);
            }
        }
    }
}

#[test]
fn with_a_silent_host_all_but_an_eighth_of_free_memory_can_be_allocated() {
    for sections in [1, 2, 8, 16] {
        for settings in settings() {
            for len in [1, 2, PAGEBLOCK / 8, PAGEBLOCK / 2, PAGEBLOCK] {
                with_memory(sections, 0, |frames, _| {
                    let mut reporter =
                        Reporter::new(frames, settings, Contents::Undefined).unwrap();
                    let free = frames.counts().free;
                    let sent = send_all(&mut reporter);
                    let reporting = frames.counts().reporting;
                    assert!(reporting * 8 <= free, "{reporting} of {free} frames are reporting");
                    let request = AllocRequest::frames(len);
                    let (allocated, error) = exhaust(frames, request, len);
                    // Long requests may leave free runs in pageblocks that are too short for another
                    // request.
                    let counts = frames.counts();
                    let remaining = counts.free_whole + counts.reporting;
                    assert!(
                        remaining <= free / 8,
                        "{remaining} of {free} frames are free after requests for {len} frames"
                    );
                    assert!(len > 1 || counts.free == 0, "{} frames are free", counts.free);
                    let expected =
                        if reporting == 0 { AllocError::OutOfMemory } else { AllocError::Busy };
                    assert_eq!(error, expected, "{reporting} frames are reporting");
                    sent.into_iter().for_each(|batch| reporter.reported(batch));
                    let (more_frames, error) = exhaust(frames, request, len);
                    assert_eq!(more_frames.is_empty(), reporting == 0);
                    assert_eq!(error, AllocError::OutOfMemory);
                    allocated
                        .into_iter()
                        .chain(more_frames)
                        .for_each(|range| frames.free_range(range).unwrap());
                });
            }
        }
    }
}

#[test]
fn at_most_an_eighth_of_each_zone_is_reporting_at_one_time() {
    with_memory(2, 16, |frames, _| {
        let kernel = frames.counts_in(range(0, 2 * SECTION)).free_whole / PAGEBLOCK;
        let mut reporter =
            Reporter::new(frames, ReporterSettings::EAGER, Contents::Undefined).unwrap();
        let _silent = send_all(&mut reporter);
        assert!(frames.counts().reporting > 0);
        let (allocated, error) = exhaust(frames, AllocRequest::frames(PAGEBLOCK), PAGEBLOCK);
        assert!(allocated.len() as u64 >= kernel - kernel / 8, "{} of {kernel}", allocated.len());
        let reporting = frames.counts_in(range(0, 2 * SECTION)).reporting;
        assert_eq!(error, if reporting == 0 { AllocError::OutOfMemory } else { AllocError::Busy });
        allocated.into_iter().for_each(|range| frames.free_range(range).unwrap());
    });
}

#[test]
fn an_allocation_is_not_busy_because_of_memory_that_it_could_not_use() {
    with_memory(1, 1, |frames, _| {
        let (allocated, _) = exhaust(frames, AllocRequest::frames(PAGEBLOCK), PAGEBLOCK);
        let mut reporter =
            Reporter::new(frames, immediate_settings(), Contents::Undefined).unwrap();
        let _silent = send_all(&mut reporter);
        assert!(frames.counts().reporting > 0);
        assert_eq!(
            frames.alloc_range(AllocRequest::frames(PAGEBLOCK)),
            Err(AllocError::OutOfMemory)
        );
        assert_eq!(
            frames.alloc_range(AllocRequest::frames(PAGEBLOCK).movable()),
            Err(AllocError::Busy)
        );
        allocated.into_iter().for_each(|range| frames.free_range(range).unwrap());
    });
}

#[test]
fn nothing_is_reported_while_fewer_than_eight_pageblocks_are_free() {
    for (remaining, expected) in [(7, 0), (8, 1)] {
        // Use several sections, because in the small geometry one has fewer than eight pageblocks.
        with_memory(4, 0, |frames, _| {
            let (mut allocated, _) = exhaust(frames, AllocRequest::frames(PAGEBLOCK), PAGEBLOCK);
            let freed = allocated.split_off(allocated.len() - remaining);
            freed.into_iter().for_each(|range| frames.free_range(range).unwrap());
            let mut reporter =
                Reporter::new(frames, ReporterSettings::EAGER, Contents::Undefined).unwrap();
            let sent = send_all(&mut reporter);
            assert_eq!(frames.counts().reporting, expected * PAGEBLOCK);
            sent.into_iter().for_each(|batch| reporter.reported(batch));
            report_until_idle(&mut reporter, ms(5000));
            // If eight are free, all are reported in the end, batch by batch.
            let reported = frames.counts().reported / PAGEBLOCK;
            assert_eq!(reported, if expected > 0 { remaining as u64 } else { 0 });
            allocated.into_iter().for_each(|range| frames.free_range(range).unwrap());
        });
    }
}

#[test]
fn after_a_long_silence_the_reporter_asks_for_a_reset_that_frees_all_memory() {
    with_memory(SECTIONS, 0, |frames, _| {
        let mut reporter =
            Reporter::new(frames, ReporterSettings::EAGER, Contents::Undefined).unwrap();
        let before = frames.counts();
        let lost_batch = send(&mut reporter, ms(500));
        let step = loop {
            match reporter.step(ms(600)) {
                Step::Ready(Ok(batch)) => drop(batch),
                Step::Working => {}
                step => break step,
            }
        };
        assert!(matches!(step, Step::Pending(at) if at == ms(10_500)), "{step:?}");
        // An answer restarts the time after which the host counts as silent.
        reporter.reported(lost_batch);
        while let Step::Working | Step::Ready(Ok(_)) = reporter.step(ms(3000)) {}
        assert!(matches!(reporter.step(ms(12_999)), Step::Pending(at) if at == ms(13_000)));
        assert!(matches!(reporter.step(ms(13_000)), Step::Ready(Err(Unanswered))));
        assert!(frames.counts().reporting > 0);
        reporter.reset();
        let after = frames.validated().unwrap();
        assert_eq!((after.free, after.reporting), (before.free, 0));
        // After the reset the host may answer again.
        report_until_idle(&mut reporter, ms(14_000));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn a_host_may_be_silent_for_answer_timeout() {
    with_memory(SECTIONS, 0, |frames, _| {
        let settings = ReporterSettings { answer_timeout: ms(70), ..ReporterSettings::EAGER };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let _lost = send(&mut reporter, ms(5));
        // A clock that is set back does not prolong the wait.
        while let Step::Working | Step::Ready(Ok(_)) = reporter.step(ms(0)) {}
        assert!(matches!(reporter.step(ms(70)), Step::Ready(Err(Unanswered))));
        reporter.set_on(false);
        assert!(
            matches!(reporter.step(ms(70)), Step::Ready(Err(Unanswered))),
            "a reporter that is off still asks for a reset"
        );
        reporter.reset();
        assert!(matches!(reporter.step(ms(70)), Step::Idle));
    });
}
