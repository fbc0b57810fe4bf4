//! Checks devices that run on a thread of their own: their adapter does not run them.

mod threaded;

use hotmem_conformance::model::Model;
use hotmem_conformance::runner::{Suite, Verdict};
use hotmem_conformance::{BALLOON_POINTS, MEMORY_POINTS, Point};
use std::time::Duration;
use threaded::Threaded;

fn check(points: &'static [Point], model: fn() -> Model) {
    // A busy host may not run the device's thread for a long time.
    let (answer_limit, point_limit) = (Duration::from_secs(60), Duration::from_secs(600));
    let suite = Suite::new(points, move || Threaded::new(model()));
    for (point, verdict) in
        suite.answer_limit(answer_limit).point_limit(point_limit).run().verdicts()
    {
        assert_eq!(verdict, &Verdict::Passed, "{}", point.name);
    }
}

#[test]
fn a_memory_device_on_a_thread_passes_every_point() {
    check(MEMORY_POINTS, || Model::memory(None));
}

#[test]
fn a_balloon_on_a_thread_passes_every_point() {
    check(BALLOON_POINTS, || Model::balloon(None));
}
