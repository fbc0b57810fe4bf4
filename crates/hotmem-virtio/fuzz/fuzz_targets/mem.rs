//! Simulates a virtio-mem device that behaves arbitrarily, by the fuzzer's bytes.
//!
//! The ordinary tests run the same harness with random bytes.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/mem/hostile.rs"]
mod hostile;
#[path = "../../tests/mem/memory.rs"]
mod memory;

libfuzzer_sys::fuzz_target!(|script: &[u8]| hostile::run_script(script));
