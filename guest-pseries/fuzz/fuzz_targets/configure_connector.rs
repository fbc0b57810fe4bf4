//! Runs `ibm,configure-connector` with arbitrary answers of the firmware.
#![no_main]

use hotmem_dlpar::{Connectors, DrcIndex, MAX_LIST_LEN};
use hotmem_guest_pseries::connectors::RtasConnectors;
use hotmem_guest_pseries::rtas::{Firmware, Rtas, Tokens};
use hotmem_guest_pseries::work_area::WorkArea;

/// Firmware whose answers are the fuzzer's bytes: a status, and bytes of the work area.
struct Fuzzed<'a>(&'a [u8]);

impl Firmware for Fuzzed<'_> {
    fn call(&mut self, _: u32, _: &[u32], _: &mut [u32]) {}

    fn configure_connector(&mut self, _: u32, area: &mut WorkArea) -> i32 {
        let Some((&[status, words], rest)) = self.0.split_first_chunk() else { return 0 };
        self.0 = rest;
        for _ in 0..words {
            let Some((&[offset_high, offset_low, value], rest)) = self.0.split_first_chunk() else { break };
            self.0 = rest;
            area.0[usize::from(u16::from_be_bytes([offset_high, offset_low])) % 4096] = value;
        }
        i32::from(status.cast_signed())
    }

    fn check_exception(&mut self, _: u32, _: [u32; 4], _: &mut [u8]) -> i32 {
        1
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let tokens = Tokens {
        set_indicator: 0,
        get_sensor_state: 0,
        configure_connector: 0,
        check_exception: 0,
        power_off: 0,
    };
    let mut area = WorkArea::new();
    let mut connectors = RtasConnectors::new(Rtas::new(Fuzzed(bytes), tokens), &mut area);
    for _ in 0..3 {
        let (status, len) = connectors.configure(DrcIndex(1), &mut [0; MAX_LIST_LEN]);
        assert!(status == 0 || len.is_none());
    }
});
