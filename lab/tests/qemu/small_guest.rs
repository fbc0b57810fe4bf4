//! Tests a guest of 32 MiB with a device whose region is nearly as large as the physical address
//! space.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::Config;

#[test]
fn a_guest_of_32_mib_plugs_a_part_of_a_device_of_62_tib() {
    let small = Bytes::mib(32);
    let config = Config { boot_memory: small, ..config(Bytes::gib(62 << 10)) };
    let mut vm = start(&config.with_guest_option("exit", "size:512M"));
    for target in [Bytes::mib(2), Bytes::gib(1), Bytes::ZERO, Bytes::gib(3)] {
        vm.resize_checked(target);
    }
    let written = vm.finish(Bytes::mib(512));
    assert!(written <= Bytes(256 << 10), "{written} of metadata for 3 GiB");
}
