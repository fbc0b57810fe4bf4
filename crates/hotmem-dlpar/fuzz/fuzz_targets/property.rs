//! A property of any bytes, from the fuzzer.
//!
//! The harness is the one that the ordinary tests run with spoilt ones.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/trees/fdt.rs"]
mod fdt;
#[path = "../../tests/trees/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::property(bytes));
