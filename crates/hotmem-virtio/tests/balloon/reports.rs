//! Tests free page reports.

use crate::memory::{Frame, TestMemory};
use crate::setup::{MS, Setup};
use core::time::Duration;
use hotmem_virtio::balloon::{Features, Message, Queue, Step};

fn setup() -> Setup {
    let mut setup = Setup::new(Features::PAGE_REPORTING, 0, TestMemory::new(0, 64 * 512));
    setup.memory.report_from = Duration::ZERO;
    setup
}

#[test]
fn all_free_memory_is_reported_in_batches_and_marked() {
    let mut setup = setup();
    assert_eq!(setup.poll(), Step::Idle);
    assert_eq!(setup.memory.count(Frame::Reported), 64 * 512);
    let reports: Vec<_> = setup.device.messages.iter().collect();
    assert_eq!(reports.len(), 2);
    for report in reports {
        let Message::Report(ranges) = report else { panic!("{report:?}") };
        assert_eq!(ranges.as_slice().len(), 32);
    }
    let counters = setup.driver.counters();
    assert_eq!((counters.reports, counters.reported_frames), (2, 64 * 512));
}

#[test]
fn a_report_has_at_most_the_number_of_ranges_that_the_device_allows() {
    for max_ranges in [1, 3, 16] {
        let mut setup = setup();
        setup.driver = setup.driver.with_max_report_ranges(max_ranges);
        setup.poll();
        assert_eq!(setup.memory.count(Frame::Reported), 64 * 512);
        let ranges = |message: &Message| match message {
            Message::Report(ranges) => ranges.as_slice().len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(setup.device.messages.iter().map(ranges).max(), Some(max_ranges));
    }
}

#[test]
fn the_memory_manager_learns_how_much_of_a_report_the_device_has_initialised() {
    let all = Features::PAGE_REPORTING | Features::DEVICE_INIT_REPORTED;
    // Each report has 32 ranges of 2 MiB.
    let report = 32 * 512;
    for (features, written, initialised) in [
        (all, 0, 0),
        (all, 4095, 0),
        (all, 5 * 4096 + 1, 5),
        (all, report * 4096, u64::from(report)),
        // More than the report has: impossible.
        (all, report * 4096 + 4096, 0),
        (Features::PAGE_REPORTING, 5 * 4096, 0),
    ] {
        let mut setup = Setup::new(features, 0, TestMemory::new(0, 64 * 512));
        setup.memory.report_from = Duration::ZERO;
        setup.written = written;
        setup.poll();
        assert_eq!(setup.memory.initialised, [initialised; 2], "{written} bytes");
        let counters = setup.driver.counters();
        assert_eq!(counters.initialised_frames, 2 * initialised);
        assert_eq!(counters.invalid_answers, if written > report * 4096 { 2 } else { 0 });
    }
}

#[test]
fn an_idle_reporter_sets_no_timer() {
    let mut setup = setup();
    setup.poll();
    for _ in 0..10 {
        assert_eq!(setup.poll(), Step::Idle);
    }
    assert_eq!(setup.device.messages.len(), 2);
    setup.memory.change(1000, Frame::Free);
    setup.poll();
    assert_eq!(setup.device.messages.len(), 3);
}

#[test]
fn the_kernel_decides_the_time_of_reports() {
    let mut setup = setup();
    setup.memory.report_from = setup.now + 50 * MS;
    assert_eq!(setup.poll(), Step::Pending(setup.now + 50 * MS));
    assert_eq!(setup.device.messages, []);
    setup.run(60 * MS);
    assert_eq!(setup.device.messages.len(), 2);
}

#[test]
fn the_balloon_works_while_a_report_is_outstanding() {
    let mut setup = setup();
    setup.device.silent_queues = vec![Queue::Reports];
    setup.memory.max_report_ranges = 1;
    setup.device.config.num_pages = 1024;
    setup.poll();
    setup.assert_settled(1024);
    assert_eq!(setup.memory.count(Frame::Reporting), 512);
}
