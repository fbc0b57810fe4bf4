//! Tests of live migration, here to a file: the free memory of the guest is not sent.

use crate::balloon::{freed, reports_queue, shrinks_to, touched};
use crate::support::{config, wait_for};
use hotmem::Bytes;
use hotmem_lab::qemu::{Balloon, Config, Event, Vm};
use hotmem_lab::resident;
use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

fn reported_or_hinted(event: &Event) -> Option<u64> {
    match *event {
        Event::Reported { bytes, hinted, .. } => Some(bytes + hinted),
        _ => None,
    }
}

#[test]
fn a_machine_continues_from_a_file_that_lacks_its_reported_memory() {
    // The guest checks after the migration that the memory in use by its other CPU is unchanged.
    let config = to_be_migrated("160M", Balloon::Reports).with("churn", "on");
    let config = Config { cpus: 2, ..config.with("report_rate", "64M") };
    let mut source = Vm::start(&config).unwrap();
    source.wait("end of the work", freed).unwrap();
    let held = resident::proportional(source.pid()).expect("QEMU runs");
    shrinks_to(&source, Bytes(held.0 - Bytes::mib(32).0));
    // The CPUs are stopped, so that no write during the migration is lost: see
    // `Config::single_thread`.
    source.monitor_line("stop").unwrap();
    let file = Migrated::begin(&mut source);
    wait_until_migrated(&mut source);
    let (some, not_all) = (Bytes::mib(32).0, Bytes::mib(150).0);
    assert!((some..not_all).contains(&file.len()), "{} bytes", file.len());
    let incoming = Some(file.0.clone());
    let mut destination = Vm::start(&Config { incoming, ..config }).unwrap();
    wait_until_migrated(&mut destination);
    for mut vm in [destination, source] {
        vm.monitor_line("cont").unwrap();
        // The guest reports the rest of its free memory on the new host.
        shrinks_to(&vm, Bytes::mib(150));
        goes_on(vm);
    }
}

#[test]
fn a_migration_with_hints_sends_no_free_memory_and_loses_no_used_memory() {
    // Hints cover the free memory that has not been reported before. QEMU handles hints on a thread
    // of its own, on which it can send messages but must not raise interrupt lines.
    for (interrupts, reports) in [("msix", "off"), ("msix", "on"), ("intx", "off"), ("poll", "off")]
    {
        let config = to_be_migrated("300M", Balloon::Everything).with("interrupts", interrupts);
        let mut vm = Vm::start(&config.with("reports", reports)).unwrap();
        vm.wait("end of the work", freed).unwrap();
        let file = begin_slowly(&mut vm);
        wait_until_hinted(&mut vm);
        end_migration(&mut vm);
        assert!((1..Bytes::mib(16).0).contains(&file.len()), "{} bytes", file.len());
        goes_on(vm);
    }
}

#[test]
fn a_guest_that_runs_out_of_memory_during_a_migration_uses_hinted_memory() {
    let config = to_be_migrated("300M", Balloon::Everything).with("work_at", "hinted");
    let mut vm = Vm::start(&config.with("reports", "off")).unwrap();
    vm.wait("balloon", reports_queue).unwrap();
    let _file = begin_slowly(&mut vm);
    // The guest begins to work when most of its memory has been hinted, and needs some of it.
    assert_eq!(vm.wait("work", touched).unwrap().0, Bytes::mib(300).0);
    assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(300).0);
    end_migration(&mut vm);
    goes_on(vm);
}

/// Returns a guest of 512 MiB that writes to some of its memory and frees it.
fn to_be_migrated(work: &str, balloon: Balloon) -> Config {
    let config = config(Bytes::gib(1)).touching(Bytes::mib(64)).with("work", work);
    let config = config.with("hold", "off").with("exit", "resizes:2");
    Config { boot_memory: Bytes::mib(512), balloon, ..config }
}

/// Begins a migration to a file, so slowly that it does not end by itself.
fn begin_slowly(vm: &mut Vm) -> Migrated {
    vm.monitor_line("migrate_set_parameter max-bandwidth 16k").unwrap();
    vm.monitor_line("migrate_set_parameter downtime-limit 1").unwrap();
    Migrated::begin(vm)
}

/// Waits until most of the memory has been reported or hinted as free.
fn wait_until_hinted(vm: &mut Vm) {
    let mut left = Bytes::mib(400).0;
    while left > 0 {
        let (gone, _) = vm.wait("reports and hints", reported_or_hinted).unwrap();
        left = left.saturating_sub(gone);
    }
}

fn end_migration(vm: &mut Vm) {
    vm.monitor_line("migrate_set_parameter max-bandwidth 1g").unwrap();
    vm.monitor_line("migrate_set_parameter downtime-limit 300").unwrap();
    wait_until_migrated(vm);
    vm.monitor_line("cont").unwrap();
}

/// Checks that the guest goes on after the migration.
fn goes_on(mut vm: Vm) {
    vm.resize(Bytes::gib(1)).unwrap();
    vm.wait("end of the work", freed).unwrap();
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

/// Waits for the end of the migration, on either side.
pub(crate) fn wait_until_migrated(vm: &mut Vm) {
    wait_for("end of the migration", || {
        let says = vm.ask_monitor("info migrate").unwrap();
        assert!(!says.contains("status: failed"), "{says}");
        says.contains("Migration status: completed").then_some(())
    });
}

/// A file to which a machine is migrated.
pub(crate) struct Migrated(pub(crate) PathBuf);

impl Migrated {
    /// Begins the migration.
    pub(crate) fn begin(vm: &mut Vm) -> Migrated {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("hotmem-migration-{}-{number}", std::process::id());
        let file = Migrated(std::env::temp_dir().join(name));
        let line = format!("migrate -d \"exec:cat > '{}'\"", file.0.display());
        vm.monitor_line(&line).unwrap();
        file
    }

    fn len(&self) -> u64 {
        fs::metadata(&self.0).unwrap().len()
    }
}

impl Drop for Migrated {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
