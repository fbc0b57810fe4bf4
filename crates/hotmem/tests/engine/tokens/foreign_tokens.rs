//! Tests tokens of one instance that are passed to another instance with equal memory. The other
//! instance refuses or drops them, and stays unchanged. The memory of a dropped token stays held or
//! isolated, or the step is undone.

use super::{Instance, SECTIONS, absent, assert_unchanged, offline, online, with_two_instances};
use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::RawHotplugCalls as _;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::region_range;
use hotmem_testkit::{PAGEBLOCK, SECTION, pfn, range};

#[test]
fn a_foreign_addition_is_undone() {
    with_two_instances(|local, foreign| {
        let before = foreign.snapshot();
        let foreign_token = foreign.hotplug.prepare_add(absent()).unwrap();
        // This instance has prepared the same range.
        let local_token =
            local.hotplug.prepare_add(AddRequest { device: true, ..absent().into() }).unwrap();
        let local_before = local.snapshot();
        local.hotplug.commit_add(foreign_token);
        assert_eq!((local.snapshot(), foreign.snapshot()), (local_before, before));
        local.hotplug.commit_add(local_token);
        let state =
            |instance: &Instance<'_>| instance.hotplug.state_at(absent().start(), Pfn::LIMIT);
        assert_eq!(state(foreign), (absent(), State::Absent));
        assert_eq!(state(local), (absent(), State::Device));
    });
}

#[test]
fn the_memory_of_a_foreign_removal_stays_held() {
    for is_committed in [true, false] {
        with_two_instances(|local, foreign| {
            let foreign_token = foreign.hotplug.prepare_remove(offline()).unwrap();
            let local_token = local.hotplug.prepare_remove(offline()).unwrap();
            assert_unchanged(local, foreign, |local| match is_committed {
                true => local.commit_remove(foreign_token),
                false => local.abandon_remove(foreign_token, &mut NoHooks),
            });
            foreign.hotplug.remove(offline()).unwrap();
            local.hotplug.abandon_remove(local_token, &mut NoHooks);
            let state = |instance: &Instance<'_>| {
                instance.hotplug.state_at(offline().start(), Pfn::LIMIT).1
            };
            assert_eq!((state(foreign), state(local)), (State::Absent, State::Offline));
        });
    }
}

#[test]
fn the_memory_of_parts_of_a_foreign_removal_stays_held() {
    with_two_instances(|local, foreign| {
        let foreign_token = foreign.hotplug.prepare_remove(offline()).unwrap();
        let (below, above) = foreign_token.split_at(pfn(3 * SECTION + PAGEBLOCK)).unwrap();
        // The same memory is online on this instance.
        local.hotplug.online(offline(), OnlineType::Kernel, &mut NoHooks).unwrap();
        assert_unchanged(local, foreign, |local| {
            local.commit_remove(below);
            local.abandon_remove(above, &mut NoHooks);
        });
        foreign.hotplug.remove(offline()).unwrap();
    });
}

#[test]
fn a_foreign_isolation_token_is_returned() {
    with_two_instances(|local, foreign| {
        let free = range(2 * SECTION + PAGEBLOCK, PAGEBLOCK);
        let foreign_token = foreign.frames().isolate(free).unwrap();
        let local_token = local.frames().isolate(free).unwrap();
        let before = (local.frames().counts(), foreign.frames().counts());
        let (foreign_token, reason) =
            local.hotplug.take_offline(foreign_token, &mut NoHooks).unwrap_err();
        assert_eq!(reason.kind, BlockerKind::Foreign);
        assert_eq!((local.frames().counts(), foreign.frames().counts()), before);
        // `release` and `mark_reported` are methods of the token, so they act on the token's own
        // instance.
        foreign_token.release();
        assert_eq!(foreign.frames().counts().isolated, 0);
        assert_eq!(local.frames().counts(), before.0);
        local_token.mark_reported().unwrap();
        assert_eq!(local.frames().counts().reported, PAGEBLOCK);
        assert_eq!(foreign.frames().counts().reported, 0);
    });
}

const UNMOVABLE: BlockerKind = BlockerKind::Unmovable("this kernel does not migrate");

#[test]
fn a_foreign_offline_request_is_refused_and_dropped() {
    with_two_instances(|local, foreign| {
        let mut foreign_token = foreign.hotplug.offline(online()).unwrap();
        let refused = Progress::Pending(Blocker { range: online(), kind: BlockerKind::Foreign });
        let unlimited = Budget::UNLIMITED;
        // This instance refuses the request before its first poll, and again while it waits for
        // frames in use.
        let answer = assert_unchanged(local, foreign, |local| {
            foreign_token.poll(local, &mut NoHooks, unlimited)
        });
        assert_eq!(answer, refused);
        let blocked = foreign_token.poll(&mut foreign.hotplug, &mut NoHooks, unlimited);
        let pinned = Blocker { range: foreign.allocations[0], kind: UNMOVABLE };
        assert_eq!(blocked, Progress::Pending(pinned));
        assert_unchanged(local, foreign, |local| {
            assert_eq!(foreign_token.poll(local, &mut NoHooks, unlimited), refused);
        });
        assert_eq!(foreign.frames().counts().isolated, SECTION);
        let before = local.snapshot();
        foreign_token.cancel(&mut local.hotplug, &mut NoHooks);
        assert_eq!(local.snapshot(), before);
        assert_eq!(foreign.frames().counts().isolated, 0);
    });
}

#[test]
fn a_foreign_shrink_is_refused_and_its_memory_stays_held() {
    with_two_instances(|local, foreign| {
        let mut foreign_token = Shrink::new(ShrinkOptions {
            frames: SECTION,
            max_run_frames: PAGEBLOCK,
            ..online().into()
        });
        // The shrink has taken more memory offline than one poll returns.
        let answer = foreign_token.poll(&mut foreign.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Progress::Ready(removal) = answer else { panic!("{answer:?}") };
        let top = range(3 * SECTION - PAGEBLOCK, PAGEBLOCK);
        assert_eq!(removal.range(), top);
        assert_unchanged(local, foreign, |local| {
            let answer = foreign_token.poll(local, &mut NoHooks, Budget::UNLIMITED);
            let Progress::Pending(blocker) = answer else { panic!("{answer:?}") };
            assert_eq!(
                (foreign_token.frames_left() > 0, blocker.kind),
                (true, BlockerKind::Foreign)
            );
            local.abandon_remove(removal, &mut NoHooks);
            foreign_token.cancel(local, &mut NoHooks);
        });
        foreign.hotplug.remove(top).unwrap();
    });
}

#[test]
fn foreign_frames_are_refused_unless_they_are_allocated_here_too() {
    with_two_instances(|local, foreign| {
        // On this instance the memory is free, offline or absent.
        let free = foreign.frames().alloc_range(AllocRequest::frames(PAGEBLOCK).movable()).unwrap();
        foreign.hotplug.online(offline(), OnlineType::Movable, &mut NoHooks).unwrap();
        foreign.hotplug.add(absent()).unwrap();
        foreign.hotplug.online(absent(), OnlineType::Movable, &mut NoHooks).unwrap();
        foreign.allocations.push(free);
        let at = |range: PfnRange| AllocRequest::frames(1).movable().at(range.start());
        let elsewhere =
            [offline(), absent()].map(|all| foreign.frames().alloc_range(at(all)).unwrap());
        foreign.allocations.extend(elsewhere);
        assert_unchanged(local, foreign, |local| {
            let refused = |range, kind| {
                assert_eq!(local.frames().free_range(range), Err(RangeError { range, kind }));
            };
            refused(free, RangeErrorKind::NotAllocated);
            elsewhere.into_iter().for_each(|range| refused(range, RangeErrorKind::Foreign));
        });
        // A range that is allocated on both instances is freed on the local instance, and stays in
        // use on the foreign one.
        assert_eq!(local.allocations, foreign.allocations[..1]);
        let before = foreign.snapshot();
        local.frames().free_range(foreign.allocations[0]).unwrap();
        local.allocations.clear();
        assert_eq!(foreign.snapshot(), before);
    });
}

#[test]
fn foreign_device_memory_is_refused() {
    with_two_instances(|local, foreign| {
        foreign.hotplug.add(AddRequest { device: true, ..absent().into() }).unwrap();
        assert_unchanged(local, foreign, |local| {
            let not_device = RangeError {
                range: range(4 * SECTION, PAGEBLOCK),
                kind: RangeErrorKind::NotDevice,
            };
            assert_eq!(local.detach_raw(absent()), Err(not_device));
            let to_ram = local.device_to_ram_raw(absent(), OnlineType::Offline, &mut NoHooks);
            assert_eq!(to_ram, Err(AddError::Range(not_device)));
        });
    });
}

#[test]
fn a_foreign_region_is_refused() {
    with_two_instances(|local, foreign| {
        let foreign_token = foreign.region;
        let unknown = region_range(&foreign.hotplug, foreign_token)
            .map(|range| RangeError { range, kind: RangeErrorKind::NotAnnounced });
        assert_unchanged(local, foreign, |local| {
            assert_eq!(local.withdraw(foreign_token).err(), unknown);
            assert_eq!(region_range(local, foreign_token), None);
        });
    });
}

#[test]
fn the_id_of_a_withdrawn_region_names_no_later_region() {
    with_two_instances(|local, _| {
        let beyond = range(SECTIONS * SECTION, SECTION);
        let first = local.hotplug.announce(beyond).unwrap();
        local.hotplug.withdraw(first).unwrap();
        let unknown = RangeError { range: beyond, kind: RangeErrorKind::NotAnnounced };
        assert_eq!(local.hotplug.withdraw(first), Err(unknown));
        // Announce the same range again. It gets another id.
        let second = local.hotplug.announce(beyond).unwrap();
        assert_eq!(local.hotplug.withdraw(first), Err(unknown));
        assert_eq!(region_range(&local.hotplug, first), None);
        assert_eq!(region_range(&local.hotplug, second), Some(beyond));
    });
}
