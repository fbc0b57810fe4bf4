//! Injects faults: for each kind of request, each call of the hypervisor fails in each way, one call
//! in each run.

use crate::basic::{ADD, REMOVE};
use crate::partition::{FIRST_INDEX, LMB_BYTES, lmbs, movable_request, with_partition};
use hotmem::{AllocRequest, Budget, RangeError, RangeErrorKind};
use hotmem_dlpar::hypervisor::{Answer, HypervisorRequest};
use hotmem_dlpar::*;

const UNASSIGNED_INDEX: DrcIndex = DrcIndex(FIRST_INDEX + 6);
const ASSIGNED_INDEX: DrcIndex = DrcIndex(FIRST_INDEX + 17);

/// Requests of each kind.
const REQUESTS: [(Change, LmbSelection); 8] = [
    (ADD, LmbSelection::Count(7)),
    (ADD, LmbSelection::Count(16)),
    (ADD, LmbSelection::Index(UNASSIGNED_INDEX)),
    (ADD, LmbSelection::Range { first: UNASSIGNED_INDEX, count: 8 }),
    (REMOVE, LmbSelection::Count(4)),
    (REMOVE, LmbSelection::Count(6)),
    (REMOVE, LmbSelection::Index(ASSIGNED_INDEX)),
    (REMOVE, LmbSelection::Range { first: UNASSIGNED_INDEX, count: 8 }),
];

/// Answers that are errors, or wrong for most calls.
const FAULTY_ANSWERS: [Answer; 5] = [
    Answer::Status(-1),
    Answer::Status(i32::MAX),
    Answer::State(0),
    Answer::State(77),
    Answer::List(1000),
];

/// Runs `test` for each call of each request.
fn for_each_call(test: impl Fn(Change, LmbSelection, u64)) {
    for (change, selection) in REQUESTS {
        let calls = with_partition(|partition| {
            partition.end_script_and_count_calls();
            partition.request(change, selection).expect("no call fails");
            partition.end_script_and_count_calls()
        });
        assert!(calls > 0);
        for call in 0..calls {
            test(change, selection, call);
        }
    }
}

#[test]
fn a_request_with_one_failing_call_succeeds_or_restores_the_machine() {
    for_each_call(|change, selection, failing_call| {
        for answer in FAULTY_ANSWERS {
            with_partition(|partition| {
                partition.script(
                    move |call, _| if call == failing_call { answer } else { Answer::CarryOut },
                );
                let before = partition.snapshot();
                let updates = partition.hypervisor.updates();
                let result = partition.request(change, selection);
                let context =
                    format!("{change:?} {selection:?} {answer:?} at {failing_call}: {result:?}");
                match result {
                    Ok(summary) => {
                        // The LMB was skipped, or the answer is valid for this call.
                        let by_count = matches!(selection, LmbSelection::Count(_));
                        assert!(summary.skipped <= u32::from(by_count), "{context}");
                        assert_eq!((summary.unrestored, summary.lost), (0, 0), "{context}");
                        assert_eq!(partition.hypervisor.updates(), updates + 1, "{context}");
                        let property = partition.snapshot().property;
                        assert_eq!(partition.hypervisor.property(), property, "{context}");
                    }
                    Err(failure) => {
                        assert_eq!((failure.unrestored, failure.lost), (0, 0), "{context}");
                        assert_eq!(partition.snapshot(), before, "{context}");
                        assert_eq!(partition.hypervisor.updates(), updates, "{context}");
                        assert!(partition.request(change, selection).is_ok(), "{context}");
                    }
                }
            });
        }
    });
}

/// All calls fail from one call on.
#[test]
fn a_request_reports_all_lost_lmbs_if_all_later_calls_fail() {
    for_each_call(|change, selection, failing_call| {
        with_partition(|partition| {
            partition.script(move |call, _| {
                if call >= failing_call { Answer::Status(-1) } else { Answer::CarryOut }
            });
            let before = partition.assigned();
            // `request` checks that all differences were reported.
            let failure = partition.request(change, selection).expect_err("all calls fail");
            let after = partition.assigned();
            let lost = before.difference(&after).count();
            assert_eq!(failure.lost as usize, lost, "{change:?} {selection:?} at {failing_call}");
            assert!(after.is_subset(&before));
        });
    });
}

/// Each call is busy until the request is cancelled.
#[test]
fn a_request_that_is_cancelled_while_a_call_is_busy_restores_the_machine() {
    for_each_call(|change, selection, failing_call| {
        with_partition(|partition| {
            let is_cancelled = std::rc::Rc::new(std::cell::Cell::new(false));
            let script_is_cancelled = is_cancelled.clone();
            partition.script(move |call, _| {
                match call >= failing_call && !script_is_cancelled.get() {
                    true => Answer::Status(BUSY),
                    false => Answer::CarryOut,
                }
            });
            let before = partition.snapshot();
            let result =
                partition.run(movable_request(change, selection), Budget::UNLIMITED, |_| {
                    is_cancelled.set(true);
                    true
                });
            let failure = result.expect_err("the request was cancelled");
            assert_eq!(
                failure.error,
                Error::Cancelled,
                "{change:?} {selection:?} at {failing_call}"
            );
            assert_eq!((failure.unrestored, failure.lost), (0, 0));
            assert_eq!(partition.snapshot(), before, "{change:?} {selection:?} at {failing_call}");
            assert!(partition.request(change, selection).is_ok());
        });
    });
}

/// The hypervisor stays busy even while the request is undone.
#[test]
fn a_second_cancellation_ends_a_request_on_a_busy_hypervisor() {
    for_each_call(|change, selection, failing_call| {
        with_partition(|partition| {
            partition.script(move |call, _| {
                if call >= failing_call { Answer::Status(9905) } else { Answer::CarryOut }
            });
            let result =
                partition.run(movable_request(change, selection), Budget::UNLIMITED, |_| true);
            let failure = result.expect_err("the request was cancelled");
            assert_eq!(failure.error, Error::Cancelled);
        });
    });
}

#[test]
fn a_request_can_be_cancelled_after_each_poll() {
    for (change, selection) in REQUESTS {
        for polls in 0.. {
            let has_ended = with_partition(|partition| {
                let before = partition.snapshot();
                partition
                    .dlpar
                    .begin(movable_request(change, selection))
                    .expect("no other request is open");
                for _ in 0..polls {
                    let progress = partition.poll(Budget { pageblocks: 1 });
                    if let Progress::Ready(result) = progress {
                        partition.check_result(&result);
                        return true;
                    }
                }
                partition.dlpar.cancel();
                let result = partition.poll_to_end(Budget { pageblocks: 1 }, |_| false);
                let failure = result.expect_err("the request was cancelled");
                assert_eq!(failure, Error::Cancelled.into(), "after {polls}");
                assert_eq!(partition.snapshot(), before, "{change:?} {selection:?} after {polls}");
                false
            });
            if has_ended {
                break;
            }
        }
    }
}

#[test]
fn memory_in_use_is_skipped_or_fails_the_request() {
    with_partition(|partition| {
        let pinned = lmbs()[17].1;
        let allocation =
            partition.hotplug.frames().alloc(AllocRequest::frames(3).movable().at(pinned.start()));
        let _used = allocation.expect("the memory is free").into_raw();
        let before = partition.snapshot();
        let range = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 16), count: 4 };
        let failure = partition.request(REMOVE, range).expect_err("the memory is in use");
        assert!(matches!(failure.error, Error::Blocked(_)), "{failure}");
        assert_eq!(partition.snapshot(), before);
        let failure =
            partition.request(REMOVE, LmbSelection::Count(6)).expect_err("one LMB is in use");
        assert_eq!(failure.error, Error::NotEnough { wanted: 6, available: 5 });
        assert!(matches!(failure.first_skip_error, Some(Error::Blocked(_))), "{failure}");
        assert_eq!(partition.snapshot(), before);
        let summary = partition
            .request(REMOVE, LmbSelection::Count(5))
            .expect("enough other LMBs are available");
        assert_eq!((summary.lmbs, summary.skipped), (5, 1));
        assert_eq!(partition.assigned(), [17].into());
    });
}

#[test]
fn vetoed_lmbs_are_skipped_or_fail_the_request() {
    with_partition(|partition| {
        partition.kernel.veto_online.insert(lmbs()[1].1.start().number());
        partition.kernel.veto_offline.insert(lmbs()[18].1.start().number());
        let before = partition.snapshot();
        let failure = partition
            .request(ADD, LmbSelection::Index(DrcIndex(FIRST_INDEX + 1)))
            .expect_err("the kernel vetoes the change");
        assert!(matches!(failure.error, Error::Online(_)), "{failure}");
        assert_eq!(partition.snapshot(), before);
        let range = LmbSelection::Range { first: DrcIndex(FIRST_INDEX), count: 3 };
        let failure = partition.request(ADD, range).expect_err("the kernel vetoes the change");
        assert!(matches!(failure.error, Error::Online(_)), "{failure}");
        assert_eq!(partition.snapshot(), before);
        let summary = partition
            .request(ADD, LmbSelection::Count(4))
            .expect("enough other LMBs are available");
        assert_eq!((summary.lmbs, summary.skipped), (4, 1));
        let refused = RefusedLmb {
            connector: Some(DrcIndex(FIRST_INDEX + 1)),
            range: lmbs()[1].1,
            final_state: FinalState::AsItWas,
            error: Error::Online(RangeError {
                range: lmbs()[1].1,
                kind: RangeErrorKind::Vetoed(hotmem::Veto("the test vetoes this LMB")),
            }),
        };
        assert_eq!(
            (&partition.refused_lmbs[..], summary.first_skip_error),
            (&[refused][..], Some(refused.error))
        );
        assert!(refused.error.is_temporary());
        assert_eq!(partition.assigned(), [0, 2, 4, 5, 7, 8, 16, 17, 18, 19].into());
        let summary = partition
            .request(REMOVE, LmbSelection::Count(9))
            .expect("enough other LMBs are available");
        assert_eq!((summary.lmbs, summary.skipped), (9, 1));
        assert_eq!(partition.assigned(), [18].into());
    });
}

#[test]
fn added_memory_that_is_in_use_when_the_request_is_undone_stays_and_is_reported() {
    with_partition(|partition| {
        partition.script(|_, request| match request {
            HypervisorRequest::Update => Answer::Status(BUSY),
            HypervisorRequest::Connector(..) => Answer::CarryOut,
        });
        let waiting = partition.begin(
            movable_request(ADD, LmbSelection::Index(DrcIndex(FIRST_INDEX))),
            Budget::UNLIMITED,
        );
        assert!(matches!(waiting, Progress::Pending(Wait::Update { .. })), "{waiting:?}");
        let start = lmbs()[0].1.start();
        let used = partition.hotplug.frames().alloc(AllocRequest::frames(1).movable().at(start));
        let _used = used.expect("the memory is online").into_raw();
        partition.dlpar.cancel();
        let failure = partition
            .poll_to_end(Budget::UNLIMITED, |_| false)
            .expect_err("the request was cancelled");
        assert_eq!((failure.unrestored, failure.lost), (1, 0));
        let [refused] = partition.refused_lmbs[..] else { panic!("{:?}", partition.refused_lmbs) };
        assert_eq!((refused.final_state, refused.range), (FinalState::Unrestored, lmbs()[0].1));
        assert!(matches!(refused.error, Error::Blocked(_)), "{refused:?}");
        // The LMB is a regular part of the partition now.
        partition.reported_lmbs = 0;
        partition.refused_lmbs.clear();
        assert!(partition.assigned().contains(&0));
        partition.check_result(&Err(Failure { unrestored: 0, ..failure }));
        assert_eq!(LMB_BYTES, 16 << 20);
    });
}
