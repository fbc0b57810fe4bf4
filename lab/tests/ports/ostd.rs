//! Tests of OSTD with Hotmem as its only frame allocator.

use crate::kernel::Kernel;
use hotmem::Bytes;

/// OSTD has 16 MiB of metadata for each GiB up to the end of the device's region.
pub(crate) const OSTD: Kernel = Kernel {
    name: "OSTD",
    image: "ostd/x86_64-unknown-none/release/hotmem-ostd",
    boot_memory: Bytes::mib(512),
    cpus: 1,
};

#[test]
fn segments_are_taken_from_plugged_memory() {
    OSTD.grows_and_shrinks(Bytes::gib(4));
}

/// Of 3 GiB, QEMU puts one above 4 GiB. OSTD maps memory up to the last RAM, and cannot read ACPI's
/// tables where they lie above it.
#[test]
fn boots_without_a_device() {
    let boot_memory = Bytes::gib(3);
    assert_eq!(Kernel { boot_memory, ..OSTD }.boot(true).unwrap(), boot_memory);
}

#[test]
fn free_memory_goes_back_to_the_host() {
    OSTD.reports_free_memory();
}

#[test]
fn memory_in_use_stays_until_it_is_freed() {
    OSTD.keeps_memory_in_use();
}
