//! Takes a DIMM from a host that has one memory slot, and gives it back when the host asks.

use hotmem_acpi::{Change, MemorySlots, Model, SlotRegisters};

/// The registers of a host with a DIMM of 1 GiB at 4 GiB.
struct Host {
    status: u8,
}

const PRESENT: u8 = 1;
const REMOVAL_REQUESTED: u8 = 4;
const EJECT: u8 = 8;

impl SlotRegisters for Host {
    fn read_u32(&mut self, offset: u16) -> u32 {
        match offset {
            4 => 1,
            8 => 1 << 30,
            _ => 0,
        }
    }

    fn read_u8(&mut self, _: u16) -> u8 {
        self.status
    }

    fn write_u32(&mut self, offset: u16, value: u32) {
        if offset == 4 {
            println!("the guest answers event {value}");
            // The host asks for the memory as soon as the guest has accepted it.
            self.status |= REMOVAL_REQUESTED;
        }
    }

    fn write_u8(&mut self, _: u16, value: u8) {
        self.status = if value == EJECT { 0 } else { self.status & !value };
    }
}

fn main() {
    let mut slots = MemorySlots::<_, 1>::new(Host { status: PRESENT }, Model::QEMU, 1)
        .expect("there is room for one slot");
    for _ in 0..2 {
        slots.notify();
        while let Some(change) = slots.next_change() {
            match change {
                Change::Inserted { slot, dimm } => {
                    println!("slot {slot}: {} on node {}", dimm.range, dimm.proximity);
                    slots.accept(slot);
                }
                Change::RemovalRequested { slot, .. } => {
                    println!("slot {slot}: ejected");
                    slots.eject(slot).expect("the host takes the memory");
                }
                Change::Vanished { .. } | Change::Unusable { .. } => println!("{change:?}"),
            }
        }
    }
    assert_eq!(slots.memory(0), None);
}

#[test]
fn a_dimm_is_taken_and_given_back() {
    main();
}
