//! A long random test that compares the engine with a naive model. In the model, each frame is an
//! entry of a vector, and every query walks all of them.
//!
//! `HOTMEM_OPERATIONS` sets the number of operations, `HOTMEM_SEED` replays a run, and
//! `HOTMEM_TRACE=1` prints each operation.

#![allow(
    clippy::cast_possible_truncation,
    reason = "the frame numbers of these machines are small"
)]

mod allocate;
mod compare;
mod descriptors;
mod device;
mod kernel;
mod lifecycle;
mod listeners;
mod long_requests;
mod machine;
mod memory_blocks;
mod model;
mod model_request;
mod poison;
mod policy;
mod profile;
mod refused_calls;
mod remove;
mod remove_all;
mod report;
mod thousands;
mod tokens;
mod words;
mod zone_scans;

use hotmem_testkit::env_number;
use machine::Machine;

/// The numbers of operations, without and with `HOTMEM_DEEP`.
const OPERATIONS: [u64; 2] = match (cfg!(miri), cfg!(hotmem_geometry = "small")) {
    (true, _) => [40, 800],
    (_, true) => [100_000, 20_000_000],
    (_, false) => [5_000, 100_000],
};
/// The number of operations on a machine before a new one with another memory map and another
/// profile boots.
const OPERATIONS_PER_MACHINE: u64 = if cfg!(hotmem_geometry = "small") { 20_000 } else { 1000 };

#[test]
fn random_operations_agree_with_the_model() {
    let [usual, deep] = OPERATIONS;
    let default = if env_number("HOTMEM_DEEP").is_some() { deep } else { usual };
    let operations = env_number("HOTMEM_OPERATIONS").unwrap_or(default);
    let first_seed = env_number("HOTMEM_SEED").unwrap_or(0x5eed);
    let (mut operations_left, mut machines_booted) = (operations, 0);
    for seed in first_seed.. {
        if operations_left == 0 {
            break;
        }
        let operations_now = operations_left.min(OPERATIONS_PER_MACHINE);
        machines_booted += u64::from(Machine::run(seed, operations_now));
        operations_left -= operations_now;
    }
    let violations = hotmem::violated_invariants();
    assert_eq!(violations.count, 0, "{violations:?}");
    assert!(machines_booted > 0);
}
