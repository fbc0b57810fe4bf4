//! Tests that a caller can continue or cancel an open request that another caller has abandoned, and
//! that memory is not lost if the request is dropped.

use crate::basic::{ADD, REMOVE};
use crate::other_instance::begin_partial_removal;
use crate::partition::{FIRST_INDEX, Partition, lmbs, movable_request, with_partition};
use hotmem::{AllocRequest, Budget};
use hotmem_dlpar::hypervisor::{Answer, HypervisorRequest};
use hotmem_dlpar::{BUSY, Call, DrcIndex, Error, LmbSelection, Progress, Wait};

#[test]
fn another_caller_reads_and_continues_the_open_request() {
    with_partition(|partition| {
        // The request stays open after this call, because `dlpar` stores it.
        begin_partial_removal(partition);
        let refused = partition
            .dlpar
            .begin(movable_request(ADD, LmbSelection::Count(1)))
            .expect_err("a request is open");
        let open = partition.dlpar.request().expect("a request is open");
        assert_eq!(refused, Error::InProgress(open));
        assert_eq!(refused.to_string(), "a request to remove 4 LMBs is open");
        assert_eq!((open.change(), open.selection()), (REMOVE, LmbSelection::Count(4)));
        let (taken, wanted) = partition.dlpar.progress();
        assert!(taken > 0 && wanted == 4);
        let summary = partition
            .poll_to_end(Budget::UNLIMITED, |_| false)
            .expect("no obstacle prevents the request");
        assert_eq!((summary.lmbs, partition.dlpar.progress()), (4, (0, 0)));
        partition.request(ADD, LmbSelection::Count(1)).expect("no request is open");
    });
}

#[test]
fn another_caller_cancels_the_open_request() {
    with_partition(|partition| {
        let before = partition.snapshot();
        begin_partial_removal(partition);
        partition.dlpar.cancel();
        let failure = partition
            .poll_to_end(Budget::UNLIMITED, |_| false)
            .expect_err("the request was cancelled");
        assert_eq!((failure, partition.snapshot()), (Error::Cancelled.into(), before));
        partition.request(ADD, LmbSelection::Count(1)).expect("no request is open");
    });
}

#[test]
fn memory_that_waits_to_go_offline_is_given_back_when_its_request_is_dropped() {
    with_partition(|partition| {
        partition.kernel.migrates_later = true;
        let (index, lmb) = lmbs()[7];
        let request = AllocRequest::frames(1).movable().at(lmb.start());
        let frame = partition.hotplug.frames().alloc(request).expect("the frame is free");
        let before = partition.snapshot();
        let request = movable_request(REMOVE, LmbSelection::Index(index));
        let progress = partition.begin(request, Budget::UNLIMITED);
        assert!(matches!(progress, Progress::Pending(Wait::Memory(_))), "{progress:?}");
        assert_ne!(partition.hotplug.frames().counts().isolated, 0);
        assert_eq!(partition.drop_and_begin_anew(), 0);
        assert_eq!(partition.snapshot(), before);
        partition.check_all_online();
        drop(frame);
        partition.request(REMOVE, LmbSelection::Index(index)).expect("the memory is free");
    });
}

/// Drops an addition of one LMB when this call is busy, and begins anew.
fn drop_addition_at(partition: &mut Partition<'_, '_>, index: DrcIndex, busy_call: Call) {
    partition.script(move |_, request| match request {
        HypervisorRequest::Connector(_, call) if call == busy_call => Answer::Status(BUSY),
        _ => Answer::CarryOut,
    });
    let request = movable_request(ADD, LmbSelection::Index(index));
    let progress = partition.begin(request, Budget::UNLIMITED);
    assert!(matches!(progress, Progress::Pending(Wait::Connector { .. })), "{progress:?}");
    partition.end_script_and_count_calls();
    partition.reported_lmbs = partition.drop_and_begin_anew();
    partition.check();
}

#[test]
fn an_lmb_whose_addition_was_dropped_is_added_or_released() {
    let index = DrcIndex(FIRST_INDEX);
    for call in [Call::Sense, Call::SetUsable, Call::Unisolate, Call::Configure] {
        for change in [ADD, REMOVE] {
            with_partition(|partition| {
                drop_addition_at(partition, index, call);
                let is_usable = !matches!(call, Call::Sense | Call::SetUsable);
                assert_eq!(partition.hypervisor.connectors()[0].is_usable, is_usable);
                let result = partition.request(change, LmbSelection::Index(index));
                if change == REMOVE && !is_usable {
                    assert_eq!(result, Err(Error::NotAssigned(index).into()));
                } else {
                    assert_eq!(result.expect("nothing prevents the request").lmbs, 1);
                }
                partition.reported_lmbs = 0;
                partition.check();
            });
        }
    }
}

/// QEMU isolates only a connector that is configured.
#[test]
fn a_connector_whose_addition_was_dropped_returns_to_qemu_when_the_host_asks_for_it() {
    let index = DrcIndex(FIRST_INDEX);
    for call in [Call::Unisolate, Call::Configure] {
        with_partition(|partition| {
            partition.hypervisor.set_like_qemu();
            partition.hypervisor.plug(index, 1);
            drop_addition_at(partition, index, call);
            if call == Call::Unisolate {
                // It is isolated.
                assert!(!partition.hypervisor.connectors()[0].configured);
            }
            partition.hypervisor.request_back(index, 1);
            partition.request(REMOVE, LmbSelection::Index(index)).expect("the host has asked");
            let connector = partition.hypervisor.connectors()[0];
            assert_eq!((connector.is_usable, connector.is_backed), (false, false));
        });
    }
}

/// A removal that is dropped between two LMBs of a DIMM must not be reported as failed, because QEMU
/// would abort when the host asks for the DIMM again.
#[test]
fn a_removal_that_was_dropped_is_not_reported_to_qemu_as_failed() {
    with_partition(|partition| {
        partition.hypervisor.set_like_qemu();
        let dimm = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 16), count: 4 };
        partition.hypervisor.request_back(DrcIndex(FIRST_INDEX + 16), 4);
        partition.script(|_, request| match request {
            HypervisorRequest::Connector(DrcIndex(index), Call::Isolate)
                if index == FIRST_INDEX + 18 =>
            {
                Answer::Status(BUSY)
            }
            _ => Answer::CarryOut,
        });
        let progress = partition.begin(movable_request(REMOVE, dimm), Budget::UNLIMITED);
        assert!(matches!(progress, Progress::Pending(Wait::Connector { .. })), "{progress:?}");
        partition.end_script_and_count_calls();
        assert_eq!(partition.drop_and_begin_anew(), 2, "two LMBs are released");
        let summary = partition.request(REMOVE, dimm).expect("the host has asked");
        assert_eq!((summary.lmbs, partition.hypervisor.refusals()), (2, 0));
        partition.check();
        assert!(partition.hypervisor.connectors()[16..20].iter().all(|lmb| !lmb.is_backed));
    });
}
