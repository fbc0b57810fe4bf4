//! Tests with a kernel that vetoes the onlining of plugged memory: the driver's status contains the
//! reason, the driver retries the onlining, and the size is not reached before it succeeds.

use crate::machine::{GIB, MIB, Machine, REGION, World};
use core::time::Duration;
use hotmem::{
    AllocRequest, Bytes, NoHooks, OnlineType, Poisoned, RangeError, RangeErrorKind, State, Veto,
};
use hotmem_testkit::Validated as _;
use hotmem_virtio::mem::{Pending, Reason, Status};

const SECOND: Duration = Duration::from_secs(1);
const VETO: Option<&str> = Some("not now");

/// Makes a world with a requested size of 1 GiB, and a kernel that vetoes onlining.
fn refused(machine: &Machine) -> World<'_> {
    let mut world = World::new(machine, 2 * MIB, GIB, OnlineType::Movable);
    world.kernel.online_veto = Some("not now");
    world.resize(GIB);
    world.run(SECOND);
    world
}

/// Returns the kernel's reason, if the driver's status contains a veto.
fn veto(world: &World<'_>) -> Option<&'static str> {
    match world.driver.status() {
        Status::Pending(Pending::Memory(Reason::Range(RangeError {
            kind: RangeErrorKind::Vetoed(Veto(reason)),
            ..
        }))) => Some(reason),
        _ => None,
    }
}

fn movable(machine: &Machine) -> Bytes {
    Bytes(machine.frames.validated().unwrap().movable << 12)
}

#[test]
fn a_veto_is_reported_and_retried() {
    let machine = Machine::new();
    let mut world = refused(&machine);
    assert_eq!((veto(&world), movable(&machine)), (VETO, Bytes::ZERO));
    assert!(world.driver.statistics().postponed > 6);
    world.kernel.online_veto = None;
    world.run(5 * SECOND);
    world.assert_reached();
    assert_eq!((movable(&machine), world.kernel.coming), (Bytes(GIB), 0));
}

#[test]
fn no_memory_is_plugged_while_plugged_memory_is_vetoed() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.kernel.online_veto = Some("not now");
    world.resize(256 * MIB);
    world.run(SECOND);
    world.resize(GIB);
    world.run(SECOND);
    assert_eq!((veto(&world), world.driver.plugged()), (VETO, Bytes::mib(256)));
    world.kernel.online_veto = None;
    world.run(5 * SECOND);
    world.assert_reached();
    assert_eq!(movable(&machine), Bytes(GIB));
}

#[test]
fn vetoed_memory_can_be_unplugged() {
    let machine = Machine::new();
    let mut world = refused(&machine);
    world.resize(256 * MIB);
    world.run(5 * SECOND);
    assert_eq!((veto(&world), world.driver.plugged()), (VETO, Bytes::mib(256)));
    world.resize(0);
    world.run(SECOND);
    world.assert_reached();
}

#[test]
fn adopted_memory_can_be_vetoed() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    (0..100).chain(200..300).for_each(|block| world.device.preplug(block));
    world.kernel.online_veto = Some("not now");
    world.resize(400 * MIB);
    world.run(SECOND);
    assert_eq!((veto(&world), movable(&machine)), (VETO, Bytes::ZERO));
    world.kernel.online_veto = None;
    world.run(5 * SECOND);
    world.assert_reached();
    assert_eq!(movable(&machine), Bytes::mib(400));
}

#[test]
fn the_status_contains_the_latest_reason() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.resize(256 * MIB);
    world.poll();
    world.kernel.take_at(world.at_offset(100 * MIB));
    world.kernel.pinned = true;
    world.resize(0);
    world.run(SECOND);
    let status = world.driver.status();
    assert!(matches!(status, Status::Pending(Pending::Memory(Reason::Blocked(_)))), "{status:?}");
    world.kernel.online_veto = Some("not now");
    world.resize(GIB);
    world.run(SECOND);
    assert_eq!(veto(&world), VETO);
}

#[test]
fn memory_that_is_poisoned_before_onlining_stays_offline_and_blocks_nothing() {
    let machine = Machine::new();
    let mut world = refused(&machine);
    let bad = world.at_offset(300 * MIB + 4096);
    assert_eq!(world.hotplug.as_mut().unwrap().poison(bad), Ok(Poisoned::Quarantined));
    world.kernel.online_veto = None;
    world.run(5 * SECOND);
    world.assert_reached();
    assert_eq!(movable(&machine), Bytes(GIB - 2 * MIB));
    let taken =
        std::iter::from_fn(|| machine.frames.alloc(AllocRequest::frames(512).movable()).ok());
    let taken: Vec<_> = taken.take(1000).collect();
    assert!(taken.iter().all(|taken| !taken.range().contains(bad)));
}

#[test]
fn memory_that_the_kernel_took_offline_stays_offline() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.resize(512 * MIB);
    world.poll();
    let part = hotmem::PfnRange::with_len(world.at_offset(0), 512).unwrap();
    let hotplug = world.hotplug.as_mut().unwrap();
    let mut offline = hotplug.offline(part).unwrap();
    let _ = offline.poll(hotplug, &mut NoHooks, hotmem::Budget::UNLIMITED);
    world.resize(GIB);
    world.run(SECOND);
    world.assert_reached();
    let state = world.hotplug.as_ref().unwrap().state_at(part.start(), part.end());
    assert_eq!(state, (part, State::Offline));
}

#[test]
fn memory_below_memory_that_cannot_be_mapped_is_plugged() {
    let machine = Machine::new();
    let mut world = World::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    world.kernel.maps_below = (REGION + 300 * MIB) / (2 * MIB);
    world.resize(GIB);
    world.run(5 * SECOND);
    let why = Some("mapped to something else");
    assert_eq!((veto(&world), movable(&machine)), (why, Bytes::mib(300)));
    world.kernel.maps_below = u64::MAX;
    world.run(5 * SECOND);
    world.assert_reached();
    assert_eq!(movable(&machine), Bytes(GIB));
}
