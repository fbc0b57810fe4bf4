//! Tests the driver with the engine: memory is plugged, used, migrated and unplugged.

// The tests need a 64-bit machine and the engine's normal geometry.
#![allow(clippy::cast_possible_truncation)]

#[path = "../common/case_count.rs"]
mod case_count;
#[allow(dead_code)]
#[path = "../mem/device.rs"]
mod device;
mod kernel;
mod machine;
mod other_instance;
mod random;
mod shared_sections;
mod unplug;
mod vetoed_onlining;
mod zeroed;

use core::time::Duration;
use device::{BUSY, Fault};
use hotmem::{
    AddError, AllocRequest, Bytes, OnlineType, PfnRange, Policy, RangeError, RangeErrorKind, State,
};
use hotmem_testkit::Validated as _;
use hotmem_virtio::balloon::{EngineMemory, FrameList, Memory as _};
use hotmem_virtio::mem::{Failure, Pending, Reason, Status, Step};
use machine::{GIB, Guest, MIB, Machine, REGION_ADDR};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn memory_is_plugged_used_migrated_and_unplugged_at_every_block_size() {
    for (block, region) in
        [(4096, 512 * MIB), (256 << 10, 512 * MIB), (2 * MIB, GIB), (16 * MIB, GIB), (GIB, 4 * GIB)]
    {
        let machine = Machine::new();
        let mut guest = Guest::new(&machine, block, region, OnlineType::Movable);
        guest.resize(region);
        assert_eq!(guest.poll(), Step::Idle);
        guest.assert_reached();
        guest.kernel.allocate(1000, AllocRequest::frames(1).movable());
        guest.kernel.allocate(20, AllocRequest::order(9).movable());
        guest.resize(region / 2);
        guest.run(SECOND);
        guest.assert_reached();
        guest.kernel.free_all();
        guest.resize(0);
        guest.run(SECOND);
        guest.assert_reached();
        assert_eq!(guest.driver.plugged(), Bytes::ZERO);
        guest.resize(region);
        guest.run(SECOND);
        guest.assert_reached();
    }
}

#[test]
fn the_drivers_online_type_overrides_auto_online() {
    use OnlineType::{Kernel, Movable, Offline, Online};
    for auto in [Offline, Online, Kernel, Movable] {
        for kind in [None, Some(Movable), Some(Kernel), Some(Offline)] {
            let state = match kind.unwrap_or(auto) {
                Offline => State::Offline,
                Movable => State::OnlineMovable,
                _ => State::Online,
            };
            let machine = Machine::new();
            let mut guest = Guest::new(&machine, 2 * MIB, GIB, kind);
            guest.hotplug.as_mut().unwrap().settings.auto_online = auto;
            guest.resize(GIB);
            guest.poll();
            guest.assert_reached();
            let managed = guest.driver.config().managed();
            let found = guest.hotplug.as_ref().unwrap().state_at(managed.start(), managed.end());
            assert_eq!(found, (managed, state), "{kind:?} under {auto:?}");
        }
    }
}

#[test]
fn the_memory_of_a_device_is_a_dynamic_group() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Online);
    let policy = Policy::AutoMovable { ratio_percent: 100, per_node: true };
    guest.hotplug.as_mut().unwrap().settings.policy = policy;
    guest.resize(GIB);
    guest.poll();
    guest.assert_reached();
    // At 100 %, 32 MiB of boot memory allow no movable unit of 128 MiB. Each unit that goes to the
    // kernel zone allows one movable unit.
    assert_eq!(machine.frames.counts().movable, Bytes(GIB / 2).frames());
}

/// A unit that is larger than a section is unplugged as a whole, so it is in one zone.
#[test]
fn a_unit_of_a_device_is_in_one_zone() {
    for block in [2 * MIB, 128 * MIB, 256 * MIB, 512 * MIB, GIB] {
        let machine = Machine::new();
        let mut guest = Guest::new(&machine, block, 4 * GIB, OnlineType::Online);
        let policy = Policy::AutoMovable { ratio_percent: 100, per_node: true };
        guest.hotplug.as_mut().unwrap().settings.policy = policy;
        guest.resize(4 * GIB);
        guest.run(SECOND);
        guest.assert_reached();
        assert_eq!(machine.frames.counts().movable, Bytes(2 * GIB).frames());
        let region = guest.driver.config().managed();
        let mut kernel_units = 0;
        for unit in region.chunks(Bytes(block).frames()) {
            let (run, state) = guest.hotplug.as_ref().unwrap().state_at(unit.start(), unit.end());
            assert_eq!(run, unit, "a unit of {block} is in two zones");
            if state == State::Online {
                kernel_units += 1;
                guest.kernel.allocate_at(unit.start());
            }
        }
        // Kernel memory in use keeps the units of the kernel zone plugged, and no others.
        guest.kernel.has_pinned_allocations = true;
        guest.resize(0);
        guest.run(5 * SECOND);
        assert_eq!(guest.driver.plugged().0, kernel_units * block, "units of {block}");
        assert_eq!(machine.frames.validated().unwrap().movable, 0);
    }
}

#[test]
fn a_refused_plug_changes_nothing() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    guest.kernel.table_frames_per_pageblock = 1;
    guest.poll();
    let before = machine.frames.counts();
    guest.device.default_fault = Some(Fault::Refuse(BUSY));
    guest.resize(GIB);
    guest.run(SECOND);
    assert_eq!(machine.frames.counts(), before);
    guest.device.default_fault = None;
    guest.resize(0);
    guest.run(SECOND);
    guest.assert_reached();
    assert_eq!(guest.kernel.tables, []);
}

#[test]
fn memory_that_is_kept_offline_is_plugged_and_unplugged() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Offline);
    let free = machine.frames.counts().free;
    guest.resize(GIB);
    guest.poll();
    guest.assert_reached();
    assert!(machine.frames.counts().free <= free);
    guest.device.faults.push_back(Fault::Refuse(BUSY));
    guest.resize(256 * MIB);
    guest.run(SECOND);
    guest.assert_reached();
    assert!(
        machine.frames.counts().free <= free,
        "memory that the kernel keeps offline came online"
    );
    assert!(guest.device.faults.is_empty());
}

#[test]
fn gaps_below_pinned_memory_are_filled() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    guest.resize(512 * MIB);
    guest.poll();
    guest.kernel.allocate_at(guest.at_offset(511 * MIB));
    guest.kernel.has_pinned_allocations = true;
    guest.resize(256 * MIB);
    guest.run(SECOND);
    guest.assert_reached();
    guest.device.requests.clear();
    guest.resize(GIB);
    guest.run(SECOND);
    guest.assert_reached();
    let plugs: Vec<_> = guest.device.requests.iter().map(|r| (r.1 - REGION_ADDR, r.2)).collect();
    assert_eq!(plugs, [(254 * MIB, 256 * MIB), (512 * MIB, 512 * MIB)]);
}

#[test]
fn a_region_over_boot_memory_is_refused() {
    let machine = Machine::new();
    let mut guest = Guest::at(&machine, 2 * MIB, 0, GIB, OnlineType::Movable);
    guest.resize(GIB);
    let boot_memory = PfnRange::from_bytes(0, Bytes::mib(32)).unwrap();
    let error = RangeError { range: boot_memory, kind: RangeErrorKind::Announced };
    assert_eq!(guest.poll(), Step::Ready(Err(Failure::Region(Reason::Range(error)))));
    machine.frames.validated().unwrap();
}

#[test]
fn a_machine_with_little_memory_for_page_tables_plugs_as_much_as_possible() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Kernel);
    guest.poll();
    // Each pageblock needs a page table, and only 40 frames are free.
    guest.kernel.table_frames_per_pageblock = 1;
    guest.kernel.allocate_all_but(40);
    guest.resize(GIB);
    guest.run(SECOND);
    guest.assert_reached();
    assert!(guest.driver.statistics().requests > 1);
    // If no frame is free, the resize is pending until a frame is freed.
    guest.resize(0);
    guest.run(SECOND);
    guest.assert_reached();
    guest.kernel.allocate_all_but(0);
    guest.resize(GIB);
    guest.run(SECOND);
    let status = guest.driver.status();
    let no_tables =
        matches!(status, Status::Pending(Pending::Memory(Reason::Add(AddError::NoTables { .. }))));
    assert!(no_tables, "{status:?}");
    guest.kernel.free_all();
    guest.run(5 * SECOND);
    guest.assert_reached();
}

#[test]
fn a_plug_that_lacks_memory_for_page_tables_succeeds_once_a_balloon_has_returned_it() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    guest.resize(128 * MIB);
    guest.poll();
    guest.assert_reached();
    // The balloon takes all memory, kernel memory and movable memory.
    let mut balloon = EngineMemory::new(&machine.frames, 0);
    let mut list = FrameList::with_room(512);
    while balloon.inflate(&mut list).is_ok() {
        list = FrameList::with_room(512);
    }
    assert_eq!(guest.memory.take_missing_frames(), 0);
    guest.kernel.allocate_all_but(0);
    guest.kernel.table_frames_per_pageblock = 1;
    guest.resize(GIB);
    guest.run(SECOND);
    while guest.driver.status() != Status::Reached {
        let missing = guest.memory.take_missing_frames();
        assert!(missing > 0, "{:?}", guest.driver.status());
        // The driver has tried several times, and lacks the same frames each time.
        assert_eq!(guest.memory.take_missing_frames(), 0);
        balloon.need(missing);
        let mut list = FrameList::with_room(512);
        balloon.deflate(&mut list);
        balloon.deflated(&list);
        let plugged = guest.driver.plugged();
        guest.run(5 * SECOND);
        assert!(guest.driver.plugged() > plugged, "only movable memory has come back");
    }
    guest.assert_reached();
}

#[test]
fn two_devices_share_one_engine() {
    let machine = Machine::new();
    let hotplug = machine.boot();
    let mut first = Guest::in_machine(&machine, 2 * MIB, REGION_ADDR, GIB, OnlineType::Movable);
    let mut second =
        Guest::in_machine(&machine, 16 * MIB, REGION_ADDR + 2 * GIB, GIB, OnlineType::Kernel);
    let mut hotplug = Some(hotplug);
    for (a, b) in [(GIB, 512 * MIB), (128 * MIB, GIB), (0, 0), (GIB, GIB)] {
        first.resize(a);
        second.resize(b);
        for guest in [&mut first, &mut second] {
            guest.hotplug = hotplug.take();
            guest.run(SECOND);
            assert_eq!(guest.driver.status(), Status::Reached);
            hotplug = guest.hotplug.take();
        }
        assert_eq!((first.driver.plugged().0, second.driver.plugged().0), (a, b));
        machine.frames.validated().unwrap();
    }
}

#[test]
fn memory_that_is_plugged_already_is_adopted() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    for block in (0..100).chain(200..300) {
        guest.device.preplug(block);
    }
    guest.resize(400 * MIB);
    guest.run(SECOND);
    guest.assert_reached();
    assert_eq!(guest.device.blocks.iter().filter(|&&b| b).count(), 200);
    assert!(guest.device.blocks[299]);
}
