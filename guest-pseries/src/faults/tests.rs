//! Tests that a fault changes the answers of exactly the calls that it names.

use super::*;
use crate::event_log::{Event, LogError};
use hotmem_dlpar::{LmbSelection, Request};

const TOKENS: Tokens = Tokens {
    set_indicator: 1,
    get_sensor_state: 2,
    configure_connector: 3,
    check_exception: 4,
    power_off: 5,
};

/// Firmware that succeeds and counts its calls.
#[derive(Default)]
struct WorkingFirmware {
    calls: u32,
}

impl Firmware for WorkingFirmware {
    fn call(&mut self, _: u32, _: &[u32], results: &mut [u32]) {
        self.calls += 1;
        results.fill(0);
    }

    fn configure_connector(&mut self, _: u32, _: &mut WorkArea) -> i32 {
        self.calls += 1;
        0
    }

    fn check_exception(&mut self, _: u32, _: [u32; 4], log: &mut [u8]) -> i32 {
        self.calls += 1;
        let qemu_log = crate::event_log::tests::qemu_log();
        log[..qemu_log.len()].copy_from_slice(&qemu_log);
        0
    }
}

fn faulty(fault: &str) -> FaultyFirmware<WorkingFirmware> {
    FaultyFirmware::new(WorkingFirmware::default(), TOKENS, Some(Fault::parse(fault).unwrap()))
}

fn status(firmware: &mut FaultyFirmware<WorkingFirmware>, token: u32, args: &[u32]) -> i32 {
    let mut results = [7];
    firmware.call(token, args, &mut results);
    results[0].cast_signed()
}

#[test]
fn one_call_gets_the_wrong_answer_and_is_not_carried_out() {
    for (call, token, args) in [
        ("sense", 2, &[9003, 8][..]),
        ("usable", 1, &[9003, 8, 1]),
        ("unusable", 1, &[9003, 8, 0]),
        ("isolate", 1, &[9001, 8, 0]),
        ("unisolate", 1, &[9001, 8, 1]),
    ] {
        let mut firmware = faulty(&format!("{call}:2:-3"));
        let statuses = [(); 3].map(|()| status(&mut firmware, token, args));
        assert_eq!((statuses, firmware.firmware.calls), ([0, -3, 0], 2), "{call}");
        // A call for another indicator gets the right answer.
        assert_eq!(status(&mut firmware, 1, &[9002, 8, 0]), 0);
    }
    let mut firmware = faulty("configure:1:-2");
    let statuses = [(); 2].map(|()| firmware.configure_connector(3, &mut WorkArea::new()));
    assert_eq!((statuses, firmware.firmware.calls), ([-2, 0], 1));
}

#[test]
fn a_lasting_fault_lasts_until_it_is_ended() {
    let mut firmware = faulty("isolate:2+:-2");
    firmware.end_lasting_fault();
    let statuses = [(); 3].map(|()| status(&mut firmware, 1, &[9001, 8, 0]));
    assert_eq!(statuses, [0, -2, -2]);
    firmware.end_lasting_fault();
    assert_eq!(status(&mut firmware, 1, &[9001, 8, 0]), 0);
}

#[test]
fn event_logs_are_corrupted() {
    let event = |fault: &str| {
        let mut log = [0; 200];
        let mut firmware = faulty(fault);
        let statuses = [(); 2].map(|()| firmware.check_exception(4, [0; 4], &mut log));
        (statuses, Event::parse(&log))
    };
    assert!(matches!(
        event("event:2:short"),
        ([0, 0], Err(LogError::Section { offset: 72, len: 24 }))
    ));
    assert_eq!(event("event:2:version"), ([0, 0], Err(LogError::Version(5))));
    let ([0, 0], Ok(Event::Hotplug(foreign))) = event("event:2:foreign") else { panic!() };
    let selection = LmbSelection::Range { first: FOREIGN_CONNECTOR, count: 4 };
    assert_eq!(foreign.request(), Some(Request::add(selection)));
    assert_eq!(event("event:1:-1").0, [-1, 0]);
}

#[test]
fn malformed_faults_are_refused() {
    for text in
        ["", "sense", "sense:1", "sense:0:-1", "nothing:1:-1", "sense:1:short", "event:x:-1"]
    {
        assert_eq!(Fault::parse(text), None, "{text}");
    }
}
