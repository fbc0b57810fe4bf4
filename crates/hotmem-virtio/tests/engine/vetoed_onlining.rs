//! Tests with a kernel that vetoes the onlining of plugged memory: the driver's status contains the
//! reason, the driver retries the onlining, and the size is not reached before it succeeds.

use crate::machine::{GIB, Guest, MIB, Machine, REGION_ADDR};
use core::time::Duration;
use hotmem::{
    AllocRequest, Bytes, NoHooks, OnlineType, Poisoned, RangeError, RangeErrorKind, State, Veto,
};
use hotmem_testkit::Validated as _;
use hotmem_virtio::mem::{Pending, Reason, Status};

const SECOND: Duration = Duration::from_secs(1);
const VETO: Option<&str> = Some("not now");

/// Makes a guest with a requested size of 1 GiB, and a kernel that vetoes onlining.
fn vetoed_guest(machine: &Machine) -> Guest<'_> {
    let mut guest = Guest::new(machine, 2 * MIB, GIB, OnlineType::Movable);
    guest.kernel.online_veto = VETO;
    guest.resize(GIB);
    guest.run(SECOND);
    guest
}

/// Returns the kernel's reason, if the driver's status contains a veto.
fn reported_veto(guest: &Guest<'_>) -> Option<&'static str> {
    match guest.driver.status() {
        Status::Pending(Pending::Memory(Reason::Range(RangeError {
            kind: RangeErrorKind::Vetoed(Veto(reason)),
            ..
        }))) => Some(reason),
        _ => None,
    }
}

fn online_movable(machine: &Machine) -> Bytes {
    Bytes(machine.frames.validated().unwrap().movable << 12)
}

#[test]
fn a_veto_is_reported_and_retried() {
    let machine = Machine::new();
    let mut guest = vetoed_guest(&machine);
    assert_eq!((reported_veto(&guest), online_movable(&machine)), (VETO, Bytes::ZERO));
    assert!(guest.driver.statistics().postponed_operations > 6);
    guest.kernel.online_veto = None;
    guest.run(5 * SECOND);
    guest.assert_reached();
    assert_eq!((online_movable(&machine), guest.kernel.frames_going_online), (Bytes(GIB), 0));
}

#[test]
fn no_memory_is_plugged_while_plugged_memory_is_vetoed() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    guest.kernel.online_veto = VETO;
    guest.resize(256 * MIB);
    guest.run(SECOND);
    guest.resize(GIB);
    guest.run(SECOND);
    assert_eq!((reported_veto(&guest), guest.driver.plugged()), (VETO, Bytes::mib(256)));
    guest.kernel.online_veto = None;
    guest.run(5 * SECOND);
    guest.assert_reached();
    assert_eq!(online_movable(&machine), Bytes(GIB));
}

#[test]
fn vetoed_memory_can_be_unplugged() {
    let machine = Machine::new();
    let mut guest = vetoed_guest(&machine);
    guest.resize(256 * MIB);
    guest.run(5 * SECOND);
    assert_eq!((reported_veto(&guest), guest.driver.plugged()), (VETO, Bytes::mib(256)));
    guest.resize(0);
    guest.run(SECOND);
    guest.assert_reached();
}

#[test]
fn adopted_memory_can_be_vetoed() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    (0..100).chain(200..300).for_each(|block| guest.device.preplug(block));
    guest.kernel.online_veto = VETO;
    guest.resize(400 * MIB);
    guest.run(SECOND);
    assert_eq!((reported_veto(&guest), online_movable(&machine)), (VETO, Bytes::ZERO));
    guest.kernel.online_veto = None;
    guest.run(5 * SECOND);
    guest.assert_reached();
    assert_eq!(online_movable(&machine), Bytes::mib(400));
}

#[test]
fn the_status_contains_the_latest_reason() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    guest.resize(256 * MIB);
    guest.poll();
    guest.kernel.allocate_at(guest.at_offset(100 * MIB));
    guest.kernel.has_pinned_allocations = true;
    guest.resize(0);
    guest.run(SECOND);
    let status = guest.driver.status();
    assert!(matches!(status, Status::Pending(Pending::Memory(Reason::Blocked(_)))), "{status:?}");
    guest.kernel.online_veto = VETO;
    guest.resize(GIB);
    guest.run(SECOND);
    assert_eq!(reported_veto(&guest), VETO);
}

#[test]
fn memory_that_is_poisoned_before_onlining_comes_online_without_the_frame() {
    let machine = Machine::new();
    let mut guest = vetoed_guest(&machine);
    let poisoned = guest.at_offset(300 * MIB + 4096);
    assert_eq!(guest.hotplug.as_mut().unwrap().poison(poisoned), Ok(Poisoned::Quarantined));
    guest.kernel.online_veto = None;
    guest.run(5 * SECOND);
    guest.assert_reached();
    assert_eq!(online_movable(&machine), Bytes(GIB));
    assert_eq!(machine.frames.counts().poisoned, 1);
    let allocations =
        std::iter::from_fn(|| machine.frames.alloc(AllocRequest::frames(512).movable()).ok());
    let allocations: Vec<_> = allocations.take(1000).collect();
    assert!(allocations.iter().all(|allocation| !allocation.range().contains(poisoned)));
}

#[test]
fn memory_that_the_kernel_took_offline_stays_offline() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    guest.resize(512 * MIB);
    guest.poll();
    let part = hotmem::PfnRange::with_len(guest.at_offset(0), 512).unwrap();
    let hotplug = guest.hotplug.as_mut().unwrap();
    let mut offline = hotplug.offline(part).unwrap();
    let _ = offline.poll(hotplug, &mut NoHooks, hotmem::Budget::UNLIMITED);
    guest.resize(GIB);
    guest.run(SECOND);
    guest.assert_reached();
    let state = guest.hotplug.as_ref().unwrap().state_at(part.start(), part.end());
    assert_eq!(state, (part, State::Offline));
}

#[test]
fn memory_below_memory_that_cannot_be_mapped_is_plugged() {
    let machine = Machine::new();
    let mut guest = Guest::new(&machine, 2 * MIB, GIB, OnlineType::Movable);
    guest.kernel.first_unmappable_pageblock = (REGION_ADDR + 300 * MIB) / (2 * MIB);
    guest.resize(GIB);
    guest.run(5 * SECOND);
    let reason = Some("mapped to something else");
    assert_eq!((reported_veto(&guest), online_movable(&machine)), (reason, Bytes::mib(300)));
    guest.kernel.first_unmappable_pageblock = u64::MAX;
    guest.run(5 * SECOND);
    guest.assert_reached();
    assert_eq!(online_movable(&machine), Bytes(GIB));
}
