//! Tests of configuration space.

use crate::arbitrary::arbitrary;
use hotmem_cxl::Config;
use hotmem_cxl::config::{self, BlockKind, ConfigError, RegisterBlock};
use proptest::prelude::*;

/// A configuration space with the DVSECs of a memory device.
#[derive(Clone)]
struct Space {
    words: [u32; 1024],
    locked: bool,
}

impl Config for Space {
    fn read_u32(&mut self, offset: u16) -> u32 {
        self.words[usize::from(offset) / 4]
    }

    fn write_u32(&mut self, offset: u16, value: u32) {
        assert_eq!(offset, 0x20c, "only the control of the device is written");
        assert_eq!(value >> 16, 0, "ones would clear the status");
        if !self.locked {
            let word = &mut self.words[0x83];
            *word = *word & 0xffff_0000 | value;
        }
    }
}

/// A serial number, the DVSEC of a device at 0x200, and the locator at 0x300.
fn space() -> Space {
    let mut words = [0; 1024];
    words[0x40] = 0x2000_0003;
    words[0x80..0x84].copy_from_slice(&[0x3000_0023, 0x03c1_1e98, 0x0004_0000, 0xabcd_0000]);
    words[0xc0..0xc3].copy_from_slice(&[0x0001_0023, 0x0240_1e98, 8]);
    words[0xc3..0xc9].copy_from_slice(&[0x0001_0102, 1, 0, 0, 0x0003_0304, 0]);
    Space { words, locked: false }
}

#[test]
fn the_registers_of_a_device_are_located() {
    let mut space = space();
    let component = RegisterBlock { bar: 2, offset: 0x1_0001_0000 };
    assert_eq!(config::locate(&mut space, BlockKind::Component), Ok(Some(component)));
    let device = RegisterBlock { bar: 4, offset: 0x3_0000 };
    assert_eq!(config::locate(&mut space, BlockKind::Device), Ok(Some(device)));
    assert_eq!(device.within(0x4_0000, 0x1_0000), Ok(0x3_0000));
    let beyond = ConfigError::BeyondBar { block: device, bar_len: 0x3_ffff };
    assert_eq!(device.within(0x3_ffff, 0x1_0000), Err(beyond));
    assert!(RegisterBlock { bar: 0, offset: u64::MAX }.within(u64::MAX, 1).is_err());
    space.words[0xc7] = 0;
    assert_eq!(config::locate(&mut space, BlockKind::Device), Ok(None));
}

#[test]
fn memory_is_enabled_without_clearing_the_status() {
    let mut space = space();
    assert_eq!(config::set_memory_enabled(&mut space, true), Ok(()));
    assert_eq!(space.words[0x83], 0xabcd_0004);
    assert_eq!(config::set_memory_enabled(&mut space, false), Ok(()));
    assert_eq!(space.words[0x83], 0xabcd_0000);
    space.locked = true;
    assert_eq!(config::set_memory_enabled(&mut space, true), Err(ConfigError::Unchanged));
    space.words[0x82] = 0;
    assert_eq!(config::set_memory_enabled(&mut space, true), Err(ConfigError::NotMemory));
}

#[test]
fn ranges_that_firmware_has_set_are_noticed() {
    let mut space = space();
    let [size, base] = [0x200 / 4 + 7, 0x200 / 4 + 9];
    // A size of 1 GiB with flags, as a device has it after a reset.
    space.words[size] = 0x4000_0003;
    config::set_memory_enabled(&mut space, true).unwrap();
    assert_eq!(config::uses_ranges(&mut space), Ok(false), "the base was never set");
    space.words[base] = 0x1000_0000;
    assert_eq!(config::uses_ranges(&mut space), Ok(true));
    (space.words[base - 1], space.words[base]) = (1, 0xfff);
    assert_eq!(config::uses_ranges(&mut space), Ok(true));
    space.words[size] = 3;
    assert_eq!(config::uses_ranges(&mut space), Ok(false), "the range has no size");
    (space.words[size + 3], space.words[base + 3]) = (1, u32::MAX);
    assert_eq!(config::uses_ranges(&mut space), Err(ConfigError::Gone));
    (space.words[size + 4], space.words[base + 4]) = (0x1000_0000, 0x2000_0000);
    space.words[base + 3] = 0;
    assert_eq!(config::uses_ranges(&mut space), Ok(true), "the second range");
    config::set_memory_enabled(&mut space, false).unwrap();
    assert_eq!(config::uses_ranges(&mut space), Ok(false));
}

#[test]
fn malformed_capabilities_are_refused_with_their_offsets() {
    let locate = |change: &dyn Fn(&mut Space)| {
        let mut space = space();
        change(&mut space);
        config::locate(&mut space, BlockKind::Component)
    };
    let successor = |at, next| Err(ConfigError::Successor { at, next });
    assert_eq!(locate(&|space| space.words[0x80] = 0x0fc0_0023), successor(0x200, 0xfc));
    assert_eq!(locate(&|space| space.words[0x80] = 0x3020_0023), successor(0x200, 0x302));
    assert_eq!(locate(&|space| space.words[0x80] = 0x1000_0023), Err(ConfigError::Endless));
    assert_eq!(locate(&|space| space.words[0xc3] = 0x0001_0106), Err(ConfigError::Bar(6)));
    for len in [0, 8, 0xd04, 0xfff] {
        let error = Err(ConfigError::Length { at: 0x300, len });
        assert_eq!(locate(&|space| space.words[0xc1] = u32::from(len) << 20 | 0x1e98), error);
    }
    for gone in [0x40, 0x80, 0xc0, 0xc1, 0xc3] {
        assert_eq!(locate(&|space| space.words[gone] = u32::MAX), Err(ConfigError::Gone));
    }
    assert_eq!(locate(&|space| space.words[0x40] = 0), Ok(None));
    // A DVSEC whose identity would lie beyond the space.
    let at_end = |space: &mut Space| {
        space.words[0x80] = 0xffc0_0023;
        space.words[0x3ff] = 0x23;
    };
    assert_eq!(locate(&at_end), Ok(None));
}

#[test]
fn the_number_of_a_port_is_read() {
    let mut space = space();
    space.words[0x34 / 4] = 0x42;
    (space.words[0x40 / 4], space.words[0x50 / 4]) = (0x5005, 0x10);
    space.words[0x5c / 4] = 0x0712_3456;
    assert_eq!(config::port_number(&mut space), Ok(Some(7)));
    space.words[0x40 / 4] = 5;
    assert_eq!(config::port_number(&mut space), Ok(None));
    space.words[0x40 / 4] = 0x4005;
    assert_eq!(config::port_number(&mut space), Err(ConfigError::Endless));
    space.words[0x40 / 4] = 0x3c05;
    let successor = ConfigError::Successor { at: 0x40, next: 0x3c };
    assert_eq!(config::port_number(&mut space), Err(successor));
    space.words[0x40 / 4] = 0xfc05;
    space.words[0xfc / 4] = 0x10;
    space.words[0x108 / 4] = u32::MAX;
    assert_eq!(config::port_number(&mut space), Err(ConfigError::Gone));
}

proptest! {
    #[test]
    fn arbitrary_configuration_space_costs_a_bounded_number_of_accesses(mut space in arbitrary()) {
        for kind in [BlockKind::Component, BlockKind::Device] {
            if let Ok(Some(block)) = config::locate(&mut space, kind) {
                prop_assert!(block.bar < 6 && block.offset.is_multiple_of(0x1_0000));
            }
        }
        let _ = config::set_memory_enabled(&mut space, true);
        let _ = config::uses_ranges(&mut space);
        let _ = config::port_number(&mut space);
        prop_assert!(space.accesses < 4 * 4 * 1024);
    }
}
