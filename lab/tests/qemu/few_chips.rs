//! Tests of machines without the 8259 interrupt controllers, the 8254 timer or the real-time clock
//! of a PC. Small virtual machine monitors make such machines.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Transport, Vm};

#[test]
fn the_guest_plugs_and_unplugs_without_interrupt_controllers_or_timers_of_a_pc() {
    let machines = [
        ("q35,pic=off", Transport::Pci),
        ("q35,pit=off", Transport::Pci),
        ("q35,pic=off,pit=off", Transport::Pci),
        // This machine has no timer of known frequency except that of the local APIC.
        ("microvm,acpi=off,pic=off,pit=off,rtc=off", Transport::Mmio),
    ];
    for (machine, transport) in machines {
        let config = Config { machine, transport, ..config(Bytes::gib(1)) };
        let mut vm = start(&config.with_guest_option("exit", "size:2M"));
        for target in [Bytes::gib(1), Bytes::ZERO] {
            vm.resize_checked(target);
        }
        vm.finish(Bytes::mib(2));
    }
}

#[test]
fn a_machine_without_acpi_lists_its_cpus_in_an_older_table() {
    let config = config(Bytes::ZERO).with_guest_option("exit", "boot");
    let machine = "microvm,acpi=off";
    let mut vm = Vm::start(&Config { machine, cpus: 3, ..config }).unwrap();
    let cpus = |event: &Event| match *event {
        Event::Boot { cpus, .. } => Some(cpus),
        _ => None,
    };
    assert_eq!(vm.wait("boot", cpus).unwrap().0, 3);
    vm.finish().unwrap();
}
