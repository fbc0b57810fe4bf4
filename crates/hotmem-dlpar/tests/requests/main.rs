//! Tests requests on complete machines: their effects, their refusals, and that a failed request
//! restores the machine.
#![allow(clippy::cast_possible_truncation, reason = "the tests truncate only values that fit")]

mod abandoned;
mod basic;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod online;
mod other_instance;
mod qemu;
mod qemu_faults;
mod random;
mod repetition;
mod world;
