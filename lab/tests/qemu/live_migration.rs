//! Tests of live migration to a file. QEMU does not send the guest's free memory.

use crate::balloon::{freed, reports_queue, touched, wait_until_resident_below};
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
fn a_migrated_machine_continues_without_its_reported_memory() {
    // After the migration, the guest checks that the memory of its other CPU is unchanged.
    let config = config_of_source("160M", Balloon::Reports).with_guest_option("churn", "on");
    let config = Config { cpus: 2, ..config.with_guest_option("report_rate", "64M") };
    let mut source = Vm::start(&config).unwrap();
    source.wait("end of the work", freed).unwrap();
    let before = resident::proportional(source.pid()).expect("QEMU has ended");
    wait_until_resident_below(&source, Bytes(before.0 - Bytes::mib(32).0));
    // The CPUs are stopped, because TCG may lose writes during a migration
    // (`Config::single_thread`).
    source.monitor_line("stop").unwrap();
    let file = MigrationFile::begin(&mut source);
    wait_until_migrated(&mut source);
    let (min, max) = (Bytes::mib(32).0, Bytes::mib(150).0);
    assert!((min..max).contains(&file.len()), "{} bytes", file.len());
    let incoming = Some(file.0.clone());
    let mut destination = Vm::start(&Config { incoming_state: incoming, ..config }).unwrap();
    wait_until_migrated(&mut destination);
    for mut vm in [destination, source] {
        vm.monitor_line("cont").unwrap();
        // The guest continues to report its free memory.
        wait_until_resident_below(&vm, Bytes::mib(150));
        resize_and_end(vm);
    }
}

#[test]
fn a_migration_with_hints_sends_used_memory_and_no_free_memory() {
    // The guest hints the free memory that it has not reported before. QEMU handles hints on a
    // separate thread. On this thread, QEMU can send MSI-X messages, but must not raise interrupt
    // lines.
    for (interrupts, reports) in [("msix", "off"), ("msix", "on"), ("intx", "off"), ("poll", "off")]
    {
        let config = config_of_source("300M", Balloon::Everything)
            .with_guest_option("interrupts", interrupts);
        let mut vm = Vm::start(&config.with_guest_option("reports", reports)).unwrap();
        vm.wait("end of the work", freed).unwrap();
        let file = begin_slowly(&mut vm);
        wait_until_hinted(&mut vm);
        end_migration(&mut vm);
        assert!((1..Bytes::mib(16).0).contains(&file.len()), "{} bytes", file.len());
        resize_and_end(vm);
    }
}

#[test]
fn a_guest_that_runs_out_of_memory_during_a_migration_uses_hinted_memory() {
    // Before the work, most memory is zero, so that QEMU would send it within seconds, and stop a
    // guest that is slow. The objects on the heap take QEMU more than a minute.
    let config = config_of_source("300M", Balloon::Everything)
        .with_guest_option("work_at", "hinted")
        .with_guest_option("heap", "64M");
    let mut vm = Vm::start(&config.with_guest_option("reports", "off")).unwrap();
    vm.wait("balloon", reports_queue).unwrap();
    let _file = begin_slowly(&mut vm);
    // The guest starts to work when it has hinted most of its memory, so the work needs hinted
    // memory.
    assert_eq!(vm.wait("work", touched).unwrap().0, Bytes::mib(300).0);
    assert_eq!(vm.wait("end of the work", freed).unwrap().0, Bytes::mib(300).0);
    end_migration(&mut vm);
    resize_and_end(vm);
}

/// Returns a machine with 512 MiB of boot memory, whose guest writes to some of its memory and
/// frees it.
fn config_of_source(work: &str, balloon: Balloon) -> Config {
    let config =
        config(Bytes::gib(1)).with_touched_memory(Bytes::mib(64)).with_guest_option("work", work);
    let config = config.with_guest_option("hold", "off").with_guest_option("exit", "resizes:2");
    Config { boot_memory: Bytes::mib(512), balloon, ..config }
}

/// Begins a migration to a file, with so little bandwidth that the migration does not end before
/// the bandwidth is raised, if the guest uses memory that is not zero. In spite of the limit, QEMU 10
/// sends 0.8 MB in a second.
fn begin_slowly(vm: &mut Vm) -> MigrationFile {
    vm.monitor_line("migrate_set_parameter max-bandwidth 16k").unwrap();
    vm.monitor_line("migrate_set_parameter downtime-limit 1").unwrap();
    MigrationFile::begin(vm)
}

/// Waits until most of the memory has been reported or hinted as free.
fn wait_until_hinted(vm: &mut Vm) {
    let mut remaining = Bytes::mib(400).0;
    while remaining > 0 {
        let (size, _) = vm.wait("reports and hints", reported_or_hinted).unwrap();
        remaining = remaining.saturating_sub(size);
    }
}

/// Raises the bandwidth, waits for the end of the migration, and continues the guest.
fn end_migration(vm: &mut Vm) {
    vm.monitor_line("migrate_set_parameter max-bandwidth 1g").unwrap();
    vm.monitor_line("migrate_set_parameter downtime-limit 300").unwrap();
    wait_until_migrated(vm);
    vm.monitor_line("cont").unwrap();
}

/// Checks that the guest handles resizes after the migration, and ends it.
fn resize_and_end(mut vm: Vm) {
    vm.resize(Bytes::gib(1)).unwrap();
    vm.wait("end of the work", freed).unwrap();
    vm.request(Bytes::ZERO).unwrap();
    vm.finish().unwrap();
}

/// Waits until a machine has sent its state, or has received it.
pub(crate) fn wait_until_migrated(vm: &mut Vm) {
    wait_for("end of the migration", || {
        let output = vm.query_monitor("info migrate").unwrap();
        assert!(!output.contains("status: failed"), "{output}");
        output.contains("Migration status: completed").then_some(())
    });
}

/// The file to which a machine is migrated. Dropping this value removes the file.
pub(crate) struct MigrationFile(pub(crate) PathBuf);

impl MigrationFile {
    /// Begins a migration to a new file.
    pub(crate) fn begin(vm: &mut Vm) -> MigrationFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hotmem-migration-{}-{number}", std::process::id());
        let file = MigrationFile(std::env::temp_dir().join(name));
        let line = format!("migrate -d \"exec:cat > '{}'\"", file.0.display());
        vm.monitor_line(&line).unwrap();
        file
    }

    fn len(&self) -> u64 {
        fs::metadata(&self.0).unwrap().len()
    }
}

impl Drop for MigrationFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
