//! Tests of machines on which the guest cannot run. The guest reports the reason and ends.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Error, Event, Vm};

/// Returns the reason why the guest gave up on this machine.
fn refusal(config: &Config) -> String {
    let result =
        Vm::start(config).and_then(|mut vm| vm.wait("event that does not occur", |_| None::<()>));
    match result.unwrap_err() {
        Error::BailOut(reason) => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn a_cpu_without_64_bit_mode_is_refused() {
    // Neither CPU has 64-bit mode. Only one of them has the CPUID leaf that reports this.
    for cpu in ["pentium3", "qemu32"] {
        let reason = refusal(&Config { cpu: Some(cpu), ..config(Bytes::ZERO) });
        assert_eq!(reason, "boot: the CPU has no 64-bit mode", "{cpu}");
    }
}

#[test]
fn the_guest_boots_on_a_64_bit_cpu_without_optional_features() {
    let cpu = Some("qemu64,-sse3,-cx16,-nx,-syscall");
    let config = Config { cpu, ..config(Bytes::ZERO).with_guest_option("exit", "boot") };
    let mut vm = Vm::start(&config).unwrap();
    let boot = |event: &Event| matches!(event, Event::Boot { .. }).then_some(());
    vm.wait("boot", boot).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_device_that_uses_an_iommu_is_refused_with_the_reason() {
    for device in ["virtio-rng-pci", "virtio-balloon-pci"] {
        let option: &str = format!("{device},disable-legacy=on,iommu_platform=on").leak();
        let config = Config { other_device_options: vec![option], ..config(Bytes::ZERO) };
        let reason = refusal(&config);
        assert!(reason.contains("ACCESS_PLATFORM"), "{device}: {reason}");
    }
}
