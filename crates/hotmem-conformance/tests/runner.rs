//! Checks verdicts, and what the runner prints.

use hotmem_conformance::MEMORY_POINTS;
use hotmem_conformance::model::{Deviation, Model};
use hotmem_conformance::runner::{LineFault, Suite, Verdict};

const NAME: &str = "mem/plug/already-plugged";

fn nack() -> Model {
    Model::memory(Some(Deviation::PlugOfPluggedNack))
}

#[test]
fn a_failure_that_is_expected_is_no_error() {
    let suite = Suite::new(MEMORY_POINTS, nack);
    let report = suite.run();
    assert!(!report.is_ok());
    let lines = "not ok 28 - mem/plug/already-plugged\n  ---\n  message: 'PLUG at 0x180020000, blocks: 1, \
                 is answered by NACK instead of ERROR'\n  section: '5.15.6.3.2'\n  requirement: MUST\n  \
                 ...\n";
    assert!(report.tap().to_string().contains(lines), "{}", report.tap());

    let report = suite.expecting("mem/plug/already-plugged answers NACK").unwrap().run();
    assert!(report.is_ok());
    let line = "not ok 28 - mem/plug/already-plugged # TODO answers NACK\n";
    assert!(report.tap().to_string().contains(line), "{}", report.tap());
}

#[test]
fn a_point_that_passes_unexpectedly_is_an_error() {
    let suite = Suite::new(MEMORY_POINTS, || Model::memory(None));
    let report = suite.expecting(&format!("{NAME} answers NACK")).unwrap().run();
    assert!(!report.is_ok());
    let unexpected: Vec<_> =
        report.verdicts().iter().filter(|(_, verdict)| *verdict != Verdict::Passed).collect();
    let reason = "answers NACK".to_owned();
    assert_eq!(unexpected.len(), 1);
    assert_eq!(unexpected[0].0.name, NAME);
    assert_eq!(unexpected[0].1, Verdict::PassedUnexpectedly(reason));
}

#[test]
fn an_unknown_name_is_an_error() {
    let error = Suite::new(MEMORY_POINTS, nack).expecting("mem/plug/typo reason").err().unwrap();
    assert_eq!((error.line, error.fault), (1, LineFault::UnknownName));
}

#[test]
fn a_tap_report_has_a_plan_and_a_line_for_each_point() {
    let report = Suite::new(MEMORY_POINTS, || Model::memory(None)).run();
    let text = report.tap().to_string();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("TAP version 14"));
    assert_eq!(lines.next(), Some("1..54"));
    for (number, point) in (1..).zip(MEMORY_POINTS) {
        assert_eq!(lines.next(), Some(format!("ok {number} - {}", point.name).as_str()));
    }
    assert_eq!(lines.next(), None);
}
