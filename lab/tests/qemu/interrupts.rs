//! Tests of how devices interrupt the guest, and that the guest halts while there is nothing to do.

use crate::support::{Machine, config, start, start_and_see, wait_for};
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Config, Event, Vm},
    resident::cpu_time,
};
use std::{thread, time::Duration};

/// Resizes until a request was announced by an interrupt. The guest may find a request by polling
/// just before the interrupt, so a single resize proves nothing.
fn sees_an_interrupt(vm: &mut Machine) -> bool {
    (1..=64).any(|n| vm.resize_checked(Bytes::gib(n)).interrupted)
}

#[test]
fn virtio_mem_interrupts_by_its_line_or_is_polled() {
    // A virtio-mem device without MSI-X interrupts by its line.
    for (mode, expected) in
        [("msix", &["msix", "intx"][..]), ("intx", &["intx"]), ("poll", &["poll"])]
    {
        let (mut vm, interrupts) = start_and_see(&config(Bytes::gib(64)).with("interrupts", mode));
        assert!(expected.contains(&interrupts.as_str()), "{mode}: {interrupts}");
        if mode == "poll" {
            assert!((1..=5).all(|n| !vm.resize_checked(Bytes::gib(n)).interrupted));
        } else {
            assert!(sees_an_interrupt(&mut vm), "{mode}");
        }
        assert_idle(vm.pid());
    }
}

/// Returns the PCI command register of device 0 behind the first root port. QEMU's q35 maps the
/// configuration space at this address.
fn command_register(vm: &mut Vm) -> u32 {
    let says = vm.ask_monitor("xp /1wx 0xb0100004").unwrap();
    let word = says.trim().rsplit("0x").next().and_then(|word| u32::from_str_radix(word, 16).ok());
    word.unwrap_or_else(|| panic!("{says}")) & 0xffff
}

#[test]
fn a_device_may_use_its_line_only_if_that_is_how_it_interrupts() {
    const INTERRUPT_DISABLE: u32 = 1 << 10;
    for (mode, disabled) in [("intx", 0), ("poll", INTERRUPT_DISABLE)] {
        let (mut vm, interrupts) = start_and_see(&config(Bytes::gib(1)).with("interrupts", mode));
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
fn a_device_that_supports_msix_interrupts_by_messages() {
    for mode in ["msix", "intx", "poll"] {
        let config = config(Bytes::ZERO).with("interrupts", mode).with("exit", "size:0");
        let mut vm =
            Vm::start(&Config { other_devices: vec!["virtio-rng-pci"], ..config }).unwrap();
        let answer = |event: &Event| match event {
            Event::Entropy { interrupts, interrupted, bytes, .. } => {
                Some((interrupts.clone(), *interrupted, *bytes))
            }
            _ => None,
        };
        let (answer, _) = vm.wait("answer", answer).unwrap();
        assert_eq!(answer, (mode.to_owned(), mode != "poll", 64));
        vm.finish().unwrap();
    }
}

/// Fails unless QEMU comes to use less than a tenth of a CPU while its guest has nothing to do. A
/// guest that does not halt keeps one CPU busy. On an idle host 0.3 % are usual, and 1.3 % where
/// the guest polls.
fn assert_idle(qemu: u32) {
    let period = Duration::from_secs(3);
    wait_for("idleness", || {
        let before = cpu_time(qemu).unwrap();
        thread::sleep(period);
        let used = cpu_time(qemu).unwrap() - before;
        (used < period / 10).then_some(())
    });
}
