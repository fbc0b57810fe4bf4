//! Tests the connectors with simulated firmware.

use super::*;
use crate::rtas::Tokens;
use std::collections::VecDeque;

const DRC: DrcIndex = DrcIndex(0x8000_0004);
const OTHER_CONNECTOR: DrcIndex = DrcIndex(0x8000_0005);

/// A call: its token and its arguments.
type Call = (u32, Vec<u32>);

/// An answer of `ibm,configure-connector`: its status, and the property in the work area.
type Answer = (i32, Option<(&'static [u8], Vec<u32>)>);

/// Simulated firmware with prepared answers.
#[derive(Default)]
struct FakeFirmware {
    calls: Vec<Call>,
    results: Vec<u32>,
    answers: VecDeque<Answer>,
    /// The connectors whose configuration was begun, in order.
    configured: Vec<u32>,
    last_status: Option<i32>,
}

impl Firmware for FakeFirmware {
    fn call(&mut self, token: u32, args: &[u32], results: &mut [u32]) {
        self.calls.push((token, args.to_vec()));
        for (result, prepared) in results.iter_mut().zip(&self.results) {
            *result = *prepared;
        }
    }

    fn configure_connector(&mut self, token: u32, area: &mut WorkArea) -> i32 {
        assert_eq!(token, TOKENS.configure_connector);
        let (words, _) = area.0.as_chunks();
        if words[1] == [0; 4] {
            self.configured.push(u32::from_be_bytes(words[0]));
            area.set_word(1, 1);
        }
        let Some((status, property)) = self.answers.pop_front() else {
            return self.last_status.expect("an answer is prepared for each call");
        };
        if let Some((name, value)) = property {
            area.set_word(2, 100);
            area.set_word(3, u32::try_from(value.len() * 4).unwrap());
            area.set_word(4, 201);
            area.0[100..100 + name.len()].copy_from_slice(name);
            area.0[100 + name.len()] = 0;
            for (nth, cell) in value.into_iter().enumerate() {
                area.0[201 + nth * 4..][..4].copy_from_slice(&cell.to_be_bytes());
            }
        }
        status
    }

    fn check_exception(&mut self, token: u32, args: [u32; 4], log: &mut [u8]) -> i32 {
        self.calls.push((token, args.to_vec()));
        log.fill(7);
        self.results[0].cast_signed()
    }
}

const TOKENS: Tokens = Tokens {
    set_indicator: 1,
    get_sensor_state: 2,
    configure_connector: 3,
    check_exception: 4,
    power_off: 5,
};

fn connectors(answers: impl IntoIterator<Item = Answer>) -> RtasConnectors<'static, FakeFirmware> {
    let answers = answers.into_iter().collect();
    let firmware = FakeFirmware { answers, results: vec![0, 0], ..FakeFirmware::default() };
    let area = Box::leak(Box::new(WorkArea::new()));
    RtasConnectors::new(Rtas::new(firmware, TOKENS), area)
}

fn property(name: &'static [u8], value: &[u32]) -> Answer {
    (PROPERTY, Some((name, value.to_vec())))
}

/// Returns the answers of QEMU for an LMB.
fn qemu_answers() -> Vec<Answer> {
    vec![
        (2, None),
        property(b"ibm,associativity", &[4, 0, 0, 0, 1]),
        property(b"reg", &[0, 0x4000_0000, 0, 0x1000_0000]),
        property(b"device_type", &[0x6d65_6d6f, 0x7279_0000]),
        (0, None),
    ]
}

fn configure(connectors: &mut RtasConnectors<'_, FakeFirmware>) -> (i32, Option<Vec<u32>>) {
    let mut list = [0; MAX_LIST_LEN];
    let (status, len) = connectors.configure(DRC, &mut list);
    (status, len.map(|len| list[..len.min(MAX_LIST_LEN)].to_vec()))
}

#[test]
fn calls_have_the_arguments_of_papr() {
    let mut connectors = connectors([]);
    connectors.rtas.firmware.results = vec![0, 2];
    assert_eq!(connectors.entity_sense(DRC), (0, 2));
    connectors.rtas.firmware.results = vec![u32::MAX - 2, 0];
    assert_eq!(connectors.set_allocation(DRC, true), -3);
    assert_eq!(connectors.set_allocation(DRC, false), -3);
    assert_eq!(connectors.set_isolation(DRC, true), -3);
    assert_eq!(connectors.set_isolation(DRC, false), -3);
    let calls: [Call; 5] = [
        (2, vec![9003, DRC.0]),
        (1, vec![9003, DRC.0, 1]),
        (1, vec![9003, DRC.0, 0]),
        (1, vec![9001, DRC.0, 0]),
        (1, vec![9001, DRC.0, 1]),
    ];
    assert_eq!(connectors.rtas.firmware.calls, calls);
}

#[test]
fn check_exception_polls_for_events() {
    let mut connectors = connectors([]);
    let mut log = [0; 4];
    assert_eq!(connectors.rtas.check_exception(&mut log), Ok(true));
    assert_eq!(log, [7; 4]);
    connectors.rtas.firmware.results = vec![1];
    assert_eq!(connectors.rtas.check_exception(&mut log), Ok(false));
    connectors.rtas.firmware.results = vec![u32::MAX];
    assert_eq!(connectors.rtas.check_exception(&mut log), Err(-1));
    let call = (4, vec![0x500, 0, 0x5000_0000, 0]);
    assert_eq!(connectors.rtas.firmware.calls, vec![call; 3]);
}

#[test]
fn a_connector_is_configured_until_the_firmware_has_no_more_answers() {
    let mut connectors = connectors(qemu_answers());
    assert_eq!(configure(&mut connectors), (0, Some(vec![0, 0, 0, 1])));
    assert!(connectors.rtas.firmware.answers.is_empty());
    assert_eq!(connectors.rtas.firmware.configured, [DRC.0]);
}

#[test]
fn without_an_associativity_property_no_list_is_returned() {
    let mut connectors = connectors([(2, None), property(b"reg", &[1]), (0, None)]);
    assert_eq!(configure(&mut connectors), (0, None));
}

#[test]
fn a_busy_configuration_is_continued() {
    for status in [BUSY, 9900, 9905] {
        let mut answers = qemu_answers();
        answers.insert(2, (status, None));
        let mut connectors = connectors(answers);
        assert_eq!(configure(&mut connectors), (status, None));
        assert_eq!(configure(&mut connectors), (0, Some(vec![0, 0, 0, 1])));
        assert_eq!(connectors.rtas.firmware.configured, [DRC.0]);
    }
}

#[test]
fn another_connector_starts_a_new_configuration() {
    let mut connectors = connectors([(BUSY, None), (0, None)]);
    assert_eq!(configure(&mut connectors), (BUSY, None));
    let mut list = [0; MAX_LIST_LEN];
    assert_eq!(connectors.configure(OTHER_CONNECTOR, &mut list), (0, None));
    assert_eq!(connectors.rtas.firmware.configured, [DRC.0, OTHER_CONNECTOR.0]);
}

#[test]
fn an_error_is_passed_on_and_the_next_configuration_starts_anew() {
    for status in [-1, -3, -9003, i32::MIN] {
        let mut answers = vec![(2, None), (status, None)];
        answers.extend(qemu_answers());
        let mut connectors = connectors(answers);
        assert_eq!(configure(&mut connectors), (status, None));
        assert_eq!(configure(&mut connectors), (0, Some(vec![0, 0, 0, 1])));
        assert_eq!(connectors.rtas.firmware.configured, [DRC.0, DRC.0]);
    }
}

#[test]
fn invalid_and_endless_answers_are_errors() {
    let lists: [&[u32]; 3] = [&[], &[4, 1, 2], &[1, 1, 2]];
    for list in lists {
        let mut connectors = connectors([property(b"ibm,associativity", list)]);
        assert_eq!(configure(&mut connectors), (INVALID_ANSWER, None), "{list:?}");
    }
    for status in [5, 100, i32::MAX] {
        let mut connectors = connectors([(status, None)]);
        assert_eq!(configure(&mut connectors), (INVALID_ANSWER, None), "{status}");
    }
    let mut endless = connectors([]);
    endless.rtas.firmware.last_status = Some(2);
    assert_eq!(configure(&mut endless), (INVALID_ANSWER, None));
}

/// The caller refuses a list that is too long.
#[test]
fn a_list_that_is_too_long_is_passed_on_with_its_length() {
    let mut cells = vec![20];
    cells.extend([5; 20]);
    let mut connectors = connectors([property(b"ibm,associativity", &cells), (0, None)]);
    let mut list = [0; MAX_LIST_LEN];
    assert_eq!(connectors.configure(DRC, &mut list), (0, Some(20)));
}
