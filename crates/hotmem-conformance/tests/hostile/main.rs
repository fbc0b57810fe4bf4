//! Checks that no device can stop the suite, or make it panic.

mod erratic;

use hotmem_conformance::model::{Behaviour, Deviation, Model};
use hotmem_conformance::runner::{Fault, Suite, Verdict};
use hotmem_conformance::{BALLOON_POINTS, Clock, Device, Failure, MEMORY_POINTS, Outcome, Point};
use proptest::collection::vec;
use proptest::prelude::*;
use std::cell::Cell;
use std::time::Duration;

/// Time that passes only when it is read.
const TICK: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(1);

fn point(points: &'static [Point], name: &str) -> &'static Point {
    points.iter().find(|point| point.name == name).unwrap()
}

fn check(point: &Point, device: &mut dyn Device) -> Outcome {
    let time = Cell::new(Duration::ZERO);
    let now = || {
        time.set(time.get() + TICK);
        time.get()
    };
    point.check(device, Clock::new(&now, LIMIT))
}

/// Checks a point that sends a request with a hostile memory device.
fn failure_of(behaviour: Behaviour) -> Failure {
    let point = point(MEMORY_POINTS, "mem/state/unplugged");
    match check(point, &mut Model::memory(None).behaving(behaviour)) {
        Outcome::Failed(failure) => failure,
        outcome => panic!("{behaviour:?}: {outcome:?}"),
    }
}

#[test]
fn what_a_hostile_device_does_is_named() {
    assert_eq!(failure_of(Behaviour::NeverAnswers), Failure::NoAnswer { queue: 0 });
    let twice = Failure::UsedIndex { limit: 1, found: 2 };
    assert_eq!(failure_of(Behaviour::AnswersTwice), twice);
    assert_eq!(failure_of(Behaviour::UsesWrongChain), Failure::UsedId(7));
    let jumps = Failure::UsedIndex { limit: 1, found: 1001 };
    assert_eq!(failure_of(Behaviour::UsedIndexJumps), jumps);
    let too_many = Failure::UsedLength { writable: 10, found: 1 << 20 };
    assert_eq!(failure_of(Behaviour::ReportsTooMany), too_many);
    let outside = failure_of(Behaviour::WritesBehindBuffers);
    assert!(matches!(outside, Failure::WrittenOutside { found: 1, .. }), "{outside:?}");
    let readable = failure_of(Behaviour::WritesReadable);
    assert!(matches!(readable, Failure::ReadableWritten { .. }), "{readable:?}");
    assert_eq!(failure_of(Behaviour::WritesDescriptors), Failure::RingWritten { queue: 0 });
    assert_eq!(failure_of(Behaviour::AlwaysBusy), Failure::Busy);
    assert_eq!(failure_of(Behaviour::ConfigOfOnes), Failure::Region);
    assert_eq!(failure_of(Behaviour::ConfigOfZeros), Failure::Region);
}

#[test]
fn a_block_near_the_end_of_64_bits_makes_no_point_panic() {
    for point in MEMORY_POINTS {
        let _any = check(point, &mut Model::memory(None).behaving(Behaviour::ConfigOfHugeBlock));
    }
}

/// Checks that every point passes, or is skipped for one of these reasons.
fn all_pass(points: &[Point], model: fn() -> Model, behaviour: Behaviour, reasons: &[&str]) {
    for point in points {
        let outcome = check(point, &mut model().behaving(behaviour));
        let is_skipped = matches!(outcome, Outcome::Skipped(reason) if reasons.contains(&reason));
        assert!(outcome == Outcome::Passed || is_skipped, "{}: {outcome:?}", point.name);
    }
}

#[test]
fn a_generation_that_always_changes_stops_no_point() {
    all_pass(MEMORY_POINTS, || Model::memory(None), Behaviour::GenerationNeverRests, &[]);
}

#[test]
fn a_generation_that_changes_when_the_configuration_is_read_fails_no_point() {
    let lazy = Behaviour::GenerationChangesWhenRead;
    all_pass(MEMORY_POINTS, || Model::memory(None), lazy, &[]);
    all_pass(BALLOON_POINTS, || Model::balloon(None), lazy, &[]);
}

#[test]
fn requests_are_sent_again_while_a_device_is_busy() {
    let reasons = &["the device is busy"];
    all_pass(MEMORY_POINTS, || Model::memory(None), Behaviour::BusyAtFirst, reasons);
}

#[test]
fn a_device_may_refuse_to_run_with_few_features() {
    let reasons = &["the device fails without UNPLUGGED_INACCESSIBLE"];
    all_pass(MEMORY_POINTS, || Model::memory(None), Behaviour::NeedsAllFeatures, reasons);
    all_pass(BALLOON_POINTS, || Model::balloon(None), Behaviour::NeedsAllFeatures, &[]);

    // Such a device must refuse an unknown feature even if it gets all others.
    let deviation = Some(Deviation::UnknownFeatureAccepted);
    let mut model = Model::memory(deviation).behaving(Behaviour::NeedsAllFeatures);
    let outcome = check(point(MEMORY_POINTS, "transport/features-unknown-bit-refused"), &mut model);
    assert!(matches!(outcome, Outcome::Failed(Failure::Status { .. })), "{outcome:?}");
}

#[test]
fn the_queue_of_reports_is_found_with_and_without_gaps_in_the_numbers() {
    let reasons = &["the service is not offered", "PAGE_POISON is not offered"];
    for behaviour in [Behaviour::OnlyReports, Behaviour::OnlyReportsWithoutGap] {
        all_pass(BALLOON_POINTS, || Model::balloon(None), behaviour, reasons);
        let point = point(BALLOON_POINTS, "balloon/report/32-entries");
        let outcome = check(point, &mut Model::balloon(None).behaving(behaviour));
        assert_eq!(outcome, Outcome::Passed, "{behaviour:?}");
    }
}

#[test]
fn a_device_that_panics_fails_its_point_with_the_message() {
    let suite = Suite::new(BALLOON_POINTS, || Model::balloon(None).behaving(Behaviour::Panics));
    let verdict = suite.run_point(point(BALLOON_POINTS, "balloon/inflate/used-len-zero"));
    let message = "the model panics, as it was told to".to_owned();
    assert_eq!(verdict, Verdict::Failed(Fault::Panics(message)));
}

#[test]
fn a_device_that_does_not_return_fails_its_point() {
    let suite = Suite::new(MEMORY_POINTS, || Model::memory(None).behaving(Behaviour::Hangs));
    let limit = Duration::from_millis(50);
    let verdict = suite.point_limit(limit).run_point(point(MEMORY_POINTS, "mem/plug/first-block"));
    assert_eq!(verdict, Verdict::Failed(Fault::Hangs(limit)));
}

/// Configures the number of random cases: that in `PROPTEST_CASES`, or many in deep tests.
fn cases() -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let is_set = |name| std::env::var_os(name).is_some();
    let cases = match () {
        () if is_set("PROPTEST_CASES") => config.cases,
        () if is_set("HOTMEM_DEEP") => 20_000,
        () => 1000,
    };
    ProptestConfig { cases, ..config }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_device_that_does_anything_neither_stops_a_point_nor_makes_it_panic(
        point in any::<u8>(),
        script in vec(any::<u8>(), 0..8000),
    ) {
        erratic::run_script(point, &script);
    }
}
