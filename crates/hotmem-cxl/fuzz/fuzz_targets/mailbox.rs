//! Drives device registers and a mailbox that answer as the fuzzer says.
#![no_main]

use core::time::Duration;
use hotmem_cxl::{COMMAND_LIMIT, DeviceRegisters, EventLog, Registers};

struct Arbitrary<'a> {
    bytes: &'a [u8],
    size: u32,
}

/// What makes `DeviceRegisters::find` find all registers, with a mailbox of 512 bytes.
const ALL_REGISTERS: [u32; 12] = [0x0101_0000, 3, 1, 0x80, 1, 2, 0x4000, 0x8a8, 1, 2, 0x88, 9];

impl Arbitrary<'_> {
    fn next<const N: usize>(&mut self) -> [u8; N] {
        let Some((&bytes, rest)) = self.bytes.split_first_chunk() else { return [0; N] };
        self.bytes = rest;
        bytes
    }

    fn check(&self, offset: u32, width: u32) {
        assert!(offset % width == 0 && offset.checked_add(width).unwrap() <= self.size);
    }
}

impl Registers for Arbitrary<'_> {
    fn size(&self) -> u32 {
        self.size
    }

    fn read_u32(&mut self, offset: u32) -> u32 {
        self.check(offset, 4);
        u32::from_le_bytes(self.next())
    }

    fn write_u32(&mut self, offset: u32, _: u32) {
        self.check(offset, 4);
    }

    fn read_u64(&mut self, offset: u32) -> u64 {
        self.check(offset, 8);
        u64::from_le_bytes(self.next())
    }

    fn write_u64(&mut self, offset: u32, _: u64) {
        self.check(offset, 8);
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&[low, high], bytes)) = bytes.split_first_chunk() else { return };
    let size = u16::from_le_bytes([low, high]).into();
    let found = [ALL_REGISTERS.map(u32::to_le_bytes).as_flattened(), bytes].concat();
    drive(Arbitrary { bytes, size });
    drive(Arbitrary { bytes: &found, size: 0x1000 });
});

fn drive(mut registers: Arbitrary<'_>) {
    let Ok((device, mut mailbox)) = DeviceRegisters::find(&mut registers) else { return };
    let _ = device.memory_state(&mut registers);
    let _ = device.has_events(&mut registers, EventLog::DynamicCapacity);
    let mut answer = [0; 300];
    for _ in 0..3 {
        let _ = mailbox.start(&mut registers, 1, &[1; 100], Duration::ZERO);
        while !registers.bytes.is_empty() {
            if mailbox.poll(&mut registers, &mut answer, Duration::ZERO).is_ready() {
                break;
            }
        }
        let late = COMMAND_LIMIT + Duration::from_millis(1);
        assert!(mailbox.poll(&mut registers, &mut answer, late).is_ready());
        registers.size /= 2;
    }
}
