//! Tests of a guest that has nothing to do.

use crate::hot_add::{self, boot};
use crate::{acpi_hot_add, support::wait_for};
use hotmem_lab::qemu::Config;
use std::{fs, path::PathBuf};

/// The number of polls of a slot that are observed.
const POLLS: usize = 40;

/// A file into which QEMU writes the accesses to configuration space. Dropping it removes the file.
struct AccessLog(PathBuf);

impl Drop for AccessLog {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn an_idle_guest_writes_to_no_configuration_space() {
    let machines: [(&str, Config); 2] =
        [("acpi", acpi_hot_add::with_ports()), ("native", hot_add::with_ports())];
    for (kind, config) in machines {
        let mut vm = boot(&config);
        let name = format!("hotmem-accesses-{}-{kind}", std::process::id());
        let log = AccessLog(std::env::temp_dir().join(name));
        vm.monitor_line(&format!("logfile {}", log.0.display())).unwrap();
        vm.monitor_line("log trace:pci_cfg_*").unwrap();
        let accesses = |kind: &str| {
            let log = fs::read_to_string(&log.0).unwrap_or_default();
            log.lines().filter(|line| line.contains(kind)).map(str::to_owned).collect::<Vec<_>>()
        };
        wait_for("polls of the slots", || (accesses("pci_cfg_read").len() > POLLS).then_some(()));
        // The last accesses may belong to the search for devices, which precedes the first poll.
        let writes = accesses("pci_cfg_write");
        let polled = accesses("pci_cfg_read").len();
        wait_for("more polls", || (accesses("pci_cfg_read").len() > polled + POLLS).then_some(()));
        assert_eq!(accesses("pci_cfg_write"), writes, "{kind}");
    }
}
