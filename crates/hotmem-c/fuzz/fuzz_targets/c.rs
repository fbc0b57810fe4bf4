//! Drives the C interface with arbitrary calls, chosen by the fuzzer's bytes.
//!
//! The ordinary tests run the same harness with random bytes.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/arbitrary/calls.rs"]
mod calls;
#[path = "../../tests/arbitrary/documented.rs"]
mod documented;
#[path = "../../tests/c_api/instance.rs"]
mod instance;

libfuzzer_sys::fuzz_target!(|script: &[u8]| calls::run_script(script));
