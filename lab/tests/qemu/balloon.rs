//! Tests of the balloon device: free page reporting, inflation, deflation and statistics.

use crate::support::{config, wait_for};
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Balloon, Config, Event, Report, Vm},
    resident,
};
use std::{thread, time::Duration};

/// Returns the size that the guest has freed, if the event reports it.
pub(crate) fn freed(event: &Event) -> Option<u64> {
    match *event {
        Event::Freed { bytes, .. } => Some(bytes),
        _ => None,
    }
}

pub(crate) fn reported(event: &Event) -> Option<u64> {
    match *event {
        Event::Reported { bytes, .. } => Some(bytes),
        _ => None,
    }
}

pub(crate) fn reports_queue(event: &Event) -> Option<Option<u16>> {
    match event {
        Event::Balloon { reports_queue, .. } => Some(*reports_queue),
        _ => None,
    }
}

/// Returns a value if the event reports a balloon device with the feature of page poison.
fn has_poison(event: &Event) -> Option<()> {
    const PAGE_POISON: u64 = 1 << 4;
    matches!(event, Event::Balloon { features, .. } if features.0 & PAGE_POISON != 0).then_some(())
}

pub(crate) fn touched(event: &Event) -> Option<u64> {
    match *event {
        Event::Touched { bytes, .. } => Some(bytes),
        _ => None,
    }
}

/// Returns the target and the size of the balloon.
pub(crate) fn inflated(event: &Event) -> Option<(u64, u64)> {
    match *event {
        Event::Inflated { target, held } => Some((target, held)),
        _ => None,
    }
}

/// Waits until the guest reports that the balloon cannot reach its target for `reason`. Reports of
/// other reasons, such as a slow host, are skipped.
fn wait_for_inflation_pending(vm: &mut Vm, reason: &str) {
    let has_reason = |event: &Event| match event {
        Event::InflationPending { reason: found, .. } => (found == reason).then_some(()),
        _ => None,
    };
    vm.wait(reason, has_reason).unwrap();
}

/// Returns the size of the guest's memory outside the balloon, in MiB, as QEMU reports it.
fn guest_mib(vm: &mut Vm) -> u64 {
    let output = vm.query_monitor("info balloon").unwrap();
    let mib = output.trim().strip_prefix("balloon: actual=").and_then(|mib| mib.parse().ok());
    mib.unwrap_or_else(|| panic!("{output}"))
}

/// Waits until the resident memory of QEMU is less than `limit`.
pub(crate) fn wait_until_resident_below(vm: &Vm, limit: Bytes) {
    let is_below = || resident::proportional(vm.pid()).expect("QEMU has ended") < limit;
    wait_for(&format!("less than {limit} resident"), || is_below().then_some(()));
}

#[test]
fn freed_memory_is_reported_without_a_request() {
    let config =
        config(Bytes::ZERO).with_guest_option("work", "256M").with_guest_option("hold", "off");
    let boot_memory = Bytes::mib(512);
    let balloon = Balloon::Reports;
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
    // QEMU's device has a queue for statistics and none for hints. Queues are numbered without
    // gaps.
    assert_eq!(vm.wait("balloon", reports_queue).unwrap().0, Some(3));
    assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(256).0);
    vm.wait("reports", reported).unwrap();
    wait_until_resident_below(&vm, Bytes::mib(150));
}

#[test]
fn the_statistics_have_total_and_free_memory() {
    let (boot_memory, balloon) = (Bytes::mib(256), Balloon::Plain);
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config(Bytes::ZERO) }).unwrap();
    vm.wait("balloon", reports_queue).unwrap();
    let path = "/machine/peripheral/balloon0";
    vm.monitor_line(&format!("qom-set {path} guest-stats-polling-interval 1")).unwrap();
    let (total, free) = wait_for("statistics", || {
        let output = vm.query_monitor(&format!("qom-get {path} guest-stats")).unwrap();
        let value = |name: &str| -> Option<u64> {
            let (_, rest) = output.split_once(&format!("\"{name}\": "))?;
            rest.split([',', '}', '\r', '\n']).next()?.trim().parse().ok()
        };
        // QEMU shows a value with all bits set until the guest has sent the statistic.
        let total = value("stat-total-memory").filter(|&total| total != u64::MAX);
        total.zip(value("stat-free-memory"))
    });
    assert!(Bytes(total) <= boot_memory && total > Bytes::mib(254).0, "{total}");
    assert!(free < total && free > Bytes::mib(230).0, "{free} of {total}");
}

#[test]
fn memory_in_use_by_another_cpu_is_not_reported() {
    // The other CPU's frames have patterns, which the report of a used frame would destroy.
    let config = Config { cpus: 2, ..config(Bytes::gib(1)) };
    let config = config
        .with_touched_memory(Bytes::mib(256))
        .with_guest_option("hold", "off")
        .with_guest_option("churn", "on");
    let config = config.with_guest_option("exit", "resizes:7");
    let balloon = Balloon::Reports;
    let mut vm = Vm::start(&Config { balloon, ..config }).unwrap();
    vm.wait("balloon", reports_queue).unwrap();
    for _ in 0..3 {
        vm.resize(Bytes::gib(1)).unwrap();
        assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(256).0);
        wait_until_resident_below(&vm, Bytes::mib(220));
        vm.resize(Bytes::mib(512)).unwrap();
    }
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

/// The guest reads each frame that it allocates, and fails if the frame is not filled. What is said
/// of zeroes does not count in a guest that fills free memory.
#[test]
fn reported_memory_stays_filled_and_is_discarded_only_if_filled_with_zeros() {
    for (poison, is_discarded) in [(0, true), (0xaaaa_aaaa_u32, false)] {
        let config = config(Bytes::ZERO)
            .with_guest_option("poison", poison)
            .with_guest_option("zero", "reported")
            .with_guest_option("churn", "on");
        let config = config
            .with_guest_option("work", "100M")
            .with_guest_option("work_at", "inflated")
            .with_guest_option("hold", "off");
        let (boot_memory, balloon) = (Bytes::mib(256), Balloon::Reports);
        let mut vm = Vm::start(&Config { cpus: 2, boot_memory, balloon, ..config }).unwrap();
        let ((), _) = vm.wait("poison", has_poison).unwrap();
        vm.wait("reports", reported).unwrap();
        if is_discarded {
            wait_until_resident_below(&vm, Bytes::mib(120));
        } else {
            // QEMU acknowledged the reports and discarded nothing.
            assert!(resident::proportional(vm.pid()).unwrap() > Bytes::mib(250));
        }
        // The guest fills frames from the balloon before it allocates them.
        for mib in [200, 256] {
            vm.monitor_line(&format!("balloon {mib}")).unwrap();
            let size = Bytes::mib(256 - mib).0;
            assert_eq!(vm.wait("balloon", inflated).unwrap().0, (size, size));
        }
        assert_eq!(vm.wait("work", freed).unwrap().0, Bytes::mib(100).0);
    }
}

#[test]
fn without_reports_no_memory_is_returned_to_the_host() {
    // Either the device has no free page reporting, or the guest does not use it.
    for (balloon, reports) in [(Balloon::Plain, "on"), (Balloon::Reports, "off")] {
        let config =
            config(Bytes::ZERO).with_guest_option("work", "256M").with_guest_option("hold", "off");
        let config = config.with_guest_option("reports", reports);
        let boot_memory = Bytes::mib(512);
        let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
        vm.wait("end of the work", freed).unwrap();
        thread::sleep(Duration::from_secs(2));
        assert!(resident::proportional(vm.pid()).unwrap() > Bytes::mib(256), "{balloon:?}");
    }
}

#[test]
fn plugged_memory_is_reported_and_unplugged_while_it_is_reported() {
    let size = Bytes::gib(4);
    let config = config(size).with_touched_memory(Bytes::mib(512)).with_guest_option("hold", "off");
    let config = config.with_guest_option("exit", "resizes:6");
    let balloon = Balloon::Reports;
    let mut vm = Vm::start(&Config { balloon, ..config }).unwrap();
    let device = |event: &Event| matches!(event, Event::Device { .. }).then_some(());
    vm.wait("device", device).unwrap();
    // First, memory is unplugged after all reports.
    vm.resize(size).unwrap();
    assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(512).0);
    vm.wait("reports", reported).unwrap();
    wait_until_resident_below(&vm, Bytes::mib(250));
    vm.resize(Bytes::ZERO).unwrap();
    // Then memory is unplugged shortly before, and shortly after, the guest starts to report it.
    for pause_ms in [100, 480] {
        vm.resize(size).unwrap();
        vm.wait("end of the work", freed).unwrap();
        thread::sleep(Duration::from_millis(pause_ms));
        if pause_ms == 100 {
            vm.resize(Bytes::ZERO).unwrap();
        }
    }
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

#[test]
fn the_balloon_inflates_and_deflates_and_leaves_a_minimum_of_free_memory() {
    let config = config(Bytes::gib(1)).with_guest_option("exit", "size:2M");
    let (boot_memory, balloon) = (Bytes::gib(1), Balloon::Everything);
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
    assert_eq!(vm.wait("balloon", reports_queue).unwrap().0, Some(4));
    // The argument of QEMU's command is the size of the guest's memory outside the balloon. The
    // guest needs more than 1 MiB.
    vm.monitor_line("balloon 1").unwrap();
    wait_for_inflation_pending(&mut vm, "the guest has no free memory above its minimum");
    for mib in [512, 300, 1000, 1024, 300] {
        vm.monitor_line(&format!("balloon {mib}")).unwrap();
        let size = Bytes::mib(1024 - mib).0;
        assert_eq!(vm.wait("balloon", inflated).unwrap().0, (size, size));
        assert_eq!(guest_mib(&mut vm), mib);
    }
    // Memory of the virtio-mem device can be unplugged while it is in the balloon.
    vm.resize(Bytes::gib(1)).unwrap();
    vm.monitor_line("balloon 1024").unwrap();
    vm.wait("balloon", inflated).unwrap();
    vm.monitor_line("balloon 300").unwrap();
    vm.wait("balloon", inflated).unwrap();
    vm.resize(Bytes::ZERO).unwrap();
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn a_run_passes_after_the_balloon_has_reached_the_sizes_that_it_waits_for() {
    let config = config(Bytes::ZERO).with_guest_option("exit", "inflations:2");
    let (boot_memory, balloon) = (Bytes::mib(256), Balloon::Plain);
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
    vm.wait("balloon", reports_queue).unwrap();
    for (mib, number, change) in [(192, 2, "inflate"), (256, 3, "deflate")] {
        vm.monitor_line(&format!("balloon {mib}")).unwrap();
        vm.wait("balloon", inflated).unwrap();
        let point = Report::Passed(format!("{number} - {change} 64MiB"));
        assert_eq!(vm.next_report("point").unwrap(), point);
    }
    vm.finish().unwrap();
}

#[test]
fn a_run_that_waits_for_reports_ends_if_the_device_takes_none() {
    let config = config(Bytes::ZERO).with_guest_option("exit", "reported:2M");
    let mut vm = Vm::start(&Config { balloon: Balloon::Plain, ..config }).unwrap();
    let error = vm.wait("end", |_| None::<()>).unwrap_err().to_string();
    assert!(error.contains("there is no balloon that takes reports of free memory"), "{error}");
}

/// The guest moves and checks each frame that it has touched, so the unplug takes much longer than
/// the balloon's changes.
#[test]
fn the_balloon_changes_its_size_while_touched_memory_is_unplugged() {
    let size = Bytes::mib(512);
    let config = config(size)
        .with_touched_memory(size)
        .with_guest_option("release", "off")
        .with_guest_option("hold", "on")
        .with_guest_option("exit", "size:2M");
    let (boot_memory, balloon) = (Bytes::gib(1), Balloon::Reports);
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
    vm.resize(size).unwrap();
    vm.wait("touching", touched).unwrap();
    vm.request(Bytes::ZERO).unwrap();
    for mib in [1000, 1020, 1010] {
        vm.monitor_line(&format!("balloon {mib}")).unwrap();
        vm.wait("balloon", inflated).unwrap();
    }
    assert!(vm.device_size().unwrap() > Bytes::ZERO, "the balloon waited for the unplug");
    vm.resize(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

/// Starts a guest of 512 MiB. The balloon takes 384 MiB, and then the guest needs 300 MiB for its
/// work. If `hold` is `on`, the guest does not free this memory.
fn start_short_of_memory(balloon: Balloon, hold: &str) -> Vm {
    let config = config(Bytes::ZERO)
        .with_guest_option("work", "300M")
        .with_guest_option("work_at", "inflated");
    let config = config.with_guest_option("hold", hold).with_guest_option("interrupts", "poll");
    let boot_memory = Bytes::mib(512);
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
    vm.monitor_line("balloon 128").unwrap();
    let size = Bytes::mib(384).0;
    assert_eq!(vm.wait("balloon", inflated).unwrap().0, (size, size));
    vm
}

#[test]
fn a_guest_without_free_memory_deflates_the_balloon_by_the_needed_size() {
    for hold in ["on", "off"] {
        deflate_by_needed_size(hold);
    }
}

fn deflate_by_needed_size(hold: &str) {
    let mut vm = start_short_of_memory(Balloon::Everything, hold);
    wait_for_inflation_pending(&mut vm, "the guest needs the memory");
    assert_eq!(vm.wait("work", touched).unwrap().0, Bytes::mib(300).0);
    if hold == "on" {
        let mib = guest_mib(&mut vm);
        assert!((300..350).contains(&mib), "{mib} MiB");
        return;
    }
    // The balloon inflates again when the guest has freed the memory.
    assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(300).0);
    let size = Bytes::mib(384).0;
    assert_eq!(vm.wait("balloon", inflated).unwrap().0, (size, size));
    assert_eq!(guest_mib(&mut vm), 128);
}

/// The guest puts plugged memory online as movable memory, so that only boot memory can hold the words
/// and page tables of 1 TiB. The work and the balloon have all boot memory but less than 2 MiB.
#[test]
fn a_balloon_returns_the_kernel_memory_that_a_plug_lacks() {
    let size = Bytes::gib(1 << 10);
    let config = config(size)
        .with_guest_option("online", "online_movable")
        .with_guest_option("work", "100M")
        .with_guest_option("work_at", "inflated")
        .with_guest_option("hold", "on")
        .with_guest_option("exit", "size:2M");
    let balloon = Balloon::Everything;
    let mut vm = Vm::start(&Config { boot_memory: Bytes::mib(256), balloon, ..config }).unwrap();
    vm.monitor_line("balloon 64").unwrap();
    vm.wait("balloon", inflated).unwrap();
    // The work takes the free memory, and what it lacks from the balloon.
    assert_eq!(vm.wait("work", touched).unwrap().0, Bytes::mib(100).0);
    vm.resize(size).unwrap();
    // The guest ends once the balloon has the requested size.
    vm.monitor_line("balloon 256").unwrap();
    vm.wait("balloon", inflated).unwrap();
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

/// The same for a DIMM, which the guest adds as a whole or refuses.
#[test]
fn a_balloon_returns_the_kernel_memory_that_a_dimm_lacks() {
    let size = Bytes::gib(1 << 10);
    let config = config(Bytes::ZERO)
        .with_guest_option("online", "online_movable")
        .with_guest_option("work", "100M")
        .with_guest_option("work_at", "inflated")
        .with_guest_option("hold", "on");
    let (boot_memory, balloon) = (Bytes::mib(256), Balloon::Everything);
    let max_memory = Some(size + Bytes::gib(4));
    let config = Config { nodes: vec![boot_memory], max_memory, balloon, ..config };
    let mut vm = Vm::start(&Config { boot_memory, ..config }).unwrap();
    vm.monitor_line("balloon 64").unwrap();
    vm.wait("balloon", inflated).unwrap();
    assert_eq!(vm.wait("work", touched).unwrap().0, Bytes::mib(100).0);
    vm.insert_dimm("0", size, 0).unwrap();
    let outcome = |event: &Event| match event {
        Event::DimmAdded { size, .. } => Some(Ok(*size)),
        Event::DimmRefused { why, .. } => Some(Err(why.clone())),
        _ => None,
    };
    assert_eq!(vm.wait("outcome of the insertion", outcome).unwrap().0, Ok(size.0));
}

/// A balloon that may not deflate cannot help, and the host is told so.
#[test]
fn a_dimm_is_refused_if_the_balloon_may_not_return_the_kernel_memory_that_it_lacks() {
    let size = Bytes::gib(1 << 10);
    let config = config(Bytes::ZERO).with_guest_option("work", "200M");
    let config = config.with_guest_option("work_at", "inflated").with_guest_option("hold", "on");
    let (boot_memory, balloon) = (Bytes::mib(256), Balloon::Reports);
    let max_memory = Some(size + Bytes::gib(4));
    let config = Config { nodes: vec![boot_memory], max_memory, balloon, ..config };
    let mut vm = Vm::start(&Config { boot_memory, ..config }).unwrap();
    vm.monitor_line("balloon 128").unwrap();
    vm.wait("balloon", inflated).unwrap();
    vm.wait("work", touched).unwrap();
    vm.insert_dimm("0", size, 0).unwrap();
    let refused = |event: &Event| match event {
        Event::DimmRefused { why, .. } => Some(why.clone()),
        _ => None,
    };
    let (why, _) = vm.wait("refusal of a DIMM", refused).unwrap();
    assert!(why.contains("memory"), "{why}");
}

#[test]
fn a_guest_that_may_not_deflate_the_balloon_uses_the_remaining_memory() {
    let mut vm = start_short_of_memory(Balloon::Reports, "off");
    let (bytes, _) = vm.wait("work", touched).unwrap();
    assert!((Bytes::mib(100).0..Bytes::mib(128).0).contains(&bytes), "{bytes}");
    assert_eq!(guest_mib(&mut vm), 128);
}
