//! A table of persistent memory, from the fuzzer.
//!
//! The harness is the one that the ordinary tests run with random bytes.
#![no_main]

#[path = "../../tests/nfit/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| script::run(bytes));
