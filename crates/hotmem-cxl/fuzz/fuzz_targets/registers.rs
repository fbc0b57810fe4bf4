//! Drives configuration space and decoders that answer as the fuzzer says.
#![no_main]

use core::time::Duration;
use hotmem_addr::{Bytes, PfnRange};
use hotmem_cxl::config::{self, BlockKind};
use hotmem_cxl::{
    Config, Decoders, Destination, Granularity, Registers, Role, Setting, UNIT, Ways,
};

struct Arbitrary<'a>(&'a [u8]);

/// What makes `Decoders::find` find two decoders.
const TWO_DECODERS: [u32; 3] = [0x0100_0001, 0x0100_0005, 0x311];

impl Arbitrary<'_> {
    fn next<const N: usize>(&mut self) -> [u8; N] {
        let Some((&bytes, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        bytes
    }
}

const SIZE: u32 = 0x2000;

fn check(offset: u32, width: u32) {
    assert!(offset % width == 0 && offset + width <= SIZE);
}

impl Registers for Arbitrary<'_> {
    fn size(&self) -> u32 {
        SIZE
    }

    fn read_u32(&mut self, offset: u32) -> u32 {
        check(offset, 4);
        u32::from_le_bytes(self.next())
    }

    fn write_u32(&mut self, offset: u32, _: u32) {
        check(offset, 4);
    }

    fn read_u64(&mut self, offset: u32) -> u64 {
        check(offset, 8);
        u64::from_le_bytes(self.next())
    }

    fn write_u64(&mut self, offset: u32, _: u64) {
        check(offset, 8);
    }
}

impl Config for Arbitrary<'_> {
    fn read_u32(&mut self, offset: u16) -> u32 {
        assert!(offset % 4 == 0 && offset < 4096);
        u32::from_le_bytes(self.next())
    }

    fn write_u32(&mut self, offset: u16, _: u32) {
        assert!(offset % 4 == 0 && offset < 4096);
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for kind in [BlockKind::Component, BlockKind::Device] {
        let _ = config::locate(&mut Arbitrary(bytes), kind);
    }
    let _ = config::set_memory_enabled(&mut Arbitrary(bytes), true);
    let _ = config::uses_ranges(&mut Arbitrary(bytes));
    let _ = config::port_number(&mut Arbitrary(bytes));
    let found = [TWO_DECODERS.map(u32::to_le_bytes).as_flattened(), bytes].concat();
    drive(Arbitrary(bytes));
    drive(Arbitrary(&found));
});

fn drive(mut registers: Arbitrary<'_>) {
    let Ok(Some(decoders)) = Decoders::find(&mut registers, Role::Device) else { return };
    let range = PfnRange::from_bytes(16 * UNIT, Bytes(UNIT)).expect("the range is small");
    let destination = Destination::Memory { skip: 0 };
    let setting = Setting { range, ways: Ways::ONE, granularity: Granularity::MIN, destination };
    for n in 0..decoders.capability().count {
        let _ = decoders.state(&mut registers, n);
        let begun = decoders.commit(&mut registers, n, &setting, Duration::ZERO);
        for ms in 0..=11 {
            let now = Duration::from_millis(ms);
            if begun.is_ok_and(|mut begun| begun.poll(&mut registers, now).is_ready()) {
                break;
            }
        }
        let _ = decoders.uncommit(&mut registers, n, Duration::ZERO);
    }
}
