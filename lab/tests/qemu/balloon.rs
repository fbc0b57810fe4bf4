//! Tests of the balloon device: free-page reporting, inflating and deflating.

use crate::support::{config, wait_for};
use hotmem::Bytes;
use hotmem_lab::{
    qemu::{Balloon, Config, Event, Vm},
    resident,
};
use std::{thread, time::Duration};

pub(crate) fn freed(event: &Event) -> Option<u64> {
    match *event {
        Event::Freed { bytes, .. } => Some(bytes),
        _ => None,
    }
}

fn reported(event: &Event) -> Option<u64> {
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

fn has_poison(event: &Event) -> Option<()> {
    const PAGE_POISON: u64 = 1 << 4;
    matches!(event, Event::Balloon { features, .. } if features & PAGE_POISON != 0).then_some(())
}

pub(crate) fn touched(event: &Event) -> Option<u64> {
    match *event {
        Event::Touched { bytes, .. } => Some(bytes),
        _ => None,
    }
}

/// Returns the balloon's target and its size.
fn inflated(event: &Event) -> Option<(u64, u64)> {
    match *event {
        Event::Inflated { target, held } => Some((target, held)),
        _ => None,
    }
}

/// Waits until the guest reports that this reason keeps the balloon below its target. Other
/// reasons, such as a slow host, are skipped.
fn wait_until_kept_from_inflating(vm: &mut Vm, reason: &str) {
    let kept = |event: &Event| match event {
        Event::InflationPending { why, .. } => (why == reason).then_some(()),
        _ => None,
    };
    vm.wait(reason, kept).unwrap();
}

/// Returns the memory that the balloon leaves to the guest, in MiB, as QEMU reports it.
fn left_by_balloon(vm: &mut Vm) -> u64 {
    let says = vm.ask_monitor("info balloon").unwrap();
    let left = says.trim().strip_prefix("balloon: actual=").and_then(|left| left.parse().ok());
    left.unwrap_or_else(|| panic!("{says}"))
}

/// Waits until the resident memory of the guest's QEMU is less than this.
pub(crate) fn shrinks_to(vm: &Vm, most: Bytes) {
    let holds_less = || resident::proportional(vm.pid()).expect("QEMU runs") < most;
    wait_for(&format!("less than {most} held"), || holds_less().then_some(()));
}

#[test]
fn freed_memory_is_reported_without_a_request() {
    let config = config(Bytes::ZERO).with("work", "256M").with("hold", "off");
    let boot_memory = Bytes::mib(512);
    let balloon = Balloon::Reports;
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
    // QEMU offers statistics, and hints are off here. The numbers of the queues have no gaps.
    assert_eq!(vm.wait("balloon", reports_queue).unwrap().0, Some(3));
    assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(256).0);
    vm.wait("reports", reported).unwrap();
    shrinks_to(&vm, Bytes::mib(150));
}

#[test]
fn the_balloon_reports_total_and_free_memory() {
    let (boot_memory, balloon) = (Bytes::mib(256), Balloon::Plain);
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config(Bytes::ZERO) }).unwrap();
    vm.wait("balloon", reports_queue).unwrap();
    let path = "/machine/peripheral/balloon0";
    vm.monitor_line(&format!("qom-set {path} guest-stats-polling-interval 1")).unwrap();
    let (total, free) = wait_for("statistics", || {
        let says = vm.ask_monitor(&format!("qom-get {path} guest-stats")).unwrap();
        let value = |name: &str| -> Option<u64> {
            let (_, rest) = says.split_once(&format!("\"{name}\": "))?;
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
fn memory_in_use_by_another_cpu_is_never_reported() {
    // The other CPU's frames hold patterns, which a wrong report would destroy.
    let config = Config { cpus: 2, ..config(Bytes::gib(1)) };
    let config = config.touching(Bytes::mib(256)).with("hold", "off").with("churn", "on");
    let config = config.with("exit", "resizes:7");
    let balloon = Balloon::Reports;
    let mut vm = Vm::start(&Config { balloon, ..config }).unwrap();
    vm.wait("balloon", reports_queue).unwrap();
    for _ in 0..3 {
        vm.resize(Bytes::gib(1)).unwrap();
        assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(256).0);
        shrinks_to(&vm, Bytes::mib(220));
        vm.resize(Bytes::mib(512)).unwrap();
    }
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

#[test]
fn memory_stays_filled_and_qemu_discards_only_zeros() {
    for (poison, discards) in [(0, true), (0xaaaa_aaaa_u32, false)] {
        let config = config(Bytes::ZERO).with("poison", poison).with("churn", "on");
        let config = config.with("work", "100M").with("work_at", "inflated").with("hold", "off");
        let (boot_memory, balloon) = (Bytes::mib(256), Balloon::Reports);
        let mut vm = Vm::start(&Config { cpus: 2, boot_memory, balloon, ..config }).unwrap();
        let ((), _) = vm.wait("poison", has_poison).unwrap();
        vm.wait("reports", reported).unwrap();
        if discards {
            shrinks_to(&vm, Bytes::mib(120));
        } else {
            // QEMU took the reports and discarded nothing.
            assert!(resident::proportional(vm.pid()).unwrap() > Bytes::mib(250));
        }
        // The guest fills frames that leave the balloon before it allocates them.
        for left in [200, 256] {
            vm.monitor_line(&format!("balloon {left}")).unwrap();
            let taken = Bytes::mib(256 - left).0;
            assert_eq!(vm.wait("balloon", inflated).unwrap().0, (taken, taken));
        }
        assert_eq!(vm.wait("work", freed).unwrap().0, Bytes::mib(100).0);
    }
}

#[test]
fn without_reports_no_memory_is_returned_to_the_host() {
    // The device does not offer reporting, or the guest does not use it.
    for (balloon, reports) in [(Balloon::Plain, "on"), (Balloon::Reports, "off")] {
        let config = config(Bytes::ZERO).with("work", "256M").with("hold", "off");
        let config = config.with("reports", reports);
        let boot_memory = Bytes::mib(512);
        let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
        vm.wait("end of the work", freed).unwrap();
        thread::sleep(Duration::from_secs(2));
        assert!(resident::proportional(vm.pid()).unwrap() > Bytes::mib(256), "{balloon:?}");
    }
}

#[test]
fn plugged_memory_is_reported_and_unplugged_during_a_report() {
    let size = Bytes::gib(4);
    let config = config(size).touching(Bytes::mib(512)).with("hold", "off");
    let config = config.with("exit", "resizes:6");
    let balloon = Balloon::Reports;
    let mut vm = Vm::start(&Config { balloon, ..config }).unwrap();
    let device = |event: &Event| matches!(event, Event::Device { .. }).then_some(());
    vm.wait("device", device).unwrap();
    // The first time, nothing is unplugged during a report.
    vm.resize(size).unwrap();
    assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(512).0);
    vm.wait("reports", reported).unwrap();
    shrinks_to(&vm, Bytes::mib(250));
    vm.resize(Bytes::ZERO).unwrap();
    // Then memory is unplugged shortly before and shortly after it is reported.
    for pause in [100, 480] {
        vm.resize(size).unwrap();
        vm.wait("end of the work", freed).unwrap();
        thread::sleep(Duration::from_millis(pause));
        if pause == 100 {
            vm.resize(Bytes::ZERO).unwrap();
        }
    }
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

#[test]
fn the_balloon_grows_and_shrinks_and_keeps_the_guests_free_memory() {
    let config = config(Bytes::gib(1)).with("exit", "size:2M");
    let (boot_memory, balloon) = (Bytes::gib(1), Balloon::Everything);
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
    assert_eq!(vm.wait("balloon", reports_queue).unwrap().0, Some(4));
    // This is more than the guest can spare. The argument of QEMU's command is what is left to the
    // guest.
    vm.monitor_line("balloon 1").unwrap();
    wait_until_kept_from_inflating(&mut vm, "the guest keeps its floor of free memory");
    for left in [512, 300, 1000, 1024, 300] {
        vm.monitor_line(&format!("balloon {left}")).unwrap();
        let taken = Bytes::mib(1024 - left).0;
        assert_eq!(vm.wait("balloon", inflated).unwrap().0, (taken, taken));
        assert_eq!(left_by_balloon(&mut vm), left);
    }
    // Memory of the device that is in the balloon can still be unplugged.
    vm.resize(Bytes::gib(1)).unwrap();
    vm.monitor_line("balloon 1024").unwrap();
    vm.wait("balloon", inflated).unwrap();
    vm.monitor_line("balloon 300").unwrap();
    vm.wait("balloon", inflated).unwrap();
    vm.resize(Bytes::ZERO).unwrap();
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

/// Returns a guest of 512 MiB that a balloon leaves 128 MiB, and that then needs 300 MiB for work.
/// `hold` says whether it keeps them at the end.
fn short_of_memory(balloon: Balloon, hold: &str) -> Vm {
    let config = config(Bytes::ZERO).with("work", "300M").with("work_at", "inflated");
    let config = config.with("hold", hold).with("interrupts", "poll");
    let boot_memory = Bytes::mib(512);
    let mut vm = Vm::start(&Config { boot_memory, balloon, ..config }).unwrap();
    vm.monitor_line("balloon 128").unwrap();
    let taken = Bytes::mib(384).0;
    assert_eq!(vm.wait("balloon", inflated).unwrap().0, (taken, taken));
    vm
}

#[test]
fn a_guest_that_runs_out_deflates_the_balloon_by_what_it_needs() {
    for hold in ["on", "off"] {
        takes_back_what_it_needs(hold);
    }
}

fn takes_back_what_it_needs(hold: &str) {
    let mut vm = short_of_memory(Balloon::Everything, hold);
    wait_until_kept_from_inflating(&mut vm, "the guest needs the memory");
    assert_eq!(vm.wait("work", touched).unwrap().0, Bytes::mib(300).0);
    if hold == "on" {
        let left = left_by_balloon(&mut vm);
        assert!((300..350).contains(&left), "{left} MiB");
        return;
    }
    // The balloon inflates again when the guest has freed the memory.
    assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(300).0);
    let taken = Bytes::mib(384).0;
    assert_eq!(vm.wait("balloon", inflated).unwrap().0, (taken, taken));
    assert_eq!(left_by_balloon(&mut vm), 128);
}

#[test]
fn a_guest_that_may_not_deflate_the_balloon_uses_the_remaining_memory() {
    let mut vm = short_of_memory(Balloon::Reports, "off");
    let (bytes, _) = vm.wait("work", touched).unwrap();
    assert!((Bytes::mib(100).0..Bytes::mib(128).0).contains(&bytes), "{bytes}");
    assert_eq!(left_by_balloon(&mut vm), 128);
}
