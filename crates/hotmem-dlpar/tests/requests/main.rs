//! Tests of requests on whole machines: their effects, their refusals, and that failures restore
//! the machine.
#![allow(clippy::cast_possible_truncation, reason = "values of a test's own making")]

mod again;
#[path = "../common/mod.rs"]
mod common;
mod dropped;
mod elsewhere;
mod faults;
mod online;
mod plain;
mod qemu;
mod qemu_faults;
mod random;
mod world;
