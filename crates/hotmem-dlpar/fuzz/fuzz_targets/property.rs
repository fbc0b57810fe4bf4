//! Reads arbitrary bytes as a device tree property.
//!
//! The ordinary tests run the same harness with corrupted properties.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/trees/fdt.rs"]
mod fdt;
#[path = "../../tests/trees/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::property(bytes));
