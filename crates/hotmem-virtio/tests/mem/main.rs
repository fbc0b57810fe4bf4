//! Tests the driver's state machine for virtio-mem with devices that follow the specification, with
//! devices that do not, and with memory managers that fail.

#![allow(clippy::cast_possible_truncation, reason = "blocks of a few GiB, and values made up")]

#[path = "../common/cases.rs"]
mod cases;
mod deviations;
mod device;
mod hostile;
mod leftover;
mod manager;
mod memory;
mod random;
mod refusals;
mod sizes;
mod world;
