//! Reads a table of processors that the fuzzer makes.
//!
//! The ordinary tests run the same harness with random bytes.
#![no_main]

#[path = "../../tests/mp_table/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| script::run(bytes));
