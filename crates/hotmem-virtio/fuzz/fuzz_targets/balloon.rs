//! Simulates a virtio-balloon device that behaves arbitrarily, by the fuzzer's bytes.
//!
//! The ordinary tests run the same harness with random bytes.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/balloon/hostile.rs"]
mod hostile;
#[path = "../../tests/balloon/memory.rs"]
mod memory;

libfuzzer_sys::fuzz_target!(|script: &[u8]| hostile::run_script(script));
