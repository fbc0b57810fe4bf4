//! Tests that enough memory can be allocated while a host is slow or never answers.

use super::*;
use hotmem::{AllocError, report::Unanswered};
use hotmem_testkit::Raw as _;
use hotmem_testkit::Validated as _;

/// Enough sections that a share of them may be out, however few pageblocks a section has.
const SOME: u64 = 128 * BLOCK / SECTION;

/// Boots a machine of one region with `sections` sections, and `movable` more.
fn with_memory(
    sections: u64,
    movable: u64,
    test: impl FnOnce(&Machine<'_>, &mut Hotplug<'_, &WakeupCount>),
) {
    let wakeups = WakeupCount::default();
    let memory = Memory::new((sections + movable) * SECTION);
    let frames = Frames::new(&wakeups);
    let ram = [BootRange { start: 0, len: Bytes(sections * SECTION * FRAME_SIZE) }];
    let mut hotplug =
        hotmem_testkit::start(&frames, memory.direct_map(), &BootMap::of_ram(&ram)).unwrap();
    if movable > 0 {
        let plugged = range(sections * SECTION, movable * SECTION);
        hotplug.announce(plugged).unwrap();
        hotplug.add(plugged).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
    }
    test(&frames, &mut hotplug);
    frames.validated().unwrap();
}

/// Settings without memory that is kept back.
fn settings() -> [Settings; 4] {
    let none_kept = Settings { keep_free: Bytes::ZERO, ..Settings::default() };
    let everything = Settings { most_out: Bytes::tib(1), batch: 64, ..Settings::EAGER };
    [Settings::default(), none_kept, Settings::EAGER, everything]
}

/// Steps until a host that never answers gets no more batches.
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

/// Allocates pieces of `frames` frames until none is left. Returns the number of frames.
fn exhaust(frames: &Machine<'_>, request: AllocRequest, len: u64) -> (Vec<PfnRange>, AllocError) {
    let mut taken = Vec::new();
    loop {
        match frames.take_raw(request) {
            Ok(range) => taken.push(range),
            Err(error) => {
                assert!(taken.iter().all(|range| range.frames() == len));
                return (taken, error);
            }
        }
    }
}

#[test]
fn with_a_silent_host_requests_succeed_while_an_eighth_is_left() {
    for sections in [1, 2, 8, 16] {
        for settings in settings() {
            for len in [1, 2, BLOCK / 8, BLOCK / 2, BLOCK] {
                with_memory(sections, 0, |frames, _| {
                    let mut reporter =
                        Reporter::new(frames, settings, Contents::Undefined).unwrap();
                    let free = frames.counts().free;
                    let sent = send_all(&mut reporter);
                    let out = frames.counts().reporting;
                    assert!(out * 8 <= free, "{out} of {free} frames are out");
                    let request = AllocRequest::frames(len);
                    let (taken, error) = exhaust(frames, request, len);
                    // A long request leaves the rest of its pageblock free for short requests.
                    let counts = frames.counts();
                    let left = counts.free_whole + counts.reporting;
                    assert!(left <= free / 8, "{left} of {free} frames are left for {len}");
                    assert!(len > 1 || counts.free == 0, "{} frames are free", counts.free);
                    let expected =
                        if out == 0 { AllocError::OutOfMemory } else { AllocError::Busy };
                    assert_eq!(error, expected, "{out} frames are out");
                    sent.into_iter().for_each(|batch| reporter.reported(batch).unwrap());
                    let (more, error) = exhaust(frames, request, len);
                    assert_eq!(more.is_empty(), out == 0);
                    assert_eq!(error, AllocError::OutOfMemory);
                    taken.into_iter().chain(more).for_each(|range| frames.give_raw(range).unwrap());
                });
            }
        }
    }
}

#[test]
fn each_zone_keeps_what_it_needs() {
    with_memory(2, 16, |frames, _| {
        let kernel = frames.counts_in(range(0, 2 * SECTION)).free_whole / BLOCK;
        let mut reporter = Reporter::new(frames, Settings::EAGER, Contents::Undefined).unwrap();
        let _silent = send_all(&mut reporter);
        assert!(frames.counts().reporting > 0);
        let (taken, error) = exhaust(frames, AllocRequest::frames(BLOCK), BLOCK);
        assert!(taken.len() as u64 >= kernel - kernel / 8, "{} of {kernel}", taken.len());
        let out = frames.counts_in(range(0, 2 * SECTION)).reporting;
        assert_eq!(error, if out == 0 { AllocError::OutOfMemory } else { AllocError::Busy });
        taken.into_iter().for_each(|range| frames.give_raw(range).unwrap());
    });
}

#[test]
fn memory_that_cannot_serve_a_request_does_not_make_it_busy() {
    with_memory(1, 1, |frames, _| {
        let (taken, _) = exhaust(frames, AllocRequest::frames(BLOCK), BLOCK);
        let mut reporter = Reporter::new(frames, at_once(), Contents::Undefined).unwrap();
        let _silent = send_all(&mut reporter);
        assert!(frames.counts().reporting > 0);
        assert_eq!(frames.take_raw(AllocRequest::frames(BLOCK)), Err(AllocError::OutOfMemory));
        assert_eq!(frames.take_raw(AllocRequest::frames(BLOCK).movable()), Err(AllocError::Busy));
        taken.into_iter().for_each(|range| frames.give_raw(range).unwrap());
    });
}

#[test]
fn nothing_is_reported_while_fewer_than_eight_pageblocks_are_free() {
    for (left, goes) in [(7, 0), (8, 1)] {
        // Sections may have fewer pageblocks than that.
        with_memory(4, 0, |frames, _| {
            let (mut taken, _) = exhaust(frames, AllocRequest::frames(BLOCK), BLOCK);
            let freed = taken.split_off(taken.len() - left);
            freed.into_iter().for_each(|range| frames.give_raw(range).unwrap());
            let mut reporter = Reporter::new(frames, Settings::EAGER, Contents::Undefined).unwrap();
            let sent = send_all(&mut reporter);
            assert_eq!(frames.counts().reporting, goes * BLOCK);
            sent.into_iter().for_each(|batch| reporter.reported(batch).unwrap());
            settle(&mut reporter, ms(5000));
            // At the end everything is reported, batch by batch.
            let reported = frames.counts().reported / BLOCK;
            assert_eq!(reported, if goes > 0 { left as u64 } else { 0 });
            taken.into_iter().for_each(|range| frames.give_raw(range).unwrap());
        });
    }
}

#[test]
fn a_silent_host_is_to_be_reset_and_then_everything_is_free() {
    with_memory(SOME, 0, |frames, _| {
        let mut reporter = Reporter::new(frames, Settings::EAGER, Contents::Undefined).unwrap();
        let before = frames.counts();
        let lost = send(&mut reporter, ms(500));
        let step = loop {
            match reporter.step(ms(600)) {
                Step::Ready(Ok(batch)) => drop(batch),
                Step::Working => {}
                step => break step,
            }
        };
        assert!(matches!(step, Step::Pending(at) if at == ms(10_500)), "{step:?}");
        // An answer shows that the host is there.
        reporter.reported(lost).unwrap();
        while let Step::Working | Step::Ready(Ok(_)) = reporter.step(ms(3000)) {}
        assert!(matches!(reporter.step(ms(12_999)), Step::Pending(at) if at == ms(13_000)));
        assert!(matches!(reporter.step(ms(13_000)), Step::Ready(Err(Unanswered))));
        assert!(frames.counts().reporting > 0);
        reporter.reset();
        let after = frames.validated().unwrap();
        assert_eq!((after.free, after.reporting), (before.free, 0));
        // The next one may answer.
        settle(&mut reporter, ms(14_000));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn how_long_a_host_may_be_silent_can_be_set() {
    with_memory(SOME, 0, |frames, _| {
        let settings = Settings { patience: ms(70), ..Settings::EAGER };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let _lost = send(&mut reporter, ms(5));
        // A clock that is set back does not prolong the wait.
        while let Step::Working | Step::Ready(Ok(_)) = reporter.step(ms(0)) {}
        assert!(matches!(reporter.step(ms(70)), Step::Ready(Err(Unanswered))));
        reporter.set_on(false);
        assert!(
            matches!(reporter.step(ms(70)), Step::Ready(Err(Unanswered))),
            "it is out all the same"
        );
        reporter.reset();
        assert!(matches!(reporter.step(ms(70)), Step::Idle));
    });
}
