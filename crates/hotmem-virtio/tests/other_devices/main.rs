//! Drives the model devices of `hotmem-conformance`, which are written from the specification, not for
//! these drivers.

// Tests run on 64-bit machines.
#![allow(clippy::cast_possible_truncation)]

mod balloon_device;
#[allow(dead_code)]
#[path = "../balloon/memory.rs"]
mod balloon_memory;
mod bridge;
#[allow(dead_code)]
#[path = "../mem/memory.rs"]
mod memory;
mod memory_device;
mod random;
#[path = "../../../hotmem-conformance/tests/thread/threaded.rs"]
mod threaded;

use hotmem_conformance::model::Model;
use memory_device as mem;
use threaded::Threaded;

#[test]
fn a_memory_device_is_plugged_to_each_size() {
    mem::follows_each_size(mem::Case::new(Model::memory(None), true));
}

#[test]
fn a_memory_device_is_driven_by_200_random_requests() {
    mem::follows_random_requests(mem::Case::new(Model::memory(None), true), 200);
}

#[test]
fn nothing_is_lost_if_a_memory_devices_driver_ends_at_any_step() {
    mem::survives_a_restart_after_each_step(|| mem::Case::new(Model::memory(None), true));
}

#[test]
fn a_memory_device_on_a_thread_is_plugged_to_each_size() {
    let case = mem::Case::new(Threaded::new(Model::memory(None)), true);
    mem::follows_each_size(case);
}

#[test]
fn a_balloon_is_inflated_to_each_size() {
    balloon_device::follows_each_size(Model::balloon(None));
}

#[test]
fn a_balloon_is_driven_by_200_random_requests() {
    balloon_device::follows_random_requests(Model::balloon(None), 200);
}

#[test]
fn all_memory_comes_back_if_a_balloons_driver_ends_at_any_step() {
    balloon_device::survives_a_restart_after_each_step(|| Model::balloon(None));
}

#[test]
fn a_balloon_on_a_thread_is_inflated_to_each_size() {
    balloon_device::follows_each_size(Threaded::new(Model::balloon(None)));
}

#[test]
fn a_balloon_frees_reported_memory() {
    balloon_device::frees_reported_memory(Model::balloon(None));
}

#[test]
fn a_balloon_gets_the_kernels_statistics() {
    balloon_device::gets_statistics(Model::balloon(None));
}

#[test]
fn a_balloon_gets_hints_of_all_free_memory() {
    balloon_device::gets_hints(Model::balloon(None));
}
