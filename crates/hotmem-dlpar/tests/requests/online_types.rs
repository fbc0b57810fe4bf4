//! Tests the online type of added LMBs, and that undoing a request restores the former state.

use crate::basic::REMOVE;
use crate::partition::{FIRST_INDEX, Partition, lmbs, movable_request, with_partition};
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
fn the_online_type_is_chosen_by_the_request_then_the_driver_then_the_engine() {
    let or_none = || TYPES.into_iter().map(Some).chain([None]);
    for auto_online in TYPES {
        for of_driver in or_none() {
            for of_request in or_none() {
                with_partition(|partition| {
                    partition.hotplug.settings.auto_online = auto_online;
                    partition.dlpar.set_online_as(of_driver);
                    let range = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 20), count: 4 };
                    let request = of_request.map_or(Request::add(range), |online| {
                        Request::add(range).online_as(online)
                    });
                    let summary = partition.run(request, Budget { pageblocks: 1 }, |_| false);
                    let expected = of_request.or(of_driver).unwrap_or(auto_online);
                    assert_eq!(summary.expect("no obstacle prevents the request").lmbs, 4);
                    for (_, lmb) in &lmbs()[20..24] {
                        let state = partition.hotplug.state_at(lmb.start(), lmb.end());
                        assert_eq!(
                            state,
                            (*lmb, state_of(expected)),
                            "{of_request:?} {of_driver:?} {auto_online:?}"
                        );
                    }
                });
            }
        }
    }
}

/// The removal of four LMBs is cancelled after each number of polls, for each former state and each
/// setting of auto-online.
#[test]
fn a_removal_that_is_undone_restores_the_state_of_the_memory() {
    for auto_online in TYPES {
        for former_type in [OnlineType::Kernel, OnlineType::Movable] {
            for polls in 1.. {
                let has_ended = with_partition(|partition| {
                    let range = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 20), count: 4 };
                    let request = Request::add(range).online_as(former_type);
                    partition
                        .run(request, Budget::UNLIMITED, |_| false)
                        .expect("no obstacle prevents the request");
                    partition.hotplug.settings.auto_online = auto_online;
                    let before = partition.snapshot();
                    let mut progress =
                        partition.begin(Request::remove(range), Budget { pageblocks: 1 });
                    for _ in 1..polls {
                        progress = partition.poll(Budget { pageblocks: 1 });
                    }
                    if let Progress::Ready(result) = progress {
                        partition.check_result(&result);
                        return true;
                    }
                    partition.dlpar.cancel();
                    let undone = partition.poll_to_end(Budget::UNLIMITED, |_| false);
                    assert_eq!(
                        undone,
                        Err(Error::Cancelled.into()),
                        "{auto_online:?} {former_type:?} {polls}"
                    );
                    assert_eq!(
                        partition.snapshot(),
                        before,
                        "{auto_online:?} {former_type:?} {polls}"
                    );
                    false
                });
                if has_ended {
                    assert!(polls > 5, "{polls}");
                    break;
                }
            }
        }
    }
}

/// Removes LMBs, and cancels the request while the update of the property is busy.
fn fail_update_and_undo(partition: &mut Partition<'_, '_>, selection: LmbSelection) -> Failure {
    partition.script(|_, request| match request {
        HypervisorRequest::Update => Answer::Status(BUSY),
        HypervisorRequest::Connector(..) => Answer::CarryOut,
    });
    let waiting = partition.begin(movable_request(REMOVE, selection), Budget::UNLIMITED);
    assert!(matches!(waiting, Progress::Pending(Wait::Update { .. })), "{waiting:?}");
    partition.dlpar.cancel();
    match partition.poll(Budget::UNLIMITED) {
        Progress::Ready(Err(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_lmb_that_undoing_cannot_put_online_is_reported() {
    with_partition(|partition| {
        let (connector, lmb) = lmbs()[17];
        partition.kernel.veto_online.insert(lmb.start().number());
        let range = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 16), count: 4 };
        let failure = fail_update_and_undo(partition, range);
        assert_eq!((failure.unrestored, failure.lost), (1, 0));
        let veto = hotmem::Veto("the test vetoes this LMB");
        let error = Error::Online(RangeError { range: lmb, kind: RangeErrorKind::Vetoed(veto) });
        let refused = RefusedLmb {
            connector: Some(connector),
            range: lmb,
            final_state: FinalState::Unrestored,
            error,
        };
        assert_eq!(partition.refused_lmbs, [refused]);
        assert_eq!(partition.hotplug.state_at(lmb.start(), lmb.end()), (lmb, State::Offline));
        for (_, restored) in [lmbs()[16], lmbs()[18], lmbs()[19]] {
            let state = partition.hotplug.state_at(restored.start(), restored.end());
            assert_eq!(state, (restored, State::OnlineMovable));
        }
        partition.check_result(&Err(failure));
    });
}

/// The engine forgets the zones of removed memory, and the table records one zone for each LMB.
#[test]
fn an_lmb_of_two_zones_that_is_restored_in_one_zone_is_reported() {
    with_partition(|partition| {
        let (connector, lmb) = lmbs()[17];
        let half = PfnRange::with_len(lmb.start(), lmb.frames() / 2)
            .expect("the number is below the limit");
        partition.take_offline(half);
        partition
            .hotplug
            .online(half, OnlineType::Kernel, &mut partition.kernel)
            .expect("the memory is offline");
        let before = partition.snapshot();
        let range = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 16), count: 4 };
        // Until the memory is removed, the engine has its zones.
        let begun = partition.begin(movable_request(REMOVE, range), Budget { pageblocks: 1 });
        assert_eq!(begun, Progress::Working);
        while partition.dlpar.progress().0 < 4 {
            assert_eq!(partition.poll(Budget { pageblocks: 1 }), Progress::Working);
        }
        partition.dlpar.cancel();
        let undone = partition.poll(Budget::UNLIMITED);
        assert_eq!(undone, Progress::Ready(Err(Error::Cancelled.into())));
        assert_eq!(partition.snapshot(), before);
        let failure = fail_update_and_undo(partition, range);
        assert_eq!((failure.unrestored, failure.lost), (1, 0));
        let error = Error::Zones(connector);
        let refused = RefusedLmb {
            connector: Some(connector),
            range: lmb,
            final_state: FinalState::Unrestored,
            error,
        };
        assert_eq!(partition.refused_lmbs, [refused]);
        partition.check_result(&Err(failure));
    });
}

/// Another caller puts an LMB online that the request has taken.
#[test]
fn an_lmb_that_is_online_in_another_zone_does_not_count_as_added() {
    for (requested, by_other_caller) in [
        (OnlineType::Movable, OnlineType::Kernel),
        (OnlineType::Kernel, OnlineType::Movable),
        (OnlineType::Kernel, OnlineType::Kernel),
    ] {
        for selection in [LmbSelection::Index(DrcIndex(FIRST_INDEX)), LmbSelection::Count(1)] {
            with_partition(|partition| {
                let (connector, lmb) = lmbs()[0];
                let request = Request::add(selection).online_as(requested);
                let mut progress = partition.begin(request, Budget { pageblocks: 1 });
                while partition.hotplug.state_at(lmb.start(), lmb.end()).1 != State::Offline {
                    assert_eq!(progress, Progress::Working);
                    progress = partition.poll(Budget { pageblocks: 1 });
                }
                partition
                    .hotplug
                    .online(lmb, by_other_caller, &mut partition.kernel)
                    .expect("the memory is offline");
                let result = partition.poll_to_end(Budget::UNLIMITED, |_| false);
                let block =
                    PfnRange::with_len(lmb.start(), 512).expect("the number is below the limit");
                let error =
                    Error::Online(RangeError { range: block, kind: RangeErrorKind::Online });
                match (requested == by_other_caller, selection) {
                    (true, _) => {
                        assert_eq!(result.expect("the LMB is online in the requested zone").lmbs, 1)
                    }
                    (false, LmbSelection::Count(_)) => {
                        let summary = result.expect("another LMB was added");
                        assert_eq!((summary.lmbs, summary.skipped, summary.unrestored), (1, 1, 1));
                        assert_eq!(
                            (summary.first_skip_error, partition.refused_lmbs[0].connector),
                            (Some(error), Some(connector))
                        );
                    }
                    _ => {
                        let failure = result.expect_err("the LMB is online in another zone");
                        assert_eq!((failure.error, failure.unrestored), (error, 0));
                        assert!(!partition.assigned().contains(&0));
                    }
                }
            });
        }
    }
}

/// Two LMBs of one range of the engine cannot be removed. The request finds the upper LMB first.
#[test]
fn a_skipped_lmb_is_counted_one_time() {
    with_partition(|partition| {
        let range = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 20), count: 4 };
        partition.request(Change::Add, range).expect("the memory is free");
        let frames = partition.hotplug.frames();
        let block =
            PfnRange::with_len(lmbs()[20].1.start(), 512).expect("the number is below the limit");
        let isolated = frames.isolate(block).expect("the memory is free");
        let pinned = hotmem::AllocRequest::frames(3).movable().at(lmbs()[17].1.start());
        let pinned = frames.alloc(pinned).expect("the memory is free");
        let summary = partition
            .request(REMOVE, LmbSelection::Count(8))
            .expect("enough other LMBs are available");
        assert_eq!((summary.lmbs, summary.skipped), (8, 2), "{:?}", partition.refused_lmbs);
        assert_eq!(partition.assigned(), [17, 20].into());
        isolated.release();
        drop(pinned);
    });
}
