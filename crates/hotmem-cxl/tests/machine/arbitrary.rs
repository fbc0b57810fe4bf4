//! Registers that answer arbitrarily, and refuse accesses that the crate must not make.

use hotmem_cxl::{Config, Registers};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(crate) struct Arbitrary {
    pub(crate) size: u32,
    answers: Vec<u32>,
    next: usize,
    pub(crate) accesses: usize,
}

impl Arbitrary {
    fn answer(&mut self) -> u32 {
        self.accesses += 1;
        self.next = (self.next + 1) % self.answers.len();
        self.answers[self.next]
    }

    fn check(&self, offset: u32, width: u32) {
        assert!(offset.is_multiple_of(width), "an access to {offset:#x} of {width} bytes");
        assert!(offset + width <= self.size, "an access to {offset:#x} beyond {:#x}", self.size);
    }
}

/// Answers among which headers, small numbers and ones are frequent.
pub(crate) fn arbitrary() -> impl Strategy<Value = Arbitrary> {
    let header = (0u32..256).prop_map(|count| count << 24 | 1);
    let capability = (0u32..4096).prop_map(|at| at << 20 | 5);
    let dvsec = prop_oneof![Just(0x0f00_1e98), Just(0x1040_0023), Just(0x0400_1e98), 0u32..9];
    let word =
        prop_oneof![header, capability, dvsec, Just(0), Just(u32::MAX), 0u32..0x1000, any::<u32>()];
    let size = prop_oneof![Just(0u32), Just(0x1000), Just(0x1_0000), 0u32..0x2000];
    (size, proptest::collection::vec(word, 1..48)).prop_map(|(size, answers)| Arbitrary {
        size,
        answers,
        next: 0,
        accesses: 0,
    })
}

impl Registers for Arbitrary {
    fn size(&self) -> u32 {
        self.size
    }

    fn read_u32(&mut self, offset: u32) -> u32 {
        self.check(offset, 4);
        self.answer()
    }

    fn write_u32(&mut self, offset: u32, _: u32) {
        self.check(offset, 4);
        self.accesses += 1;
    }

    fn read_u64(&mut self, offset: u32) -> u64 {
        self.check(offset, 8);
        u64::from(self.answer()) | u64::from(self.answer()) << 32
    }

    fn write_u64(&mut self, offset: u32, _: u64) {
        self.check(offset, 8);
        self.accesses += 1;
    }
}

impl Config for Arbitrary {
    fn read_u32(&mut self, offset: u16) -> u32 {
        assert!(offset.is_multiple_of(4) && offset < 4096);
        self.answer()
    }

    fn write_u32(&mut self, offset: u16, _: u32) {
        assert!(offset.is_multiple_of(4) && offset < 4096);
        self.accesses += 1;
    }
}
