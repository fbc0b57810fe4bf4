//! Tests of the kernel in C with Hotmem as its only frame allocator.

use crate::kernel::{TestedKernel, assert_is_ram_of};
use hotmem::Bytes;
use hotmem_lab::{
    port::{self, Kernel},
    qemu::Config,
};

const KERNEL: TestedKernel = TestedKernel(port::C_KERNEL);

#[test]
fn memory_of_4_gib_is_plugged_used_and_unplugged() {
    KERNEL.plugs_and_unplugs(Bytes::gib(4));
}

/// The boot code maps 4 GiB. Of 3500 MiB, some lie above 4 GiB.
#[test]
fn the_kernel_boots_with_memory_that_the_boot_code_does_not_map() {
    for boot_memory in [Bytes::mib(3500), Bytes::gib(6)] {
        let kernel = TestedKernel(Kernel { boot_memory, ..KERNEL.0 });
        assert_is_ram_of(kernel.boot(true).unwrap(), boot_memory);
    }
}

/// This balloon has only the interface before version 1 of virtio.
#[test]
fn a_device_that_cannot_be_driven_is_refused() {
    let reason = KERNEL.refuses(|config| Config {
        other_device_options: vec!["virtio-balloon-pci,disable-modern=on,disable-legacy=off"],
        ..config
    });
    assert!(reason.contains("not of virtio 1.0"), "{reason}");
}

#[test]
fn requests_to_a_busy_device_are_made_again() {
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
