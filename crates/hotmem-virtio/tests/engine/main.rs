//! Tests the driver with the engine: memory is plugged, used, migrated and unplugged.

// The tests need a 64-bit machine and the engine's normal geometry.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)]
#[path = "../mem/device.rs"]
mod device;
mod kernel;
mod machine;
mod other_engine;
mod random;
mod refused;

use core::time::Duration;
use device::{BUSY, ERROR, Fault, NACK};
use hotmem::{
    AddError, AllocRequest, Blocker, BlockerKind, Budget, Bytes, NoHooks, OnlineType, PfnRange,
    Policy, Progress, RangeError, RangeErrorKind, State,
};
use hotmem_testkit::Validated as _;
use hotmem_virtio::mem::{Failure, Pending, Reason, Status, Step};
use machine::{GIB, MIB, Machine, REGION, World};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn memory_is_plugged_used_migrated_and_unplugged_at_every_block_size() {
    for (block, region) in
        [(4096, 512 * MIB), (256 << 10, 512 * MIB), (2 * MIB, GIB), (16 * MIB, GIB), (GIB, 4 * GIB)]
    {
        let machine = Machine::new();
        let mut world = World::new(&machine, block, region, OnlineType::Movable);
        world.resize(region);
        assert_eq!(world.poll(), Step::Idle);
        world.assert_reached();
        world.kernel.take(1000, AllocRequest::frames(1).movable());
        world.kernel.take(20, AllocRequest::order(9).movable());
        world.resize(region / 2);
        world.run(SECOND);
        world.assert_reached();
        world.kernel.free_all();
        world.resize(0);
        world.run(SECOND);
        world.assert_reached();
        assert_eq!(world.driver.plugged(), Bytes::ZERO);
        world.resize(region);
        world.run(SECOND);
        world.assert_reached();
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
            let mut world = World::new(&machine, 2 * MIB, GIB, kind);
            world.hotplug.as_mut().unwrap().settings.auto_online = auto;
            world.resize(GIB);
            world.poll();
            world.assert_reached();
            let managed = world.driver.config().managed();
            let found = world.hotplug.as_ref().unwrap().state_at(managed.start(), managed.end());
            assert_eq!(found, (managed, state), "{kind:?} under {auto:?}");
        }
    }
}

#[test]
fn the_memory_of_a_device_is_a_dynamic_group() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Online);
    let policy = Policy::AutoMovable { ratio_percent: 100, per_node: true };
    world.hotplug.as_mut().unwrap().settings.policy = policy;
    world.resize(GIB);
    world.poll();
    world.assert_reached();
    // At 100 %, 32 MiB of boot memory allow no movable unit of 128 MiB. Each unit that goes to the
    // kernel zone allows one movable unit.
    assert_eq!(machine.frames.counts().movable, Bytes(GIB / 2).frames());
}

#[test]
fn memory_that_cannot_be_migrated_stays_and_is_the_blocker() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Kernel);
    world.resize(GIB);
    world.poll();
    let pinned = world.kernel.take_at(world.at_offset(300 * MIB));
    world.kernel.pinned = true;
    world.resize(0);
    world.run(SECOND);
    assert_eq!(world.driver.plugged().0, 2 * MIB, "more than one pageblock stays plugged");
    let blocker = Blocker { range: pinned, kind: BlockerKind::Unmovable("pinned by the test") };
    let status = Status::Pending(Pending::Memory(Reason::Blocked(blocker)));
    assert_eq!(world.driver.status(), status);
    world.kernel.free_all();
    world.run(5 * SECOND);
    world.assert_reached();
}

/// The kernel migrates nothing. It replaces its allocations: it makes a new allocation before it
/// frees the old one.
#[test]
fn memory_is_unplugged_while_the_kernel_allocates_and_frees() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Kernel);
    world.resize(GIB);
    world.poll();
    for block in [10, 11, 300] {
        world.kernel.take_at(world.at_offset(block * 2 * MIB));
    }
    world.kernel.pinned = true;
    world.resize(0);
    // Between two tries of the driver, the kernel replaces all its allocations.
    for _ in 0..200 {
        world.run(Duration::from_millis(50));
        world.kernel.replace_all();
    }
    world.assert_reached();
}

/// The driver keeps a unit isolated while it waits. It releases the unit when the host requests no
/// more memory back, when the driver fails, or when another driver starts.
#[test]
fn an_isolated_unit_is_released_when_no_more_memory_must_be_unplugged() {
    let ends: [fn(&mut World<'_>); 3] = [
        |world| world.request_plugged_size(),
        |world| world.fail(),
        |world| world.restart_driver(),
    ];
    for end in ends {
        let machine = Machine::new();
        let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Kernel);
        world.resize(GIB);
        world.poll();
        let pinned = world.kernel.take_at(world.at_offset(300 * MIB));
        world.kernel.pinned = true;
        world.resize(0);
        world.run(SECOND);
        assert_eq!(world.driver.plugged().0, 2 * MIB);
        let beside = AllocRequest::frames(1).at(pinned.end());
        assert!(machine.frames.alloc(beside).is_err(), "the unit is not isolated");
        end(&mut world);
        drop(machine.frames.alloc(beside).unwrap());
        assert_eq!(
            world.kernel.frames_going_offline, 0,
            "each going_offline was followed by offlined or offline_cancelled"
        );
    }
}

#[test]
fn memory_stays_plugged_if_the_kernel_vetoes_its_removal() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.resize(GIB);
    world.poll();
    world.kernel.veto = true;
    world.resize(0);
    world.run(SECOND);
    let status = world.driver.status();
    let Status::Pending(Pending::Memory(Reason::Blocked(blocker))) = status else {
        panic!("{status:?}")
    };
    assert_eq!(blocker.kind, BlockerKind::Veto("vetoed by the test"));
    assert_eq!(world.driver.plugged().0, GIB);
    world.kernel.veto = false;
    world.run(5 * SECOND);
    world.assert_reached();
    assert_eq!(
        world.kernel.frames_going_offline, 0,
        "each going_offline was followed by offlined or offline_cancelled"
    );
}

#[test]
fn memory_that_the_device_refuses_to_unplug_is_used_again() {
    for (answer, block) in [(NACK, 2 * MIB), (BUSY, 4096)] {
        let machine = Machine::new();
        let mut world = World::new(&machine, block, GIB, OnlineType::Movable);
        world.resize(GIB);
        world.poll();
        let free = machine.frames.counts().free;
        world.device.default_fault = Some(Fault::Refuse(answer));
        world.resize(0);
        world.run(SECOND);
        assert_eq!(machine.frames.counts().free, free);
        assert!(world.kernel.is_all_mapped(world.driver.config().managed()));
        let taken = machine.frames.alloc(AllocRequest::order(15).movable()).unwrap();
        assert!(world.driver.config().managed().covers(taken.range()));
        drop(taken);
        world.device.default_fault = None;
        world.run(10 * SECOND);
        world.assert_reached();
    }
}

#[test]
fn memory_in_an_unknown_state_is_not_used() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.resize(GIB);
    world.poll();
    let boot = machine.frames.counts().free - (GIB >> 12);
    world.device.default_fault = Some(Fault::Refuse(ERROR));
    world.resize(0);
    world.run(SECOND);
    // The device answers ERROR to UNPLUG, and to the query about its effect.
    assert!(machine.frames.counts().free <= boot);
    world.device.default_fault = None;
    world.resize(GIB);
    world.run(SECOND);
    world.assert_reached();
    assert_eq!(machine.frames.counts().free, boot + (GIB >> 12));
}

#[test]
fn a_refused_plug_changes_nothing() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.kernel.table_frames_per_pageblock = 1;
    world.poll();
    let before = machine.frames.counts();
    world.device.default_fault = Some(Fault::Refuse(BUSY));
    world.resize(GIB);
    world.run(SECOND);
    assert_eq!(machine.frames.counts(), before);
    world.device.default_fault = None;
    world.resize(0);
    world.run(SECOND);
    world.assert_reached();
    assert_eq!(world.kernel.tables, 0);
}

#[test]
fn memory_that_is_kept_offline_is_plugged_and_unplugged() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Offline);
    let free = machine.frames.counts().free;
    world.resize(GIB);
    world.poll();
    world.assert_reached();
    assert!(machine.frames.counts().free <= free);
    world.device.faults.push_back(Fault::Refuse(BUSY));
    world.resize(256 * MIB);
    world.run(SECOND);
    world.assert_reached();
    assert!(
        machine.frames.counts().free <= free,
        "memory that the kernel keeps offline came online"
    );
    assert!(world.device.faults.is_empty());
}

#[test]
fn only_the_offline_part_of_partly_offline_memory_is_unplugged() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 16 * MIB, 64 * MIB, OnlineType::Offline);
    world.resize(64 * MIB);
    world.poll();
    let within = PfnRange::with_len(world.at_offset(52 * MIB), 512).unwrap();
    world.hotplug.as_mut().unwrap().online(within, OnlineType::Kernel, &mut NoHooks).unwrap();
    world.resize(16 * MIB);
    world.run(SECOND);
    world.assert_reached();
    assert!(world.kernel.is_all_mapped(within));
}

#[test]
fn memory_that_holds_descriptors_is_unplugged_after_the_memory_that_they_describe() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.kernel.keeps_descriptors = true;
    world.resize(GIB);
    world.poll();
    let kept: Vec<_> = machine.frames.metadata().map(|metadata| metadata.frames).collect();
    let hotplug = world.hotplug.as_mut().unwrap();
    let is_ours =
        |kept: &PfnRange| hotplug.state_at(kept.start(), kept.end()).1 == State::OnlineMovable;
    let kept = kept.into_iter().rfind(is_ours).unwrap();
    let mut offline = hotplug.offline(kept).unwrap();
    let done = offline.poll(hotplug, &mut world.kernel, Budget::UNLIMITED);
    assert_eq!(done, Progress::Ready(kept));
    world.resize(0);
    world.run(SECOND);
    world.assert_reached();
}

#[test]
fn gaps_below_pinned_memory_are_filled() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.resize(512 * MIB);
    world.poll();
    world.kernel.take_at(world.at_offset(511 * MIB));
    world.kernel.pinned = true;
    world.resize(256 * MIB);
    world.run(SECOND);
    world.assert_reached();
    world.device.requests.clear();
    world.resize(GIB);
    world.run(SECOND);
    world.assert_reached();
    let plugs: Vec<_> = world.device.requests.iter().map(|r| (r.1 - REGION, r.2)).collect();
    assert_eq!(plugs, [(254 * MIB, 256 * MIB), (512 * MIB, 512 * MIB)]);
}

#[test]
fn migration_is_tried_for_each_shrink_and_not_for_each_request() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.resize(GIB);
    world.poll();
    for i in 0..60 {
        world.kernel.take_at(world.at_offset((i * 16 + 1) * MIB));
    }
    world.kernel.pinned = true;
    world.resize(0);
    world.poll();
    assert_eq!(world.driver.plugged().0, 120 * MIB);
    // Migration of each allocation is tried at most two times: when its section is drained, and when
    // its pageblock is drained.
    assert!(world.kernel.migrate_calls <= 2 * 60, "{}", world.kernel.migrate_calls);
    let unplugs = world.driver.statistics().requests - 1;
    assert!(unplugs > 50, "{unplugs}");
}

#[test]
fn a_cancelled_shrink_releases_isolated_memory() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.resize(512 * MIB);
    world.poll();
    let free = machine.frames.counts().free;
    world.resize(0);
    for _ in 0..3 {
        assert_eq!(world.step(), Step::Working);
    }
    assert!(machine.frames.counts().free < free);
    world.resize(768 * MIB);
    world.poll();
    world.assert_reached();
    assert_eq!(machine.frames.counts().free, free + ((256 * MIB) >> 12));
}

#[test]
fn a_shrink_that_ends_early_releases_isolated_memory() {
    // A request has at most 65 535 blocks (of 4 KiB), so it ends inside a section. The remaining
    // part of the section is prepared for the next request.
    for target in [GIB - 254 * MIB, GIB] {
        let machine = Machine::new();
        let mut world = World::new(&machine, 4096, GIB, OnlineType::Movable);
        world.resize(GIB);
        world.poll();
        world.resize(0);
        while !matches!(world.step(), Step::Ready(Ok(_))) {}
        world.resize(target);
        assert_eq!(world.poll(), Step::Idle);
        world.assert_reached();
        let counts = machine.frames.counts();
        assert_eq!(counts.present, counts.online, "some present memory is offline");
        assert_eq!(counts.isolated, 0);
    }
}

#[test]
fn a_region_over_boot_memory_is_refused() {
    let machine = Machine::new();
    let mut world = World::at(&machine, 2 * MIB, 0, GIB, OnlineType::Movable);
    world.resize(GIB);
    let boot_memory = PfnRange::from_bytes(0, Bytes::mib(32)).unwrap();
    let error = RangeError { range: boot_memory, kind: RangeErrorKind::Announced };
    assert_eq!(world.poll(), Step::Ready(Err(Failure::Region(Reason::Range(error)))));
    machine.frames.validated().unwrap();
}

#[test]
fn a_machine_with_little_memory_for_page_tables_plugs_as_much_as_possible() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Kernel);
    world.poll();
    // Each pageblock needs a page table, and only 40 frames are free.
    world.kernel.table_frames_per_pageblock = 1;
    world.kernel.allocate_all_but(40);
    world.resize(GIB);
    world.run(SECOND);
    world.assert_reached();
    assert!(world.driver.statistics().requests > 1);
    // If no frame is free, the resize is pending until a frame is freed.
    world.resize(0);
    world.run(SECOND);
    world.assert_reached();
    world.kernel.allocate_all_but(0);
    world.resize(GIB);
    world.run(SECOND);
    let status = world.driver.status();
    let no_tables =
        matches!(status, Status::Pending(Pending::Memory(Reason::Add(AddError::NoTables { .. }))));
    assert!(no_tables, "{status:?}");
    world.kernel.free_all();
    world.run(5 * SECOND);
    world.assert_reached();
}

#[test]
fn two_devices_share_one_engine() {
    let machine = Machine::new();
    let hotplug = machine.boot();
    let mut first = World::in_machine(&machine, 2 * MIB, REGION, GIB, OnlineType::Movable);
    let mut second =
        World::in_machine(&machine, 16 * MIB, REGION + 2 * GIB, GIB, OnlineType::Kernel);
    let mut hotplug = Some(hotplug);
    for (a, b) in [(GIB, 512 * MIB), (128 * MIB, GIB), (0, 0), (GIB, GIB)] {
        first.resize(a);
        second.resize(b);
        for world in [&mut first, &mut second] {
            world.hotplug = hotplug.take();
            world.run(SECOND);
            assert_eq!(world.driver.status(), Status::Reached);
            hotplug = world.hotplug.take();
        }
        assert_eq!((first.driver.plugged().0, second.driver.plugged().0), (a, b));
        machine.frames.validated().unwrap();
    }
}

#[test]
fn memory_that_is_plugged_already_is_adopted() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    for block in (0..100).chain(200..300) {
        world.device.preplug(block);
    }
    world.resize(400 * MIB);
    world.run(SECOND);
    world.assert_reached();
    assert_eq!(world.device.blocks.iter().filter(|&&b| b).count(), 200);
    assert!(world.device.blocks[299]);
}
