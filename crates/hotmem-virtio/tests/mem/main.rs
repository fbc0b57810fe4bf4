//! Tests the driver's state machine for virtio-mem with devices that follow the specification, with
//! devices that do not, and with memory managers that fail.

#![allow(clippy::cast_possible_truncation, reason = "blocks of a few GiB, and values made up")]

#[path = "../common/case_count.rs"]
mod case_count;
mod device;
mod device_deviations;
mod hostile;
mod inconsistent_manager;
mod leftover;
mod memory;
mod random;
mod reachable;
mod refusals;
mod setup;
mod sizes;
