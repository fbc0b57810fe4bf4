//! Runs operations on arbitrary tables and ranges that the fuzzer chooses.
//!
//! The test `hostile` runs the same script with random bytes.
#![no_main]

#[path = "../../tests/hostile/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| script::run(bytes));
