//! Tests of a kernel in C.

use crate::kernel::TestedKernel;
use hotmem::Bytes;
use hotmem_lab::port;

const KERNEL: TestedKernel = TestedKernel(port::C_KERNEL);

#[test]
fn memory_grows_and_shrinks_by_4_gib() {
    KERNEL.grows_and_shrinks(Bytes::gib(4));
}

#[test]
fn a_device_that_is_busy_is_asked_again() {
    KERNEL.recovers_from_a_busy_device();
}

#[test]
fn memory_in_use_is_not_unplugged_until_it_is_freed() {
    KERNEL.keeps_memory_in_use();
}

#[test]
fn free_memory_is_returned_to_the_host() {
    KERNEL.reports_free_memory();
}
