//! Tests the driver's state machine for virtio-balloon with devices that follow the specification,
//! with devices that do not, and with memory managers that fail.

// Tests run on 64-bit machines.
#![allow(clippy::cast_possible_truncation)]

#[path = "../common/case_count.rs"]
mod case_count;
mod device;
mod engine;
mod hints;
mod hostile;
mod inflation;
mod initialised;
mod memory;
mod no_answer;
mod random;
mod reports;
mod setup;
mod statistics;
