//! Tests the driver's state machine for virtio-balloon with devices that follow the specification,
//! with devices that do not, and with memory managers that fail.

// Tests run on 64-bit machines.
#![allow(clippy::cast_possible_truncation)]

mod balloon;
#[path = "../common/cases.rs"]
mod cases;
mod device;
mod engine;
mod hints;
mod hostile;
mod memory;
mod no_answer;
mod random;
mod reports;
mod statistics;
mod world;
