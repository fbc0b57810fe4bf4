//! Checks points with a device that behaves arbitrarily, by the fuzzer's bytes.
//!
//! The ordinary tests run the same harness with random bytes.
#![no_main]

#[path = "../../tests/hostile/erratic.rs"]
mod erratic;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((&point, script)) = bytes.split_first() {
        erratic::run_script(point, script);
    }
});
