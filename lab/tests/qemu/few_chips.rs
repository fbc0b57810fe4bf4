//! Tests of machines without the 8259 interrupt controllers, the 8254 timer or the real-time clock
//! of a PC. Small virtual machine monitors make such machines.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Transport};

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
