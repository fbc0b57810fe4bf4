//! A virtio-mem device that says anything, from the fuzzer's bytes.
//!
//! The harness is the one that the ordinary tests run with random bytes.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/mem/hostile.rs"]
mod hostile;
#[path = "../../tests/mem/memory.rs"]
mod memory;

libfuzzer_sys::fuzz_target!(|script: &[u8]| hostile::play(script));
