//! Tests of the virtio-balloon state machine with devices that follow the specification, devices
//! that do not, and memory managers that fail.

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
mod random;
mod reports;
mod silence;
mod statistics;
mod world;
