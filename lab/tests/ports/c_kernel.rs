//! Tests of a kernel in C.

use crate::kernel::Tried;
use hotmem::Bytes;
use hotmem_lab::port;

const KERNEL: Tried = Tried(port::C_KERNEL);

#[test]
fn grows_by_4_gib_and_gives_them_back() {
    KERNEL.grows_and_shrinks(Bytes::gib(4));
}

#[test]
fn a_device_that_is_busy_is_asked_again() {
    KERNEL.recovers_from_a_busy_device();
}

#[test]
fn memory_in_use_stays_until_it_is_freed() {
    KERNEL.keeps_memory_in_use();
}

#[test]
fn free_memory_goes_back_to_the_host() {
    KERNEL.reports_free_memory();
}
