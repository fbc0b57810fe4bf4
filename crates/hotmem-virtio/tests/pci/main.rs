//! Tests the PCI transport on a simulated bus.

#![allow(clippy::cast_possible_truncation, reason = "addresses are written by halves")]

mod host;

use host::{ADDRESS, Bar, Bus, COMMON, DEVICE, ISR, NOTIFY, NOTIFY_OFF_MULTIPLIER};
use hotmem_virtio::pci::{
    self, Message, MessageError, Mmio, PciError, PciTransport, Registers, Width,
};
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use virtio_drivers::Error;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};

const ALL_BUSES: RangeInclusive<u8> = 0..=u8::MAX;

/// Finds the memory device on this bus. Returns its transport and the mapped BAR.
fn find(bus: &Bus) -> Result<Option<(PciTransport<Bar>, Bar)>, PciError> {
    let mut mapped = None;
    let transport = pci::find(&mut bus.clone(), ALL_BUSES, DeviceType::Memory, |range| {
        mapped = Some(Bar::new(range));
        mapped.clone()
    })?;
    Ok(transport.map(|transport| (transport, mapped.expect("the BAR was mapped"))))
}

/// Returns the transport of a device without faults, and the mapped BAR.
fn transport_and_bar() -> (PciTransport<Bar>, Bar) {
    find(&Bus::with(0x1058, 0, 3)).unwrap().unwrap()
}

#[test]
fn a_device_is_found_on_any_bus_and_enabled() {
    for (bus, device) in [(0, 0), (1, 0), (255, 31)] {
        let bus = Bus::with(0x1058, bus, device);
        let (transport, bar) = find(&bus).unwrap().unwrap();
        assert_eq!(transport.device_type(), DeviceType::Memory);
        assert!(!transport.requires_legacy_layout());
        // Only the registers that the transport uses are mapped, and not the whole BAR or another BAR.
        assert_eq!(bar.range, ADDRESS..ADDRESS + u64::from(NOTIFY) + 16);
        // Memory space and bus master are enabled, and the status is not cleared.
        assert_eq!(bus.word(4), 0x8010_0006);
    }
}

#[test]
fn devices_with_other_ids_are_ignored() {
    assert!(find(&Bus::default()).unwrap().is_none());
    for id in [0x1041, 0x1045, 0x1002] {
        assert!(find(&Bus::with(id, 0, 1)).unwrap().is_none(), "{id:#x}");
    }
    let other = Bus::with(0x1058, 0, 1);
    other.change(|words| words[0] = 0x1058_8086);
    assert!(find(&other).unwrap().is_none());
}

#[test]
fn a_balloon_is_found_by_either_of_its_ids() {
    for id in [0x1002, 0x1045] {
        let mut bus = Bus::with(id, 0, 1);
        let balloon = pci::find(&mut bus, ALL_BUSES, DeviceType::MemoryBalloon, |range| {
            Some(Bar::new(range))
        });
        assert!(balloon.unwrap().is_some(), "{id:#x}");
    }
}

#[test]
fn a_bad_device_is_refused() {
    type Fault = fn(&mut [u32; 64]);
    let faults: [(Fault, PciError); 8] = [
        (|words| words[1] = 0, PciError::Missing(2)),
        (|words| words[0x40 / 4] |= 0xff, PciError::Missing(1)),
        (|words| words[0x50 / 4 + 3] = 0, PciError::Missing(3)),
        // The list of capabilities has a cycle.
        (|words| words[0x40 / 4] = 0x0110_4009, PciError::Missing(2)),
        (|words| words[0x40 / 4 + 1] = 6, PciError::Missing(1)),
        (|words| words[8] = 0xc001, PciError::Bar(4)),
        (|words| (words[8], words[9]) = (0xc, 0), PciError::Bar(4)),
        (|words| words[0x60 / 4 + 1] = 5, PciError::Bar(5)),
    ];
    for (number, (fault, error)) in faults.into_iter().enumerate() {
        let bus = Bus::with(0x1058, 0, 1);
        bus.change(fault);
        assert_eq!(find(&bus).map(|_| ()), Err(error), "fault {number}");
    }
    let mut bus = Bus::with(0x1058, 0, 1);
    let unmapped = pci::find(&mut bus, ALL_BUSES, DeviceType::Memory, |_| None::<Bar>).map(|_| ());
    assert!(matches!(unmapped, Err(PciError::Unmapped(ADDRESS, _))));
}

#[test]
fn the_interrupt_line_is_read_from_configuration_space() {
    for (word, line, pin) in [
        (0x0000_010b, Some(11), Some(1)),
        (0x0000_000b, None, None),
        (0x0000_01ff, None, Some(1)),
        // Nobody has written the register.
        (0x0000_0400, None, Some(4)),
        (0x0000_050b, None, None),
    ] {
        let bus = Bus::with(0x1058, 3, 1);
        bus.change(|words| words[0x3c / 4] = word);
        let transport = find(&bus).unwrap().unwrap().0;
        assert_eq!(transport.interrupt_line(), line, "{word:#x}");
        assert_eq!(transport.interrupt_pin(), pin, "{word:#x}");
        assert_eq!((transport.function().bus, transport.function().device), (3, 1));
    }
}

#[test]
fn a_device_is_found_in_configuration_space_that_is_mapped() {
    let bus = Bus::with(0x1058, 18, 5);
    // The configuration space of buses 16 to 18, and ordinary memory behind it.
    let mut ecam = vec![0_u32; (4 << 20) / 4];
    let at = |register: u8| (2 << 20 | 5 << 15 | usize::from(register)) / 4;
    for register in (0..=0xfc).step_by(4) {
        ecam[at(register)] = bus.word(register);
    }
    let start = NonNull::new(ecam.as_mut_ptr().cast()).unwrap();
    // SAFETY: the memory exists until the end of the test, and no other code uses it. No BAR is
    // mapped.
    let find_on = |buses, kind| unsafe { pci::find_mapped(start, buses, kind, |_| None) };
    let find = |kind| find_on(16..=18, kind).map(|found| found.is_some());
    assert!(find_on(16..=17, DeviceType::Memory).unwrap().is_none(), "bus 18 is not accessed");
    assert_eq!(find(DeviceType::Block), Ok(false));
    // A real device keeps its status when zeroes are written to it. This configuration space is
    // ordinary memory, so the write clears the status, and no list of capabilities is found.
    assert_eq!(find(DeviceType::Memory), Err(PciError::Missing(2)));
    assert_eq!(ecam[at(4)], 6);
}

#[test]
fn memory_behind_a_small_configuration_space_is_neither_read_nor_written() {
    // Memory that looks like a device lies behind the configuration space of one bus.
    let bus = Bus::with(0x1058, 0, 0);
    let mut ecam = vec![u32::MAX; (2 << 20) / 4];
    let behind = (1 << 20) / 4;
    for register in (0..=0xfc).step_by(4) {
        ecam[behind + usize::from(register) / 4] = bus.word(register);
    }
    let before = ecam.clone();
    let start = NonNull::new(ecam.as_mut_ptr().cast()).unwrap();
    // SAFETY: the first MiB exists until the end of the call, and no other code uses it. No BAR is
    // mapped.
    let found = unsafe { pci::find_mapped(start, 0..=0, DeviceType::Memory, |_| None) };
    assert!(found.unwrap().is_none());
    assert!(ecam == before);
}

/// Gives the device an MSI-X table of three entries, at this offset of this BAR.
fn add_msix(bus: &Bus, bar: u32, offset: u32) {
    bus.change(|words| {
        words[0x14 / 4] = 0xfd00_0000;
        // The subsystem, in the place of a BAR 7.
        words[0x2c / 4] = 0x1100_1af0;
        words[0x90 / 4] |= 0xa0 << 8;
        words[0xa0 / 4] = 1 << 30 | 2 << 16 | 0x11;
        words[0xa4 / 4] = offset | bar;
    });
}

const MESSAGE: Message = Message { address: 0x12_fee0_1000, data: 0x41 };
/// The writes to the words of an entry: the entry is masked until it is complete.
const ENTRY_WRITES: [(u32, u32); 5] = [(12, 1), (0, 0xfee0_1000), (4, 0x12), (8, 0x41), (12, 0)];

#[test]
fn a_message_is_set_in_a_table_of_its_own_bar() {
    let mut bus = Bus::with(0x1058, 0, 3);
    let (mut transport, _) = find(&bus).unwrap().unwrap();
    let set =
        |transport: &mut PciTransport<Bar>, bus: &mut Bus, entry, mapped: &mut Option<Bar>| {
            transport.set_message(bus, entry, MESSAGE, |range| {
                *mapped = Some(Bar::new(0..64));
                assert_eq!(range, 0xfd00_0120..0xfd00_0130);
                mapped.clone()
            })
        };
    let mut mapped = None;
    let unsupported = set(&mut transport, &mut bus, 2, &mut mapped);
    assert_eq!(unsupported, Err(MessageError::Unsupported));
    add_msix(&bus, 1, 0x100);
    let missing = set(&mut transport, &mut bus, 3, &mut mapped);
    assert_eq!((missing, bus.word(0xa0) >> 30), (Err(MessageError::Entries(3)), 1));
    set(&mut transport, &mut bus, 2, &mut mapped).unwrap();
    let writes = ENTRY_WRITES.map(|(word, value)| (word, Width::FourBytes, value));
    assert_eq!(*mapped.unwrap().writes.borrow(), writes);
    assert_eq!(bus.word(0xa0) >> 30, 2, "enabled, and not masked");
}

#[test]
fn a_message_is_set_in_a_table_between_registers_that_are_mapped() {
    let mut bus = Bus::with(0x1058, 0, 3);
    add_msix(&bus, 4, 0x2800);
    let (mut transport, bar) = find(&bus).unwrap().unwrap();
    let mapped = transport.set_message(&mut bus, 1, MESSAGE, |_| panic!("it is mapped already"));
    mapped.unwrap();
    let writes = ENTRY_WRITES.map(|(word, value)| (0x2810 + word, Width::FourBytes, value));
    assert!(bar.writes.borrow().ends_with(&writes));
}

#[test]
fn a_table_without_an_address_or_without_a_mapping_is_refused() {
    let mut bus = Bus::with(0x1058, 0, 3);
    let (mut transport, _) = find(&bus).unwrap().unwrap();
    for (bar, offset, error) in [
        (7, 0, MessageError::Bar(7)),
        (2, 0, MessageError::Bar(2)),
        (1, 0x100, MessageError::Unmapped(0xfd00_0100, 0xfd00_0110)),
    ] {
        add_msix(&bus, bar, offset);
        assert_eq!(transport.set_message(&mut bus, 0, MESSAGE, |_| None), Err(error));
        assert_eq!(bus.word(0xa0) >> 30, 1, "MSI-X stays disabled");
    }
}

#[test]
fn features_are_negotiated_in_two_halves() {
    let (mut transport, bar) = transport_and_bar();
    bar.set(COMMON + 4, &7u32.to_le_bytes());
    assert_eq!(transport.read_device_features(), 7 << 32 | 7);
    transport.write_driver_features(0x1_0000_0002);
    let halves = [(8, 0), (12, 2), (8, 1), (12, 1)];
    let halves = halves.map(|(at, value)| (COMMON + at, Width::FourBytes, value));
    assert!(bar.writes.borrow().ends_with(&halves));
}

#[test]
fn a_queue_is_set_up_and_notified() {
    let (mut transport, bar) = transport_and_bar();
    bar.set(COMMON + 24, &128u16.to_le_bytes());
    assert_eq!(transport.max_queue_size(2), 128);
    assert!(!transport.queue_used(2));
    transport.queue_set(2, 8, 0x1_2345_6000, 0x2_2345_6080, 0x3_2345_6100);
    assert!(transport.queue_used(2));
    assert_eq!(u16::from_le_bytes(bar.get(COMMON + 22)), 2);
    assert_eq!(u16::from_le_bytes(bar.get(COMMON + 24)), 8);
    let addresses = [32, 40, 48].map(|at| u64::from_le_bytes(bar.get(COMMON + at)));
    assert_eq!(addresses, [0x1_2345_6000, 0x2_2345_6080, 0x3_2345_6100]);

    // The queue's notification offset is 3, so its register lies at three times the multiplier.
    bar.set(COMMON + 30, &3u16.to_le_bytes());
    transport.notify(2);
    let last = (NOTIFY + 3 * NOTIFY_OFF_MULTIPLIER, Width::TwoBytes, 2);
    assert_eq!(bar.writes.borrow().last(), Some(&last));
    // The notification registers have 16 bytes, so offset 4 lies beyond them.
    bar.set(COMMON + 30, &4u16.to_le_bytes());
    transport.notify(2);
    assert_eq!(bar.writes.borrow().last(), Some(&(COMMON + 22, Width::TwoBytes, 2)));
}

#[test]
fn a_device_without_device_specific_registers_works() {
    let bus = Bus::with(0x1058, 0, 3);
    // The list of capabilities has none for the device's own registers.
    bus.change(|words| {
        words[0x50 / 4] = 0x0310_7009;
        words[0x70 / 4] &= !0xff00;
    });
    let (mut transport, bar) = find(&bus).unwrap().unwrap();
    bar.set(COMMON + 24, &128u16.to_le_bytes());
    assert_eq!(transport.max_queue_size(0), 128);
    assert_eq!(transport.read_config_space::<u32>(0), Err(Error::ConfigSpaceMissing));
    assert_eq!(transport.write_config_space(0, 1_u32), Err(Error::ConfigSpaceMissing));
}

#[test]
fn events_are_mapped_to_an_entry_of_the_msi_x_table() {
    for refuses in [false, true] {
        let (mut transport, bar) = transport_and_bar();
        bar.refuses_vectors.set(refuses);
        let vectors = || [16, 26].map(|at| u16::from_le_bytes(bar.get(COMMON + at)));
        transport.queue_set(0, 8, 0x1000, 0x2000, 0x3000);
        assert_eq!(vectors(), [0xffff; 2], "no event has a vector before `interrupt_by`");
        transport.interrupt_by(3);
        transport.queue_set(0, 8, 0x1000, 0x2000, 0x3000);
        assert_eq!(vectors(), if refuses { [0xffff; 2] } else { [3; 2] });
        assert_eq!(transport.refuses_vector(), refuses);
        // The queue is enabled last.
        assert_eq!(bar.writes.borrow().last(), Some(&(COMMON + 28, Width::TwoBytes, 1)));
    }
}

#[test]
fn an_aligned_configuration_is_read_by_words() {
    let (mut transport, bar) = transport_and_bar();
    bar.set(DEVICE, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(transport.read_config_space::<u32>(4).unwrap(), 0x0807_0605);
    assert_eq!(transport.read_config_space::<u64>(0).unwrap(), 0x0807_0605_0403_0201);
    assert_eq!(transport.read_config_space::<u16>(2).unwrap(), 0x0403);
    assert_eq!(transport.read_config_space::<[u8; 3]>(1).unwrap(), [2, 3, 4]);
    assert_eq!(transport.read_config_space::<u64>(64), Err(Error::ConfigSpaceTooSmall));
    assert_eq!(transport.read_config_space::<u32>(usize::MAX), Err(Error::ConfigSpaceTooSmall));

    transport.write_config_space(4, 0x1122_3344_u32).unwrap();
    transport.write_config_space(60, 0x5566_u16).unwrap();
    assert_eq!(bar.get(DEVICE + 4), [0x44, 0x33, 0x22, 0x11]);
    assert_eq!(bar.get(DEVICE + 60), [0x66, 0x55, 0, 0]);
    assert_eq!(transport.write_config_space(61, 0_u32), Err(Error::ConfigSpaceTooSmall));
    bar.set(COMMON + 21, &[9]);
    assert_eq!(transport.read_config_generation(), 9);
}

#[test]
fn interrupts_are_acknowledged_and_dropping_resets_the_device() {
    let (mut transport, bar) = transport_and_bar();
    bar.set(ISR, &[2]);
    let changed = InterruptStatus::DEVICE_CONFIGURATION_INTERRUPT;
    assert!(transport.ack_interrupt() == changed);
    transport.finish_init();
    assert!(transport.get_status().contains(DeviceStatus::DRIVER_OK));
    drop(transport);
    assert_eq!(bar.get(COMMON + 20), [0]);
}

#[test]
fn registers_are_accessed_through_a_pointer() {
    let mut words = [0x0403_0201_u32, 0x0807_0605];
    let start = NonNull::from(&mut words).cast();
    // SAFETY: the registers exist until the end of the test, and no other code uses them.
    let mut registers = unsafe { Mmio::new(start, 8) };
    let widths = [Width::OneByte, Width::TwoBytes, Width::FourBytes];
    assert_eq!(widths.map(|width| registers.read(4, width)), [5, 0x0605, 0x0807_0605]);
    registers.write(0, Width::OneByte, 0xaa);
    registers.write(2, Width::TwoBytes, 0xbbcc);
    registers.write(4, Width::FourBytes, 0xdddd_eeee);
    assert_eq!(widths.map(|width| registers.read(0, width)), [0xaa, 0x02aa, 0xbbcc_02aa]);
    assert_eq!(registers.read(4, Width::FourBytes), 0xdddd_eeee);
    assert_eq!(words, [0xbbcc_02aa, 0xdddd_eeee].map(u32::to_le));
}

#[test]
#[should_panic(expected = "the access at 6 exceeds the 8 bytes")]
fn an_access_beyond_the_registers_is_refused() {
    let mut words = [0_u32; 2];
    // SAFETY: as above.
    let registers = unsafe { Mmio::new(NonNull::from(&mut words).cast(), 8) };
    registers.read(6, Width::FourBytes);
}
