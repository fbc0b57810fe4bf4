//! Tests that the reference guest checks QEMU's devices over PCI and over MMIO, and finds what the adapter
//! of `hotmem-conformance` for QEMU finds without a guest.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::conformance::Results;
use hotmem_lab::qemu::{Balloon, Config, Transport, Vm};

const MEMORY: &str = include_str!("conformance/memory.txt");
const BALLOON: &str = include_str!("conformance/balloon.txt");
const UNMAPPED: &str = include_str!("conformance/unmapped.txt");
/// The size of the memory device's region, which has 64 blocks.
const REGION: Bytes = Bytes::mib(128);

/// Checks the device. At most `skipped` points may be skipped.
fn check(device: &str, config: Config, expected: &str, points: usize, skipped: usize) {
    let config = config.with_guest_option("check", device);
    let mut vm = Vm::start(&config).unwrap();
    let results = Results::collect(&mut vm, config.boot_memory).unwrap();
    assert_eq!(results.differences(expected), [""; 0]);
    let counts = results.counts();
    assert_eq!(counts.iter().sum::<usize>(), points, "{results:?}");
    assert!(counts[2] <= skipped, "{results:#?}");
}

#[test]
fn a_guest_checks_the_memory_device_over_pci() {
    check("memory", config(REGION), MEMORY, 54, 4);
}

#[test]
fn a_guest_checks_the_memory_device_over_mmio() {
    let config = config(REGION);
    let config = Config { machine: "microvm,acpi=off", transport: Transport::Mmio, ..config };
    check("memory", config, &format!("{MEMORY}{UNMAPPED}"), 54, 4);
}

#[test]
fn a_guest_checks_the_balloon_over_pci() {
    let config = Config { balloon: Balloon::Everything, ..config(Bytes::ZERO) };
    check("balloon", config, BALLOON, 23, 6);
}
