//! Drives registers of memory slots that answer as the fuzzer says.
#![no_main]

use hotmem_acpi::{Change, MemorySlots, Model, SlotRegisters, count_qemu_slots};

struct Registers<'a>(&'a [u8]);

impl SlotRegisters for Registers<'_> {
    fn read_u32(&mut self, offset: u16) -> u32 {
        u32::from_le_bytes([0; 4].map(|_: u8| self.read_u8(offset)))
    }

    fn read_u8(&mut self, _: u16) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    fn write_u32(&mut self, _: u16, _: u32) {}

    fn write_u8(&mut self, _: u16, _: u8) {}
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(count_qemu_slots(&mut Registers(bytes)) <= 257);
    for model in [Model::QEMU, Model::CLOUD_HYPERVISOR] {
        let Ok(mut slots) = MemorySlots::<_, 8>::new(Registers(bytes), model, 8) else { return };
        for _ in 0..4 {
            slots.notify();
            while let Some(change) = slots.next_change() {
                match change {
                    Change::Inserted { slot, .. } => slots.accept(slot),
                    Change::RemovalRequested { slot, .. } => drop(slots.eject(slot)),
                    Change::Vanished { .. } | Change::Unusable { .. } => {}
                }
            }
            let ranges: Vec<_> = (0..8).filter_map(|slot| slots.memory(slot)).collect();
            for (n, dimm) in ranges.iter().enumerate() {
                assert!(ranges[..n].iter().all(|other| !other.range.overlaps(dimm.range)));
            }
        }
    }
});
