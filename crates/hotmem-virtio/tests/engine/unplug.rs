//! Tests that memory is unplugged, or stays plugged and in use.

use super::SECOND;
use super::device::{BUSY, ERROR, Fault, NACK};
use super::machine::{GIB, Guest, MIB, Machine};
use core::time::Duration;
use hotmem::{
    AllocRequest, Blocker, BlockerKind, Budget, NoHooks, OnlineType, PfnRange, Progress, State,
};
use hotmem_virtio::mem::{HotplugMemory, Pending, Reason, Status, Step};

#[test]
fn memory_that_cannot_be_migrated_stays_and_is_the_blocker() {
    let machine = Machine::new();
    let mut guest = Guest::plugged(&machine, 2 * MIB, OnlineType::Kernel);
    let pinned = guest.kernel.allocate_at(guest.at_offset(300 * MIB));
    guest.kernel.has_pinned_allocations = true;
    guest.resize(0);
    guest.run(SECOND);
    assert_eq!(guest.driver.plugged().0, 2 * MIB, "more than one pageblock stays plugged");
    let blocker = Blocker { range: pinned, kind: BlockerKind::Unmovable("pinned by the test") };
    let status = Status::Pending(Pending::Memory(Reason::Blocked(blocker)));
    assert_eq!(guest.driver.status(), status);
    guest.kernel.free_all();
    guest.run(5 * SECOND);
    guest.assert_reached();
}

/// The kernel migrates nothing. It replaces its allocations: it makes a new allocation before it
/// frees the old one.
#[test]
fn memory_is_unplugged_while_the_kernel_allocates_and_frees() {
    let machine = Machine::new();
    let mut guest = Guest::plugged(&machine, 2 * MIB, OnlineType::Kernel);
    for block in [10, 11, 300] {
        guest.kernel.allocate_at(guest.at_offset(block * 2 * MIB));
    }
    guest.kernel.has_pinned_allocations = true;
    guest.resize(0);
    // Between two tries of the driver, the kernel replaces all its allocations.
    for _ in 0..200 {
        guest.run(Duration::from_millis(50));
        guest.kernel.replace_all();
    }
    guest.assert_reached();
}

/// The driver keeps a unit isolated while it waits. It releases the unit when the host requests no
/// more memory back, when the driver fails, or when another driver starts.
#[test]
fn an_isolated_unit_is_released_when_no_more_memory_must_be_unplugged() {
    let stop_shrink: [fn(&mut Guest<'_>); 3] = [
        |guest| guest.request_plugged_size(),
        |guest| guest.fail(),
        |guest| guest.restart_driver(),
    ];
    for stop in stop_shrink {
        let machine = Machine::new();
        let mut guest = Guest::plugged(&machine, 2 * MIB, OnlineType::Kernel);
        let pinned = guest.kernel.allocate_at(guest.at_offset(300 * MIB));
        guest.kernel.has_pinned_allocations = true;
        guest.resize(0);
        guest.run(SECOND);
        assert_eq!(guest.driver.plugged().0, 2 * MIB);
        let neighbour = AllocRequest::frames(1).at(pinned.end());
        assert!(machine.frames.alloc(neighbour).is_err(), "the unit is not isolated");
        stop(&mut guest);
        drop(machine.frames.alloc(neighbour).unwrap());
        assert_eq!(
            guest.kernel.frames_going_offline, 0,
            "each going_offline was followed by offlined or offline_cancelled"
        );
    }
}

#[test]
fn memory_stays_plugged_if_the_kernel_vetoes_its_removal() {
    let machine = Machine::new();
    let mut guest = Guest::plugged(&machine, 2 * MIB, OnlineType::Movable);
    guest.kernel.vetoes_offlining = true;
    guest.resize(0);
    guest.run(SECOND);
    let status = guest.driver.status();
    let Status::Pending(Pending::Memory(Reason::Blocked(blocker))) = status else {
        panic!("{status:?}")
    };
    assert_eq!(blocker.kind, BlockerKind::Veto("vetoed by the test"));
    assert_eq!(guest.driver.plugged().0, GIB);
    guest.kernel.vetoes_offlining = false;
    guest.run(5 * SECOND);
    guest.assert_reached();
    assert_eq!(
        guest.kernel.frames_going_offline, 0,
        "each going_offline was followed by offlined or offline_cancelled"
    );
}

#[test]
fn memory_that_the_device_refuses_to_unplug_is_used_again() {
    for (answer, block) in [(NACK, 2 * MIB), (BUSY, 4096)] {
        let machine = Machine::new();
        let mut guest = Guest::plugged(&machine, block, OnlineType::Movable);
        let free = machine.frames.counts().free;
        guest.device.default_fault = Some(Fault::Refuse(answer));
        guest.resize(0);
        guest.run(SECOND);
        assert_eq!(machine.frames.counts().free, free);
        assert!(guest.kernel.is_all_mapped(guest.driver.config().managed()));
        let allocation = machine.frames.alloc(AllocRequest::order(15).movable()).unwrap();
        assert!(guest.driver.config().managed().covers(allocation.range()));
        drop(allocation);
        guest.device.default_fault = None;
        guest.run(10 * SECOND);
        guest.assert_reached();
    }
}

#[test]
fn memory_in_an_unknown_state_is_not_used() {
    let machine = Machine::new();
    let mut guest = Guest::plugged(&machine, 2 * MIB, OnlineType::Movable);
    let free_boot_frames = machine.frames.counts().free - (GIB >> 12);
    guest.device.default_fault = Some(Fault::Refuse(ERROR));
    guest.resize(0);
    guest.run(SECOND);
    // The device answers ERROR to UNPLUG, and to the query about its effect.
    assert!(machine.frames.counts().free <= free_boot_frames);
    guest.device.default_fault = None;
    guest.resize(GIB);
    guest.run(SECOND);
    guest.assert_reached();
    assert_eq!(machine.frames.counts().free, free_boot_frames + (GIB >> 12));
}

#[test]
fn only_the_offline_part_of_partly_offline_memory_is_unplugged() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 16 * MIB, 64 * MIB, OnlineType::Offline);
    guest.resize(64 * MIB);
    guest.poll();
    let online_part = PfnRange::with_len(guest.at_offset(52 * MIB), 512).unwrap();
    guest.hotplug.as_mut().unwrap().online(online_part, OnlineType::Kernel, &mut NoHooks).unwrap();
    guest.resize(16 * MIB);
    guest.run(SECOND);
    guest.assert_reached();
    assert!(guest.kernel.is_all_mapped(online_part));
}

#[test]
fn memory_that_holds_descriptors_is_unplugged_after_the_memory_that_they_describe() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    guest.kernel.keeps_descriptors = true;
    guest.resize(GIB);
    guest.poll();
    let metadata: Vec<_> = machine.frames.metadata().map(|metadata| metadata.frames).collect();
    let hotplug = guest.hotplug.as_mut().unwrap();
    let is_hotplugged =
        |range: &PfnRange| hotplug.state_at(range.start(), range.end()).1 == State::OnlineMovable;
    let descriptors = metadata.into_iter().rfind(is_hotplugged).unwrap();
    let mut offline = hotplug.offline(descriptors).unwrap();
    let progress = offline.poll(hotplug, &mut guest.kernel, Budget::UNLIMITED);
    assert_eq!(progress, Progress::Ready(descriptors));
    guest.resize(0);
    guest.run(SECOND);
    guest.assert_reached();
}

#[test]
fn migration_is_tried_for_each_shrink_and_not_for_each_request() {
    let machine = Machine::new();
    let mut guest = Guest::plugged(&machine, 2 * MIB, OnlineType::Movable);
    for i in 0..60 {
        guest.kernel.allocate_at(guest.at_offset((i * 16 + 1) * MIB));
    }
    guest.kernel.has_pinned_allocations = true;
    guest.resize(0);
    guest.poll();
    assert_eq!(guest.driver.plugged().0, 120 * MIB);
    // Migration of each allocation is tried at most two times: when its section is drained, and
    // when its pageblock is drained.
    assert!(guest.kernel.migrate_calls <= 2 * 60, "{}", guest.kernel.migrate_calls);
    let unplugs = guest.driver.statistics().requests - 1;
    assert!(unplugs > 50, "{unplugs}");
}

#[test]
fn a_cancelled_shrink_releases_isolated_memory() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    // With this budget, each step isolates one section.
    guest.memory = HotplugMemory::new(OnlineType::Movable, Budget { pageblocks: 0 });
    guest.resize(512 * MIB);
    guest.poll();
    let free = machine.frames.counts().free;
    guest.resize(0);
    for _ in 0..3 {
        assert_eq!(guest.step(), Step::Working);
    }
    assert!(machine.frames.counts().free < free);
    guest.resize(768 * MIB);
    guest.poll();
    guest.assert_reached();
    assert_eq!(machine.frames.counts().free, free + ((256 * MIB) >> 12));
}

#[test]
fn a_shrink_that_ends_early_releases_isolated_memory() {
    // A request has at most 65 535 blocks (of 4 KiB), so it ends inside a section. The remaining
    // part of the section is prepared for the next request.
    for target in [GIB - 254 * MIB, GIB] {
        let machine = Machine::new();
        let mut guest = Guest::plugged(&machine, 4096, OnlineType::Movable);
        guest.resize(0);
        while !matches!(guest.step(), Step::Ready(Ok(_))) {}
        guest.resize(target);
        assert_eq!(guest.poll(), Step::Idle);
        guest.assert_reached();
        let counts = machine.frames.counts();
        assert_eq!(counts.present, counts.online, "some present memory is offline");
        assert_eq!(counts.isolated, 0);
    }
}

/// While an unplug waits, the kernel uses nearly all memory, also that of the large units that the
/// unplug has isolated. The unplug goes on later.
#[test]
fn no_allocation_fails_while_an_unplug_that_waits_has_free_memory() {
    for block in [2 * MIB, 128 * MIB, GIB] {
        let machine = Machine::new();
        let mut guest = Guest::new(&machine, block, 2 * GIB, OnlineType::Movable);
        guest.resize(2 * GIB);
        guest.run(SECOND);
        let pinned = [0, GIB].map(|offset| guest.kernel.allocate_at(guest.at_offset(offset)));
        guest.kernel.has_pinned_allocations = true;
        guest.resize(0);
        guest.run(60 * SECOND);
        assert!(matches!(guest.driver.status(), Status::Pending(Pending::Memory(_))));
        let counts = machine.frames.counts();
        assert_eq!(counts.isolated, (block / 4096).min(counts.isolated));
        assert!(counts.isolated > 0, "units of {block}");
        let plugged = guest.driver.plugged().frames();
        let mut frames = vec![];
        while let Ok(frame) = machine.frames.alloc(AllocRequest::frames(1).movable()) {
            frames.push(frame);
        }
        let counts = machine.frames.counts();
        assert_eq!((counts.isolated, counts.free), (0, 0), "units of {block}");
        assert!(frames.len() as u64 >= plugged - pinned.len() as u64);
        guest.run(60 * SECOND);
        drop(frames);
        guest.kernel.free_all();
        guest.run(60 * SECOND);
        guest.assert_reached();
    }
}
