//! Reads a table of persistent memory that the fuzzer makes.
//!
//! The ordinary tests run the same harness with random bytes.
#![no_main]

#[path = "../../tests/nfit/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| script::run(bytes));
