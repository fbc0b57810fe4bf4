//! Tests the online type of added LMBs, and that undoing a request restores the former state.

use crate::plain::REMOVE;
use crate::world::{FIRST, World, lmbs, new, with};
use hotmem::{Budget, OnlineType, PfnRange, RangeError, RangeErrorKind, State};
use hotmem_dlpar::hypervisor::{Answer, HypervisorRequest};
use hotmem_dlpar::*;

const TYPES: [OnlineType; 4] =
    [OnlineType::Offline, OnlineType::Online, OnlineType::Kernel, OnlineType::Movable];

/// Returns the state of memory with this online type, without a policy.
fn state_of(online: OnlineType) -> State {
    match online {
        OnlineType::Offline => State::Offline,
        OnlineType::Movable => State::OnlineMovable,
        _ => State::Online,
    }
}

#[test]
fn the_online_type_is_that_of_the_request_or_the_driver_or_the_engine() {
    let or_none = || TYPES.into_iter().map(Some).chain([None]);
    for auto in TYPES {
        for driver in or_none() {
            for own in or_none() {
                with(|world| {
                    world.hotplug.settings.auto_online = auto;
                    world.dlpar.set_online_as(driver);
                    let range = Which::Range { first: DrcIndex(FIRST + 20), count: 4 };
                    let request =
                        own.map_or(Request::add(range), |own| Request::add(range).online_as(own));
                    let done = world.run(request, Budget { pageblocks: 1 }, |_| false);
                    let wanted = own.or(driver).unwrap_or(auto);
                    assert_eq!(done.expect("nothing in the way").lmbs, 4);
                    for (_, lmb) in &lmbs()[20..24] {
                        let state = world.hotplug.state_at(lmb.start(), lmb.end());
                        assert_eq!(state, (*lmb, state_of(wanted)), "{own:?} {driver:?} {auto:?}");
                    }
                });
            }
        }
    }
}

/// The removal of four LMBs is cancelled after each poll, for each former state and each setting of
/// auto-online. The LMBs are restored.
#[test]
fn a_removal_that_is_undone_brings_memory_back_as_it_was() {
    for auto in TYPES {
        for was in [OnlineType::Kernel, OnlineType::Movable] {
            for polls in 1.. {
                let over = with(|world| {
                    let range = Which::Range { first: DrcIndex(FIRST + 20), count: 4 };
                    let request = Request::add(range).online_as(was);
                    world.run(request, Budget::UNLIMITED, |_| false).expect("nothing in the way");
                    world.hotplug.settings.auto_online = auto;
                    let before = world.snapshot();
                    let mut progress =
                        world.begin(Request::remove(range), Budget { pageblocks: 1 });
                    for _ in 1..polls {
                        progress = world.poll(Budget { pageblocks: 1 });
                    }
                    if let Progress::Ready(result) = progress {
                        world.finished(&result);
                        return true;
                    }
                    world.dlpar.cancel();
                    let undone = world.poll_to_the_end(Budget::UNLIMITED, |_| false);
                    assert_eq!(undone, Err(Error::Cancelled.into()), "{auto:?} {was:?} {polls}");
                    assert_eq!(world.snapshot(), before, "{auto:?} {was:?} {polls}");
                    false
                });
                if over {
                    assert!(polls > 5, "{polls}");
                    break;
                }
            }
        }
    }
}

/// Removes LMBs, but fails at the update of the property.
fn undone_at_the_end(world: &mut World<'_, '_>, which: Which) -> Failure {
    world.script(|_, asked| match asked {
        HypervisorRequest::Update => Answer::Status(BUSY),
        HypervisorRequest::Connector(..) => Answer::CarryOut,
    });
    let waiting = world.begin(new(REMOVE, which), Budget::UNLIMITED);
    assert!(matches!(waiting, Progress::Pending(Wait::Update { .. })), "{waiting:?}");
    world.dlpar.cancel();
    match world.poll(Budget::UNLIMITED) {
        Progress::Ready(Err(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_lmb_that_stays_offline_after_undoing_is_reported() {
    with(|world| {
        let (connector, lmb) = lmbs()[17];
        world.kernel.veto_online.insert(lmb.start().number());
        let range = Which::Range { first: DrcIndex(FIRST + 16), count: 4 };
        let failure = undone_at_the_end(world, range);
        assert_eq!((failure.unrestored, failure.lost), (1, 0));
        let veto = hotmem::Veto("not this one");
        let error = Error::Online(RangeError { range: lmb, kind: RangeErrorKind::Vetoed(veto) });
        let refused =
            Refused { connector: Some(connector), range: lmb, left: FinalState::Unrestored, error };
        assert_eq!(world.refused, [refused]);
        assert_eq!(world.hotplug.state_at(lmb.start(), lmb.end()), (lmb, State::Offline));
        for (_, other) in [lmbs()[16], lmbs()[18], lmbs()[19]] {
            let state = world.hotplug.state_at(other.start(), other.end());
            assert_eq!(state, (other, State::OnlineMovable));
        }
        world.finished(&Err(failure));
    });
}

/// The engine forgets the zones of removed memory, and the table records one zone for each LMB.
#[test]
fn an_lmb_of_two_zones_that_is_restored_in_one_is_reported() {
    with(|world| {
        let (connector, lmb) = lmbs()[17];
        let half = PfnRange::with_len(lmb.start(), lmb.frames() / 2).expect("small");
        let mut offline = world.hotplug.offline(half).expect("online");
        let _ = offline.poll(&mut world.hotplug, &mut world.kernel, Budget::UNLIMITED);
        world.hotplug.online(half, OnlineType::Kernel, &mut world.kernel).expect("offline");
        let before = world.snapshot();
        let range = Which::Range { first: DrcIndex(FIRST + 16), count: 4 };
        // Before memory is removed, the zones are known.
        let begun = world.begin(new(REMOVE, range), Budget { pageblocks: 1 });
        assert_eq!(begun, Progress::Working);
        while world.dlpar.progress().0 < 4 {
            assert_eq!(world.poll(Budget { pageblocks: 1 }), Progress::Working);
        }
        world.dlpar.cancel();
        let undone = world.poll(Budget::UNLIMITED);
        assert_eq!(undone, Progress::Ready(Err(Error::Cancelled.into())));
        assert_eq!(world.snapshot(), before);
        let failure = undone_at_the_end(world, range);
        assert_eq!((failure.unrestored, failure.lost), (1, 0));
        let error = Error::Zones(connector);
        let refused =
            Refused { connector: Some(connector), range: lmb, left: FinalState::Unrestored, error };
        assert_eq!(world.refused, [refused]);
        world.finished(&Err(failure));
    });
}

/// Another caller puts an LMB online that the request has taken.
#[test]
fn an_lmb_that_is_online_in_another_zone_does_not_count_as_added() {
    for (asked, by_hand) in [
        (OnlineType::Movable, OnlineType::Kernel),
        (OnlineType::Kernel, OnlineType::Movable),
        (OnlineType::Kernel, OnlineType::Kernel),
    ] {
        for which in [Which::Index(DrcIndex(FIRST)), Which::Count(1)] {
            with(|world| {
                let (connector, lmb) = lmbs()[0];
                let request = Request::add(which).online_as(asked);
                let mut progress = world.begin(request, Budget { pageblocks: 1 });
                while world.hotplug.state_at(lmb.start(), lmb.end()).1 != State::Offline {
                    assert_eq!(progress, Progress::Working);
                    progress = world.poll(Budget { pageblocks: 1 });
                }
                world.hotplug.online(lmb, by_hand, &mut world.kernel).expect("offline");
                let result = world.poll_to_the_end(Budget::UNLIMITED, |_| false);
                let block = PfnRange::with_len(lmb.start(), 512).expect("small");
                let error =
                    Error::Online(RangeError { range: block, kind: RangeErrorKind::Online });
                match (asked == by_hand, which) {
                    (true, _) => assert_eq!(result.expect("as asked").lmbs, 1),
                    (false, Which::Count(_)) => {
                        let done = result.expect("another one");
                        assert_eq!((done.lmbs, done.skipped, done.unrestored), (1, 1, 1));
                        assert_eq!(
                            (done.because, world.refused[0].connector),
                            (Some(error), Some(connector))
                        );
                    }
                    _ => {
                        let failure = result.expect_err("not as asked");
                        assert_eq!((failure.error, failure.unrestored), (error, 0));
                        assert!(!world.assigned().contains(&0));
                    }
                }
            });
        }
    }
}

/// Two LMBs of a stretch cannot be removed, and the upper one is found first. Each is counted once.
#[test]
fn a_skipped_lmb_is_counted_once() {
    with(|world| {
        let range = Which::Range { first: DrcIndex(FIRST + 20), count: 4 };
        world.request(Change::Add, range).expect("free");
        let frames = world.hotplug.frames();
        let block = PfnRange::with_len(lmbs()[20].1.start(), 512).expect("small");
        let isolated = frames.isolate(block).expect("free");
        let pinned = hotmem::AllocRequest::frames(3).movable().at(lmbs()[17].1.start());
        let pinned = frames.alloc(pinned).expect("free");
        let done = world.request(REMOVE, Which::Count(8)).expect("others");
        assert_eq!((done.lmbs, done.skipped), (8, 2), "{:?}", world.refused);
        assert_eq!(world.assigned(), [17, 20].into());
        isolated.release();
        drop(pinned);
    });
}
