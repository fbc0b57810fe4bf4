//! Tests requests on complete machines: their effects, their refusals, and that a failed request
//! restores the machine.
#![allow(clippy::cast_possible_truncation, reason = "the tests truncate only values that fit")]

mod abandoned_requests;
mod anew;
mod basic;
#[path = "../common/mod.rs"]
mod common;
mod cuts;
mod faults;
mod kernel;
mod offline_memory;
mod online_types;
mod other_instance;
mod own_descriptors;
mod partition;
mod qemu_faults;
mod qemu_rules;
mod random;
mod retries;
mod snapshot;
mod unknown_nodes;
