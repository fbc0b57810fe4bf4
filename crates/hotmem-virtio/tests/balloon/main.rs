//! The virtio-balloon state machine against devices that follow the specification, devices that do
//! not, and memory managers with troubles of their own.

// Tests run where a usize has 64 bits.
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
