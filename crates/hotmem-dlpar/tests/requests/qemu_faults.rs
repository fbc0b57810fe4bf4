//! Injects faults on a platform with the rules of QEMU: in each run, one call fails, or all calls
//! from one on are busy. The request must fail with the error of that call, and after that the DIMM
//! can be added and removed.

use crate::basic::{ADD, REMOVE};
use crate::partition::{FIRST_INDEX, Partition, movable_request, with_partition};
use crate::snapshot::Snapshot;
use hotmem::Budget;
use hotmem_dlpar::hypervisor::{
    Answer, HARDWARE_ERROR, HypervisorRequest, NOT_CONFIGURABLE, PARAMETER_ERROR,
};
use hotmem_dlpar::*;

const FIRST_OF_DIMM: DrcIndex = DrcIndex(FIRST_INDEX + 20);
const DIMM_LMBS: u32 = 3;
const DIMM: LmbSelection = LmbSelection::Range { first: FIRST_OF_DIMM, count: DIMM_LMBS };

/// Three statuses of PAPR, and an undefined one.
const STATUSES: [i32; 4] = [HARDWARE_ERROR, PARAMETER_ERROR, NOT_CONFIGURABLE, i32::MAX];

/// Boots a machine with a plugged DIMM, and passes it to `f` with a snapshot. For a removal, the DIMM
/// is added before the snapshot, and the host requests it back after the snapshot.
fn with_dimm(change: Change, f: impl FnOnce(&mut Partition<'_, '_>, Snapshot)) {
    with_partition(|partition| {
        partition.hypervisor.set_like_qemu();
        partition.hypervisor.plug(FIRST_OF_DIMM, DIMM_LMBS);
        if change == REMOVE {
            partition.request(ADD, DIMM).expect("the DIMM is plugged");
        }
        let before = partition.snapshot();
        if change == REMOVE {
            partition.hypervisor.request_back(FIRST_OF_DIMM, DIMM_LMBS);
        }
        partition.end_script_and_count_calls();
        f(partition, before);
    });
}

/// Runs `test` for each call of both requests, two times: its last argument says whether to add the
/// DIMM again after the fault and before the final removal.
fn for_each_call(test: impl Fn(Change, u64, bool)) {
    for change in [ADD, REMOVE] {
        let mut calls = 0;
        with_dimm(change, |partition, _| {
            partition.request(change, DIMM).expect("no call fails");
            calls = partition.end_script_and_count_calls();
        });
        assert!(calls > 0);
        for call in 0..calls {
            [true, false].into_iter().for_each(|adds_again| test(change, call, adds_again));
        }
    }
}

/// Checks that the DIMM can be removed. If `adds_again` is true, adds a DIMM that is not assigned
/// before that.
fn check_removable(partition: &mut Partition<'_, '_>, adds_again: bool, context: &str) {
    partition.end_script_and_count_calls();
    let is_assigned =
        (0..u64::from(DIMM_LMBS)).all(|nth| partition.assigned().contains(&(20 + nth)));
    if !is_assigned && adds_again {
        let added = partition.request(ADD, DIMM);
        assert!(added.is_ok_and(|added| added.unrestored == 0), "{context}; then {added:?}");
    }
    partition.hypervisor.request_back(FIRST_OF_DIMM, DIMM_LMBS);
    let removed = partition.request(REMOVE, DIMM);
    assert!(removed.is_ok(), "{context}; then {removed:?}");
    partition.reported_lmbs = 0;
    partition.check();
    let dimm = &partition.hypervisor.connectors()[20..][..DIMM_LMBS as usize];
    assert!(
        dimm.iter().all(|connector| !connector.is_usable && connector.is_isolated),
        "{context}"
    );
}

#[test]
fn a_request_returns_the_error_of_the_call_that_fails() {
    for_each_call(|change, failing_call, adds_again| {
        for status in STATUSES {
            with_dimm(change, |partition, before| {
                let failed_call = std::rc::Rc::new(std::cell::Cell::new(None));
                let script_failed_call = failed_call.clone();
                partition.script(move |call, request| {
                    if call != failing_call {
                        return Answer::CarryOut;
                    }
                    script_failed_call.set(Some(request));
                    Answer::Status(status)
                });
                let result = partition.request(change, DIMM);
                let context = format!("{change:?}, {status} at {failing_call}: {result:?}");
                let Some(request) = failed_call.get() else { panic!("{context}: no such call") };
                let failure = result.expect_err(&context);
                match (request, failure.error) {
                    (HypervisorRequest::Update, Error::Update(answered)) => {
                        assert_eq!(answered, status)
                    }
                    (HypervisorRequest::Connector(connector, call), Error::Connector(error)) => {
                        let found = (error.connector, error.call, error.failure);
                        assert_eq!(
                            found,
                            (connector, call, ConnectorFailure::Failed(status)),
                            "{context}"
                        );
                    }
                    _ => panic!("{request:?}; {context}"),
                }
                if failure.unrestored == 0 && failure.lost == 0 {
                    assert_eq!(partition.snapshot(), before, "{context}");
                }
                if change == REMOVE && failure.lost == 0 {
                    assert_eq!(partition.hypervisor.refusals(), 1, "{context}");
                }
                if failure.lost == 0 {
                    check_removable(partition, adds_again, &context);
                }
            });
        }
    });
}

/// The platform stays busy from one call on. The request is cancelled at each wait.
#[test]
fn a_request_ends_after_two_cancellations_on_a_busy_platform() {
    for_each_call(|change, failing_call, adds_again| {
        with_dimm(change, |partition, before| {
            partition.script(move |call, _| match call >= failing_call {
                true => Answer::Status(BUSY),
                false => Answer::CarryOut,
            });
            let result = partition.run(movable_request(change, DIMM), Budget::UNLIMITED, |_| true);
            let context = format!("{change:?} at {failing_call}: {result:?}");
            let failure = result.expect_err(&context);
            assert_eq!(failure.error, Error::Cancelled, "{context}");
            if (failure.unrestored, failure.lost) == (0, 0) && change == ADD {
                assert_eq!(partition.snapshot(), before, "{context}");
            }
            if failure.lost == 0 {
                // QEMU refuses to release a connector that was not configured, so add it first.
                check_removable(partition, adds_again || failure.unrestored > 0, &context);
            }
        });
    });
}

/// The addition fails and leaves acquired connectors. Before the removal fails at one connector, it
/// releases another one. So the removal must not be reported as failed.
#[test]
fn a_removal_is_not_reported_as_failed_after_it_has_released_a_connector() {
    for (failing, acquired) in [(20, 2), (21, 2), (21, 3)] {
        with_dimm(ADD, |partition, _| {
            partition.script(move |_, request| match request {
                HypervisorRequest::Connector(DrcIndex(index), Call::SetUsable)
                    if index == FIRST_INDEX + 22 =>
                {
                    if acquired == 2 {
                        Answer::Status(HARDWARE_ERROR)
                    } else {
                        Answer::CarryOut
                    }
                }
                HypervisorRequest::Update => Answer::Status(HARDWARE_ERROR),
                _ => Answer::CarryOut,
            });
            let failure =
                partition.request(ADD, DIMM).expect_err("the last connector or the update fails");
            assert_eq!(failure.unrestored, acquired);
            partition.hypervisor.request_back(FIRST_OF_DIMM, DIMM_LMBS);
            partition.script(move |_, request| match request {
                HypervisorRequest::Connector(DrcIndex(index), Call::Isolate)
                    if index == FIRST_INDEX + failing =>
                {
                    Answer::Status(HARDWARE_ERROR)
                }
                _ => Answer::CarryOut,
            });
            let failure =
                partition.request(REMOVE, DIMM).expect_err("a connector cannot be isolated");
            let Error::Connector(error) = failure.error else { panic!("{failure}") };
            assert_eq!((error.connector.0, error.call), (FIRST_INDEX + failing, Call::Isolate));
            assert_eq!(partition.hypervisor.refusals(), 0, "{failing} of {acquired}");
            partition.end_script_and_count_calls();
            partition.request(REMOVE, DIMM).expect("the host has requested the memory");
            partition.reported_lmbs = 0;
            partition.check();
        });
    }
}
