//! A virtio-balloon device that says anything, from the fuzzer's bytes.
//!
//! The harness is the one that the ordinary tests run with random bytes.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/balloon/hostile.rs"]
mod hostile;
#[path = "../../tests/balloon/memory.rs"]
mod memory;

libfuzzer_sys::fuzz_target!(|script: &[u8]| hostile::play(script));
