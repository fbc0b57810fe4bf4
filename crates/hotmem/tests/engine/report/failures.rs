//! Tests a host that refuses or loses batches, and a reporter that is switched off.

use super::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;

#[test]
fn refusals_are_retried_a_bounded_number_of_times() {
    with_instance(|frames, _, _| {
        let settings =
            ReporterSettings { max_refusals: 3, retry_pause: ms(10), ..immediate_settings() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let before = frames.counts();
        let batch = send(&mut reporter, ms(0));
        reporter.failed(batch, ms(0));
        assert_eq!(frames.validated().unwrap(), before, "a refused batch is not reported");
        assert!(matches!(reporter.step(ms(9)), Step::Pending(at) if at == ms(10)));
        let batch = send(&mut reporter, ms(10));
        reporter.failed(batch, ms(10));
        assert!(matches!(reporter.step(ms(29)), Step::Pending(at) if at == ms(30)));
        // A batch that is accepted ends the series of refusals.
        let batch = send(&mut reporter, ms(30));
        reporter.reported(batch);
        for now in [ms(30), ms(40), ms(60)] {
            let allocated = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
            frames.free_range(allocated).unwrap();
            let batch = send(&mut reporter, now);
            reporter.failed(batch, now);
        }
        assert!(!reporter.statistics().is_on);
        assert!(matches!(reporter.step(ms(1000)), Step::Idle));
        assert_eq!(reporter.statistics().refused, 5);
        reporter.set_on(true);
        report_until_idle(&mut reporter, ms(1000));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn a_lost_batch_stays_isolated_until_the_host_is_reset() {
    with_instance(|frames, _, _| {
        let settings = ReporterSettings {
            max_batch_ranges: 1,
            max_range_size: size_of_blocks(2),
            ..immediate_settings()
        };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let before = frames.counts();
        let (batch, stale) = (send(&mut reporter, ms(0)), send(&mut reporter, ms(0)));
        let reporting = (count_pageblocks(&batch) + count_pageblocks(&stale)) * PAGEBLOCK;
        drop(batch);
        let lost_counts = frames.validated().unwrap();
        assert_eq!((lost_counts.isolated, lost_counts.reporting), (reporting, reporting));
        assert_eq!(lost_counts.free, before.free - reporting);
        assert_eq!(reporter.reset() * PAGEBLOCK, reporting);
        assert_eq!(frames.validated().unwrap(), before);
        reporter.reported(stale);
        assert_eq!(frames.validated().unwrap(), before, "a void batch does nothing");
        // The reset also takes back the batches of a reporter that was dropped.
        let lost_batch = send(&mut reporter, ms(0));
        drop(reporter);
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        assert_eq!(frames.counts().reporting, count_pageblocks(&lost_batch) * PAGEBLOCK);
        assert_eq!(reporter.reset() * PAGEBLOCK, count_pageblocks(&lost_batch) * PAGEBLOCK);
        reporter.reported(lost_batch);
        assert_eq!(frames.validated().unwrap(), before);
    });
}

#[test]
fn a_batch_of_another_instance_stays_reporting() {
    for is_taken in [true, false] {
        with_instance(|frames, _, _| {
            with_instance(|other, _, _| {
                let (mut local, mut foreign_reporter) =
                    (eager_reporter(frames), eager_reporter(other));
                let (local_batch, foreign) =
                    (send(&mut local, ms(0)), send(&mut foreign_reporter, ms(0)));
                let before = (frames.counts(), other.counts(), local.statistics());
                match is_taken {
                    true => local.reported(foreign),
                    false => local.failed(foreign, ms(0)),
                }
                let counts = (frames.validated().unwrap(), other.validated().unwrap());
                assert_eq!((counts.0, counts.1, local.statistics()), before);
                local.reported(local_batch);
                foreign_reporter.reset();
                assert_eq!((frames.counts().reporting, other.counts().reporting), (0, 0));
            });
        });
    }
}

#[test]
fn batches_of_a_dropped_reporter_count_and_are_accepted_by_the_next_reporter() {
    with_instance(|frames, _, _| {
        let one_block_settings = ReporterSettings {
            max_reporting: size_of_blocks(1),
            max_range_size: size_of_blocks(1),
            ..immediate_settings()
        };
        let mut first = Reporter::new(frames, one_block_settings, Contents::Undefined).unwrap();
        let remaining = send(&mut first, ms(0));
        drop(first);
        let mut second = Reporter::new(frames, one_block_settings, Contents::Undefined).unwrap();
        let step = second.step(ms(0));
        assert!(
            matches!(step, Step::Pending(at) if at == one_block_settings.answer_timeout),
            "{step:?}"
        );
        second.reported(remaining);
        assert_eq!((frames.counts().reporting, frames.counts().reported), (0, PAGEBLOCK));
        assert_eq!(count_pageblocks(&send(&mut second, ms(0))), 1);
    });
}

#[test]
fn a_forgotten_reporter_stays_the_reporter() {
    with_instance(|frames, _, _| {
        std::mem::forget(eager_reporter(frames));
        let second = Reporter::new(frames, immediate_settings(), Contents::Undefined);
        assert_eq!(second.unwrap_err(), ReporterError::HasReporter);
    });
}

#[test]
fn a_second_reporter_and_one_whose_host_changes_the_contents_are_refused() {
    with_instance(|frames, _, _| {
        let poison = Contents::Filled(0xaaaa_aaaa);
        frames.set_contents(poison).unwrap();
        for after in [Contents::Undefined, Contents::Filled(0)] {
            let refused = Reporter::new(frames, immediate_settings(), after).unwrap_err();
            assert_eq!(refused, ReporterError::ContentsDiffer { relied_on: poison, after });
        }
        let first = Reporter::new(frames, immediate_settings(), poison).unwrap();
        let second = Reporter::new(frames, immediate_settings(), poison);
        assert_eq!(second.unwrap_err(), ReporterError::HasReporter);
        let other = frames.set_contents(Contents::Filled(0));
        assert_eq!(other, Err(ReporterError::HasReporter));
        assert_eq!(frames.contents(), poison);
        drop(first);
        frames.set_contents(Contents::Undefined).unwrap();
        eager_reporter(frames);
    });
}

#[test]
fn a_reporter_that_is_switched_on_again_finds_memory_that_became_free() {
    with_instance(|frames, _, wakeups| {
        let mut reporter = eager_reporter(frames);
        report_until_idle(&mut reporter, ms(0));
        reporter.set_on(false);
        let allocated = frames.alloc_range(AllocRequest::frames(3 * PAGEBLOCK)).unwrap();
        frames.free_range(allocated).unwrap();
        assert!(matches!(reporter.step(ms(5)), Step::Idle));
        assert_eq!(wakeups.0.load(Ordering::Relaxed), 0);
        reporter.set_on(true);
        let (reported, _) = report_until_idle(&mut reporter, ms(5));
        assert_eq!(count_pageblocks(&reported), 3);
    });
}

#[test]
fn a_reporter_that_is_off_accepts_the_answer_to_its_batch() {
    with_instance(|frames, _, _| {
        let mut reporter = eager_reporter(frames);
        let batch = send(&mut reporter, ms(0));
        reporter.set_on(false);
        reporter.reported(batch);
        assert_eq!(frames.validated().unwrap().reporting, 0);
        assert!(frames.counts().reported > 0);
    });
}
