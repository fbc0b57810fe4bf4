//! Proves the suite by models: each deviation is noticed by the point that names it, and by no
//! unrelated one.

use hotmem_conformance::model::{Deviation, Model};
use hotmem_conformance::runner::{Report, Suite, Verdict};
use hotmem_conformance::{BALLOON_POINTS, MEMORY_POINTS, Point};
use std::collections::BTreeSet;
use std::time::Duration;

/// Deviations that other points notice as well, because these do what the device does wrongly.
const ALSO_NOTICED_BY: &[(Deviation, &[&str])] = &[
    (
        Deviation::ResetIgnoredWhenStarted,
        &[
            "transport/queue-zero-after-reset",
            "mem/config/stable-across-reset",
            "mem/memory/contents-kept-over-reset",
            "mem/memory/state-kept-over-reset",
            "mem/memory/unplugged-readable",
            "balloon/report/poison-kept",
        ],
    ),
    (Deviation::AnswerIsConfigChange, &["transport/interrupt-status"]),
    (Deviation::EveryInterruptForBuffer, &["transport/interrupt-after-host-change"]),
    (Deviation::UnplugAllEmptiesUsable, &["mem/unplug-all/plug-after"]),
    (Deviation::PluggedSizeStays, PLUGGING),
    (Deviation::PlugsNextInstead, PLUGGING),
    (Deviation::PlugsNextInstead, &["mem/queue/batch-order"]),
    (
        Deviation::ResetShrinksRegion,
        &[
            "mem/memory/contents-kept-over-reset",
            "mem/memory/state-kept-over-reset",
            "mem/memory/unplugged-readable",
        ],
    ),
];

/// Points that plug blocks and leave some plugged. Their last step, the sweep, notices what a PLUG request
/// has done wrongly.
const PLUGGING: &[&str] = &[
    "transport/generation-after-plug",
    "mem/config/plugged-within-usable",
    "mem/plug/last-usable-block",
    "mem/plug/max-in-one-request",
    "mem/plug/already-plugged",
    "mem/plug/overlaps-plugged",
    "mem/plug/over-requested-nack",
    "mem/unplug/plugged",
    "mem/unplug/already-unplugged",
    "mem/unplug/mixed",
    "mem/unplug/zero-and-unaligned",
    "mem/unplug/content-of-neighbours-kept",
    "mem/unplug-all/plug-after",
    "mem/state/plugged",
    "mem/state/mixed",
    "mem/memory/writable-when-plugged",
    "mem/memory/contents-kept-over-reset",
    "mem/memory/state-kept-over-reset",
];

/// A device's points, and how a model of it is made.
#[derive(Clone, Copy)]
struct Kind {
    points: &'static [Point],
    model: fn(Option<Deviation>) -> Model,
}

const KINDS: [Kind; 2] = [
    Kind { points: MEMORY_POINTS, model: Model::memory },
    Kind { points: BALLOON_POINTS, model: Model::balloon },
];

impl Kind {
    /// Runs all points with a short time limit, which suffices for a device that answers at once.
    fn run(self, deviation: Option<Deviation>) -> Report {
        let new_device = move || (self.model)(deviation);
        let answer_limit = Duration::from_millis(1);
        Suite::new(self.points, new_device)
            .answer_limit(answer_limit)
            .point_limit(Duration::from_secs(600))
            .run()
    }
}

fn failed(report: &Report) -> BTreeSet<&'static str> {
    let failed = report.verdicts().iter().filter(|(_, verdict)| !verdict.is_ok());
    failed.map(|(point, _)| point.name).collect()
}

#[test]
fn a_model_without_deviation_passes_every_point() {
    for kind in KINDS {
        for (point, verdict) in kind.run(None).verdicts() {
            assert_eq!(verdict, &Verdict::Passed, "{}", point.name);
        }
    }
}

#[test]
fn each_deviation_is_noticed_by_its_point_and_by_no_unrelated_one() {
    let mut wrong = String::new();
    for &deviation in Deviation::ALL {
        for kind in KINDS {
            let has = |name: &str| kind.points.iter().any(|point| point.name == name);
            if !has(deviation.point()) {
                continue;
            }
            let found = failed(&kind.run(Some(deviation)));
            let also = ALSO_NOTICED_BY.iter().filter(|(other, _)| *other == deviation);
            let also = also.flat_map(|(_, names)| names.iter().copied());
            let expected = also.chain([deviation.point()]).filter(|name| has(name));
            if found != expected.collect() {
                wrong += &format!("{deviation:?}, for {}: {found:?}\n", deviation.point());
            }
        }
    }
    assert_eq!(wrong, "");
}

#[test]
fn each_point_has_a_deviation() {
    for kind in KINDS {
        for point in kind.points {
            let has = Deviation::ALL.iter().any(|deviation| deviation.point() == point.name);
            assert!(has, "{}", point.name);
        }
    }
}
