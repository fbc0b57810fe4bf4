//! Tests of zones: whether a zone is contiguous while memory is plugged and unplugged.
//!
//! The machine is a PC with 2 GiB of boot memory and a virtio-mem device whose memory begins at 4
//! GiB. On such a machine, a linux-mm patch by Yuan Liu (March 2026) measured the time that Linux
//! takes to update `zone->contiguous`.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Resize, Vm, Zone, ZoneName};

/// The size of a Linux memory block on such a machine.
const BLOCK: Bytes = Bytes::mib(128);
const BLOCKS: u64 = 8;

fn machine(device_memory: Bytes, online: &str) -> Config {
    let config = config(device_memory).with_guest_option("online", online);
    Config { boot_memory: Bytes::gib(2), block_size: BLOCK, ..config }
}

fn blocks(count: u64) -> Bytes {
    Bytes(BLOCK.0 * count)
}

/// Returns the zone after a resize by one block. Checks that the guest has queried once whether the
/// zone is contiguous, and that the answer was yes.
fn zone_of(resize: &Resize) -> Zone {
    let zone =
        resize.zone.unwrap_or_else(|| panic!("the event of the resize has no zone: {resize:?}"));
    assert_eq!((zone.queries, zone.contiguous_answers), (1, 1), "{zone:?}");
    zone
}

#[test]
fn a_zone_is_contiguous_after_each_plugged_or_unplugged_block() {
    let cases = [
        ("online", ZoneName::Kernel),
        ("online_kernel", ZoneName::Kernel),
        ("online_movable", ZoneName::Movable),
    ];
    for (online, name) in cases {
        let max = blocks(BLOCKS);
        let config =
            machine(max, online).with_guest_option("exit", format!("size:{}", blocks(1).0));
        let mut vm = start(&config);
        let counts = (2..=BLOCKS).chain((3..BLOCKS).rev());
        for count in counts {
            let zone = zone_of(&vm.resize_checked(blocks(count)));
            assert_eq!((zone.name, zone.described_holes), (name, 0));
            // Boot memory below 4 GiB is in another zone.
            assert_eq!((zone.spanned, zone.online), (blocks(count).0, blocks(count).0), "{online}");
        }
        // All memory is unplugged in one resize.
        vm.resize_checked(Bytes::ZERO);
        assert_eq!(vm.resize_checked(max).zone.map(|zone| zone.spanned), Some(max.0));
        vm.finish(blocks(1));
    }
}

/// This machine has 3008 MiB of boot memory: 2 GiB below 4 GiB, and 960 MiB above. It ends 64 MiB
/// below the device's memory, in the middle of a section.
#[test]
fn a_zone_with_a_hole_is_contiguous_only_if_the_hole_has_descriptors() {
    let boot_memory = Bytes(Bytes::gib(3).0 - Bytes::mib(64).0);
    for (is_described, described_holes) in [(true, Bytes::mib(64)), (false, Bytes::ZERO)] {
        let config =
            machine(blocks(2), "online").with_guest_option("exit", format!("size:{}", blocks(1).0));
        let config =
            if is_described { config.with_guest_option("descriptors", 64) } else { config };
        let mut vm = start(&Config { boot_memory, ..config });
        let zone = vm.resize_checked(blocks(2)).zone.unwrap();
        assert_eq!((zone.name, zone.described_holes), (ZoneName::Kernel, described_holes.0));
        assert_eq!(zone.spanned, Bytes::gib(1).0 + blocks(2).0);
        assert_eq!(zone.online, zone.spanned - Bytes::mib(64).0);
        assert_eq!((zone.queries, zone.contiguous_answers), (1, u64::from(is_described)));
        // The guest checks the descriptors of each run, including those of holes.
        vm.finish(blocks(1));
    }
}

#[test]
fn memory_that_stays_offline_is_in_no_zone() {
    let mut vm = start(&machine(blocks(2), "offline").with_guest_option("exit", "resizes:3"));
    assert_eq!(vm.resize(blocks(2)).unwrap().zone, None);
    assert_eq!(vm.resize(blocks(1)).unwrap().zone, None);
    vm.finish(Bytes::ZERO);
}

#[test]
fn a_scan_finds_one_run_in_each_contiguous_zone() {
    let config = machine(blocks(BLOCKS), "online").with_guest_option("exit", "resizes:1");
    let mut vm = Vm::start(&config).unwrap();
    let device = |event: &Event| matches!(event, Event::Device { .. }).then_some(());
    vm.wait("device", device).unwrap();
    vm.request(blocks(BLOCKS)).unwrap();
    let scanned = |event: &Event| match *event {
        Event::Scanned { runs, blocks, .. } => Some((runs, blocks)),
        _ => None,
    };
    let ((runs, pageblocks), _) = vm.wait("scan", scanned).unwrap();
    // One run is low memory, and the other run is the device's memory.
    assert_eq!((runs, pageblocks), (2, (2048 + 1024) / 2));
    vm.finish().unwrap();
}
