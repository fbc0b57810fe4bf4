//! Tests that devices interrupt the guest by MSI-X or by their interrupt line, and that an idle
//! guest halts.

use crate::support::{
    EntropyAnswer, Machine, config, start, start_with_interrupts, wait_for, wait_for_entropy,
};
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Config, Vm},
    resident::cpu_time,
};
use std::{thread, time::Duration};

/// Resizes until an interrupt announces a request. Several resizes are made, because the guest may
/// find a request by polling just before the interrupt.
fn is_interrupted(vm: &mut Machine) -> bool {
    (1..=64).any(|n| vm.resize_checked(Bytes::gib(n)).interrupted)
}

#[test]
fn a_virtio_mem_device_interrupts_or_is_polled() {
    // A virtio-mem device without MSI-X interrupts by its interrupt line.
    for (mode, expected) in
        [("msix", &["msix", "intx"][..]), ("intx", &["intx"]), ("poll", &["poll"])]
    {
        let (mut vm, interrupts) =
            start_with_interrupts(&config(Bytes::gib(64)).with_guest_option("interrupts", mode));
        assert!(expected.contains(&interrupts.as_str()), "{mode}: {interrupts}");
        if mode == "poll" {
            assert!((1..=5).all(|n| !vm.resize_checked(Bytes::gib(n)).interrupted));
        } else {
            assert!(is_interrupted(&mut vm), "{mode}");
        }
        assert_idle(vm.pid());
    }
}

/// Returns the PCI command register of device 0 behind the first root port. QEMU's q35 maps the
/// configuration space at this address.
fn command_register(vm: &mut Vm) -> u32 {
    let output = vm.query_monitor("xp /1wx 0xb0100004").unwrap();
    let word =
        output.trim().rsplit("0x").next().and_then(|word| u32::from_str_radix(word, 16).ok());
    word.unwrap_or_else(|| panic!("{output}")) & 0xffff
}

#[test]
fn the_interrupt_line_is_disabled_in_pci_if_the_guest_polls() {
    const INTERRUPT_DISABLE: u32 = 1 << 10;
    for (mode, disabled) in [("intx", 0), ("poll", INTERRUPT_DISABLE)] {
        let (mut vm, interrupts) =
            start_with_interrupts(&config(Bytes::gib(1)).with_guest_option("interrupts", mode));
        assert_eq!(interrupts, mode);
        assert_eq!(command_register(&mut vm) & INTERRUPT_DISABLE, disabled, "{mode}");
        vm.resize_checked(Bytes::gib(1));
    }
}

#[test]
fn an_idle_guest_halts() {
    let mut vm = start(&config(Bytes::gib(64)));
    assert_idle(vm.pid());
    vm.resize_checked(Bytes::gib(64));
    assert_idle(vm.pid());
}

#[test]
fn a_device_with_msix_interrupts_in_the_requested_mode() {
    for mode in ["msix", "intx", "poll"] {
        let config = config(Bytes::ZERO)
            .with_guest_option("interrupts", mode)
            .with_guest_option("exit", "size:0");
        let mut vm =
            Vm::start(&Config { other_device_options: vec!["virtio-rng-pci"], ..config }).unwrap();
        let EntropyAnswer { interrupts, interrupted, bytes, .. } = wait_for_entropy(&mut vm);
        assert_eq!((interrupts.as_str(), interrupted, bytes), (mode, mode != "poll", 64));
        vm.finish().unwrap();
    }
}

/// Waits until QEMU uses less than a tenth of a CPU for three seconds. A guest that does not halt
/// uses all of a CPU. On an idle host, QEMU uses 0.3 % of a CPU, and 1.3 % if the guest polls.
fn assert_idle(qemu: u32) {
    let period = Duration::from_secs(3);
    wait_for("idle guest", || {
        let before = cpu_time(qemu).unwrap();
        thread::sleep(period);
        let used = cpu_time(qemu).unwrap() - before;
        (used < period / 10).then_some(())
    });
}
