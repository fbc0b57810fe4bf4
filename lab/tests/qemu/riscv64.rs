//! Tests of the guest on QEMU's machine for riscv64. `cargo xtask test` skips them, and says so, where
//! QEMU has no such machine. QEMU has no virtio-mem device there.

mod sv48;

use crate::support::{
    EntropyAnswer, check_that_overflows_are_reported, reason_for_giving_up, wait_for_entropy,
    wait_for_touched,
};
use hotmem::Bytes;
use hotmem_lab::patience;
use hotmem_lab::qemu::{Architecture, Balloon, Config, Event, Transport, Vm, image};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    image::find_for(Architecture::Riscv64, None).expect("the guest could not be built")
});

/// Returns a machine with 128 MiB of boot memory, and `late` more that the guest adds after boot.
fn config(late: Bytes) -> Config {
    Config { patience: patience(), ..Config::riscv64(IMAGE.clone(), late) }
}

#[test]
fn memory_that_the_engine_was_not_told_of_is_added_used_removed_and_added_again() {
    let (late, touched) = (Bytes::gib(2), Bytes::mib(64));
    let config = config(late).with_touched_memory(touched).with_guest_option("exit", "resizes:3");
    // The descriptors of all frames are checked at the end.
    let config = config.with_guest_option("descriptors", 64);
    let mut vm = Vm::start(&config).unwrap();
    let boot = |event: &Event| match *event {
        Event::Boot { boot_memory, .. } => Some(boot_memory),
        _ => None,
    };
    // The memory map lacks the late memory.
    assert_eq!(vm.wait("boot", boot).unwrap().0, config.boot_memory.0);
    for is_removal in [false, true, false] {
        let change = |event: &Event| match *event {
            Event::LateAdded { size, online, .. } if !is_removal => Some((size, online)),
            Event::LateRemoved { size, online, .. } if is_removal => Some((size, online)),
            _ => None,
        };
        let present = if is_removal { Bytes::ZERO } else { late };
        let (changed, _) = vm.wait("change of the memory", change).unwrap();
        assert_eq!(changed, (late.0, (config.boot_memory + present).0));
        if !is_removal {
            assert_eq!(wait_for_touched(&mut vm), touched);
        }
    }
    vm.finish().unwrap();
}

#[test]
fn more_late_memory_than_the_machine_has_is_refused_by_name() {
    let config = Config { late_memory: Bytes::ZERO, ..config(Bytes::gib(1)) };
    let reason = reason_for_giving_up(&config);
    assert!(reason.contains("there are no 1GiB of RAM that nothing uses"), "{reason}");
}

#[test]
fn four_cpus_share_no_frame_while_memory_is_added_and_removed() {
    let config = config(Bytes::gib(1)).with_guest_option("churn", "on");
    let config = Config { cpus: 4, ..config.with_guest_option("exit", "resizes:8") };
    Vm::start(&config).unwrap().finish().unwrap();
}

#[test]
fn freed_memory_is_reported_to_the_balloon() {
    let config = config(Bytes::gib(1)).with_touched_memory(Bytes::mib(64));
    let config = config.with_guest_option("hold", "off").with_guest_option("exit", "never");
    let mut vm = Vm::start(&Config { balloon: Balloon::Reports, ..config }).unwrap();
    vm.wait("freed memory", |event| matches!(event, Event::Freed { .. }).then_some(())).unwrap();
    vm.wait("reports", |event| matches!(event, Event::Reported { .. }).then_some(())).unwrap();
}

/// Returns how a device that answers one request interrupts, and whether it has interrupted.
fn interrupts_of(devices: Vec<&'static str>) -> (String, bool) {
    let config = config(Bytes::ZERO).with_guest_option("exit", "size:0");
    let mut vm = Vm::start(&Config { other_device_options: devices, ..config }).unwrap();
    let EntropyAnswer { interrupts, interrupted, .. } = wait_for_entropy(&mut vm);
    vm.finish().unwrap();
    (interrupts, interrupted)
}

#[test]
fn a_device_interrupts_by_its_line() {
    let expected = || ("intx".into(), true);
    assert_eq!(interrupts_of(vec!["virtio-rng-pci"]), expected());
    for port in ["pcie-root-port,id=bridge,addr=1", "pcie-root-port,id=bridge,addr=6"] {
        assert_eq!(interrupts_of(vec![port, "virtio-rng-pci,bus=bridge"]), expected(), "{port}");
    }
}

/// The device tree lists QEMU's places for devices on MMIO. QEMU puts the first device into the last one.
#[test]
fn a_device_on_mmio_interrupts_by_its_line() {
    let config = config(Bytes::ZERO).with_guest_option("exit", "size:0");
    let devices = vec!["virtio-rng-device"];
    let config = Config { transport: Transport::Mmio, other_device_options: devices, ..config };
    let mut vm = Vm::start(&config).unwrap();
    let answer = wait_for_entropy(&mut vm);
    assert_eq!((answer.transport.as_str(), answer.interrupted), ("mmio", true));
    vm.finish().unwrap();
}

/// The balloon's queue of hints needs an I/O thread of QEMU.
#[test]
fn a_balloon_with_reports_and_hints_is_driven() {
    let config = config(Bytes::ZERO).with_guest_option("exit", "size:0");
    let mut vm = Vm::start(&Config { balloon: Balloon::Everything, ..config }).unwrap();
    let features = |event: &Event| match *event {
        Event::Balloon { features, reports_queue, .. } => Some((features, reports_queue)),
        _ => None,
    };
    let ((features, reports_queue), _) = vm.wait("balloon", features).unwrap();
    const HINTS: u64 = 1 << 3;
    const REPORTS: u64 = 1 << 5;
    assert_eq!(features.0 & (HINTS | REPORTS), HINTS | REPORTS);
    assert!(reports_queue.is_some());
    vm.finish().unwrap();
}

#[test]
fn an_overflow_of_a_cpus_stack_ends_the_run_with_that_reason() {
    check_that_overflows_are_reported(&config(Bytes::mib(128)));
}

/// Makes an image that the loader puts at a multiple of 2 MiB: a jump to the kernel's image, 4 KiB behind.
#[test]
fn an_image_that_is_not_at_a_multiple_of_2_mib_is_refused_by_name() {
    const JUMP_BY_4_KIB: u32 = 0x106f;
    let mut bytes = vec![0; 4 << 10];
    bytes[..4].copy_from_slice(&JUMP_BY_4_KIB.to_le_bytes());
    bytes.extend(fs::read(&*IMAGE).unwrap());
    let path = std::env::temp_dir().join(format!("hotmem-misplaced-{}", std::process::id()));
    fs::write(&path, bytes).unwrap();
    let config = Config { kernel: path.clone(), ..config(Bytes::ZERO) };
    let reason = reason_for_giving_up(&config);
    fs::remove_file(&path).unwrap();
    assert!(reason.contains("not put the image at a multiple of 2 MiB"), "{reason}");
}

#[test]
fn an_option_that_needs_nmis_is_refused_by_name() {
    let reason = reason_for_giving_up(&config(Bytes::mib(128)).with_guest_option("nmis", "on"));
    assert!(reason.contains("the kernel has no NMIs on riscv64"), "{reason}");
}

#[test]
fn the_command_vm_says_that_the_memory_was_there_from_the_start() {
    LazyLock::force(&IMAGE);
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmem"));
    let output =
        command.args(["vm", "--arch", "riscv64", "--plug", "1G", "--unplug"]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["guest of 128M", "1G more from the start", "add", "remove", "PASS"] {
        assert!(stdout.contains(part), "no `{part}` in\n{stdout}");
    }
}

#[test]
fn the_command_vm_waits_until_the_balloon_has_reported_freed_memory() {
    LazyLock::force(&IMAGE);
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmem"));
    command.args(["vm", "--arch", "riscv64", "--plug", "1G", "--touch", "64M"]);
    let output = command.args(["--balloon", "--unplug"]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["give back", "remove", "resident on the host", "PASS"] {
        assert!(stdout.contains(part), "no `{part}` in\n{stdout}");
    }
}
