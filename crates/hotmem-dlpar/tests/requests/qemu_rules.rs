//! Tests requests on platforms with the rules of QEMU: released memory cannot be acquired again,
//! memory can be released only if the host has requested it back, and a failed removal must be
//! reported.

use crate::basic::{ADD, REMOVE};
use crate::partition::{FIRST_INDEX, Partition, lmbs, with_partition};
use hotmem::{AllocRequest, Budget, RangeError, RangeErrorKind, State};
use hotmem_dlpar::hypervisor::{Answer, HARDWARE_ERROR, HypervisorRequest, PARAMETER_ERROR};
use hotmem_dlpar::*;
use hotmem_testkit::forwarding::with_kernel;

const fn range(first: u32, count: u32) -> LmbSelection {
    LmbSelection::Range { first: DrcIndex(FIRST_INDEX + first), count }
}

/// A DIMM of four LMBs, which are assigned from the start.
const DIMM: LmbSelection = range(16, 4);

fn request_dimm_back(partition: &mut Partition<'_, '_>) {
    partition.hypervisor.request_back(DrcIndex(FIRST_INDEX + 16), 4);
}

fn with_qemu(f: impl FnOnce(&mut Partition<'_, '_>)) {
    with_partition(|partition| {
        partition.hypervisor.set_like_qemu();
        f(partition);
    });
}

#[test]
fn a_dimm_is_added_and_removed_repeatedly() {
    with_qemu(|partition| {
        for _ in 0..3 {
            partition.hypervisor.plug(DrcIndex(FIRST_INDEX + 20), 3);
            let added = partition.request(ADD, range(20, 3)).expect("the DIMM is plugged");
            assert_eq!((added.lmbs, added.skipped), (3, 0));
            partition.hypervisor.request_back(DrcIndex(FIRST_INDEX + 20), 3);
            let removed =
                partition.request(REMOVE, range(20, 3)).expect("the host has requested the memory");
            assert_eq!((removed.lmbs, removed.skipped), (3, 0));
        }
        assert_eq!(partition.hypervisor.refusals(), 0);
    });
}

#[test]
fn a_request_by_count_skips_lmbs_without_memory() {
    with_qemu(|partition| {
        partition.hypervisor.plug(DrcIndex(FIRST_INDEX + 20), 3);
        let added = partition.request(ADD, LmbSelection::Count(3)).expect("three LMBs are plugged");
        assert_eq!((added.lmbs, added.unrestored), (3, 0));
        assert!(partition.refused_lmbs.iter().all(|refused| matches!(
            refused.error,
            Error::Connector(ConnectorError {
                call: Call::SetUsable,
                failure: ConnectorFailure::Failed(PARAMETER_ERROR),
                is_stuck: false,
                ..
            })
        )));
        assert_eq!(added.skipped as usize, partition.refused_lmbs.len());
        assert!([20, 21, 22].iter().all(|nth| partition.assigned().contains(nth)));
        assert!(!partition.assigned().contains(&0));
    });
}

/// `configure` returns before the connector is configured.
#[test]
fn a_connector_that_is_not_configured_cannot_be_released() {
    with_qemu(|partition| {
        partition.hypervisor.plug(DrcIndex(FIRST_INDEX + 20), 1);
        partition.script(|_, request| match request {
            HypervisorRequest::Connector(_, Call::Configure) => Answer::Status(0),
            _ => Answer::CarryOut,
        });
        partition.request(ADD, range(20, 1)).expect("the DIMM is plugged");
        let before = partition.snapshot();
        partition.hypervisor.request_back(DrcIndex(FIRST_INDEX + 20), 1);
        let failure =
            partition.request(REMOVE, range(20, 1)).expect_err("the connector is not configured");
        let Error::Connector(error) = failure.error else { panic!("{failure}") };
        assert_eq!(
            (error.call, error.failure),
            (Call::Isolate, ConnectorFailure::Failed(PARAMETER_ERROR))
        );
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!(partition.hypervisor.refusals(), 1);
        assert_eq!(partition.snapshot(), before);
    });
}

#[test]
fn a_failed_removal_is_reported_and_can_be_repeated() {
    with_qemu(|partition| {
        let in_use = AllocRequest::frames(3).movable().at(lmbs()[18].1.start());
        let used = partition.hotplug.frames().alloc(in_use).expect("the memory is free");
        let before = partition.snapshot();
        request_dimm_back(partition);
        let failure = partition.request(REMOVE, DIMM).expect_err("the memory is in use");
        assert!(matches!(failure.error, Error::Blocked(_)), "{failure}");
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!(partition.hypervisor.refusals(), 1);
        assert_eq!(partition.snapshot(), before);
        drop(used);
        request_dimm_back(partition);
        assert_eq!(partition.request(REMOVE, DIMM).expect("the memory is free").lmbs, 4);
        assert_eq!(partition.hypervisor.refusals(), 1);
    });
}

#[test]
fn a_cancelled_removal_is_reported() {
    with_qemu(|partition| {
        let before = partition.snapshot();
        request_dimm_back(partition);
        let first = partition.begin(Request::remove(DIMM), Budget { pageblocks: 8 });
        assert_eq!(first, Progress::Working);
        partition.dlpar.cancel();
        let failure = partition.poll_to_end(Budget { pageblocks: 8 }, |_| false);
        assert_eq!(failure.expect_err("the request was cancelled").error, Error::Cancelled);
        assert_eq!((partition.hypervisor.refusals(), partition.snapshot()), (1, before));
    });
}

/// The last connector of the DIMM is in a state from which it cannot be released.
#[test]
fn all_connectors_are_checked_before_the_first_is_released() {
    with_qemu(|partition| {
        let before = partition.snapshot();
        request_dimm_back(partition);
        partition.script(|_, request| match request {
            HypervisorRequest::Connector(DrcIndex(index), Call::Sense)
                if index == FIRST_INDEX + 19 =>
            {
                Answer::State(0)
            }
            _ => Answer::CarryOut,
        });
        let failure =
            partition.request(REMOVE, DIMM).expect_err("the connector is in another state");
        assert!(matches!(
            failure.error,
            Error::Connector(ConnectorError {
                call: Call::Sense,
                failure: ConnectorFailure::State(0),
                ..
            })
        ));
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!((partition.hypervisor.refusals(), partition.snapshot()), (1, before));
    });
}

/// The engine refuses to remove the last LMB of the DIMM, because another caller removes this LMB.
#[test]
fn all_memory_is_checked_before_the_first_connector_is_released() {
    with_qemu(|partition| {
        let last = lmbs()[19].1;
        partition.take_offline(last);
        let removal = with_kernel(&mut partition.hotplug, &mut partition.kernel, |hotplug, _| {
            hotplug.prepare_remove(last)
        });
        let removal = removal.expect("the memory is offline");
        let before = partition.snapshot();
        request_dimm_back(partition);
        let failure =
            partition.request(REMOVE, DIMM).expect_err("another caller removes the memory");
        assert_eq!(
            failure.error,
            Error::Remove(RangeError { range: first_pageblock(last), kind: RangeErrorKind::Held })
        );
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!((partition.hypervisor.refusals(), partition.snapshot()), (1, before));
        with_kernel(&mut partition.hotplug, &mut partition.kernel, |hotplug, hooks| {
            hotplug.abandon_remove(removal, hooks)
        });
        let state = partition.hotplug.state_at(last.start(), last.end());
        assert_eq!(state, (last, State::Offline));
        request_dimm_back(partition);
        assert_eq!(partition.request(REMOVE, DIMM).expect("all LMBs can be removed").lmbs, 4);
    });
}

/// Returns the first pageblock of a range.
fn first_pageblock(range: hotmem::PfnRange) -> hotmem::PfnRange {
    hotmem::PfnRange::with_len(range.start(), hotmem::geometry::PAGEBLOCK_FRAMES as u64)
        .expect("the number is below the limit")
}

/// The host already has one LMB of the memory, so the removal must not be reported as failed.
#[test]
fn a_removal_that_loses_lmbs_is_not_reported_as_failed() {
    with_qemu(|partition| {
        request_dimm_back(partition);
        partition.script(|_, request| match request {
            HypervisorRequest::Connector(DrcIndex(index), Call::Isolate)
                if index == FIRST_INDEX + 17 =>
            {
                Answer::Status(HARDWARE_ERROR)
            }
            _ => Answer::CarryOut,
        });
        let failure =
            partition.request(REMOVE, DIMM).expect_err("the second connector cannot be isolated");
        assert_eq!((failure.unrestored, failure.lost), (0, 1));
        assert_eq!(partition.hypervisor.refusals(), 0);
        assert!(!partition.assigned().contains(&16));
        assert!([17, 18, 19].iter().all(|nth| partition.assigned().contains(nth)));
    });
}

/// The kernel vetoes an LMB, so the addition of the DIMM fails. QEMU takes the connectors back only
/// if the host has requested them. They are not lost: the DIMM can be added again or removed.
#[test]
fn connectors_that_cannot_be_released_are_added_again_or_removed() {
    let by_index =
        || (20..23).map(|nth| LmbSelection::Index(DrcIndex(FIRST_INDEX + nth))).collect::<Vec<_>>();
    for (change, requests, lmbs) in
        [(ADD, vec![range(20, 3)], 3), (REMOVE, vec![range(20, 3)], 3), (REMOVE, by_index(), 1)]
    {
        with_qemu(|partition| {
            let free = partition.snapshot();
            partition.hypervisor.plug(DrcIndex(FIRST_INDEX + 20), 3);
            partition.kernel.veto_online.insert(first_pfn(21));
            let failure =
                partition.request(ADD, range(20, 3)).expect_err("the kernel vetoes the change");
            assert!(matches!(failure.error, Error::Online(_)), "{failure}");
            assert_eq!((failure.unrestored, failure.lost), (3, 0));
            partition.kernel.veto_online.clear();
            if change == REMOVE {
                partition.hypervisor.request_back(DrcIndex(FIRST_INDEX + 20), 3);
            }
            for selection in requests {
                assert_eq!(
                    partition
                        .request(change, selection)
                        .expect("no obstacle prevents the request")
                        .lmbs,
                    lmbs
                );
            }
            // All LMBs are restored.
            partition.reported_lmbs = 0;
            partition.check();
            if change == REMOVE {
                assert_eq!(partition.snapshot().lmbs, free.lmbs);
            }
            assert_eq!(partition.hypervisor.refusals(), 0);
        });
    }
}

/// The addition of the DIMM fails as in the previous test, and then all its connectors refuse to be
/// isolated.
#[test]
fn a_removal_of_connectors_that_cannot_be_isolated_is_reported_as_failed() {
    with_qemu(|partition| {
        partition.hypervisor.plug(DrcIndex(FIRST_INDEX + 20), 3);
        partition.kernel.veto_online.insert(first_pfn(21));
        partition.request(ADD, range(20, 3)).expect_err("the kernel vetoes the change");
        partition.hypervisor.request_back(DrcIndex(FIRST_INDEX + 20), 3);
        partition.script(|_, request| match request {
            HypervisorRequest::Connector(_, Call::Isolate) => Answer::Status(HARDWARE_ERROR),
            _ => Answer::CarryOut,
        });
        let failure =
            partition.request(REMOVE, range(20, 3)).expect_err("the connectors cannot be isolated");
        assert!(matches!(failure.error, Error::Connector(_)), "{failure}");
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!(partition.hypervisor.refusals(), 1);
        partition.end_script_and_count_calls();
        partition.hypervisor.request_back(DrcIndex(FIRST_INDEX + 20), 3);
        assert_eq!(
            partition
                .request(REMOVE, range(20, 3))
                .expect("the host has requested the memory")
                .lmbs,
            3
        );
    });
}

fn first_pfn(nth: usize) -> u64 {
    lmbs()[nth].1.start().number()
}

/// The platform is busy when the request reports the failed removal.
#[test]
fn the_report_of_a_failed_removal_is_repeated_until_the_caller_cancels() {
    for waits in [true, false] {
        with_qemu(|partition| {
            let used = partition
                .hotplug
                .frames()
                .alloc(AllocRequest::frames(1).movable().at(lmbs()[16].1.start()));
            let _used = used.expect("the memory is free").into_raw();
            request_dimm_back(partition);
            partition.script(|call, request| match request {
                HypervisorRequest::Connector(_, Call::Unisolate) if call < 3 => {
                    Answer::Status(BUSY)
                }
                _ => Answer::CarryOut,
            });
            let result = partition.run(Request::remove(DIMM), Budget::UNLIMITED, |_| !waits);
            assert!(result.is_err());
            assert_eq!(partition.hypervisor.refusals(), u64::from(waits));
        });
    }
}
