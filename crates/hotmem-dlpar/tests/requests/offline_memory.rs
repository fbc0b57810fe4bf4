//! Tests requests for LMBs whose memory is offline, or partly offline.

use crate::basic::{REMOVE, drc_index, lmb_range, lmb_set};
use crate::partition::{movable_request, with_partition};
use hotmem::{Budget, Bytes, OnlineType, PfnRange, RangeError, RangeErrorKind};
use hotmem_dlpar::hypervisor::{Answer, HypervisorRequest};
use hotmem_dlpar::*;
use hotmem_testkit::forwarding::with_kernel;

#[test]
fn offline_memory_stays_offline_if_its_removal_fails() {
    with_partition(|partition| {
        let lmb = lmb_range(17);
        partition.take_offline(lmb);
        let before = partition.snapshot();
        partition.script(|_, request| match request {
            HypervisorRequest::Update => Answer::Status(-1),
            HypervisorRequest::Connector(..) => Answer::CarryOut,
        });
        let range = LmbSelection::Range { first: drc_index(16), count: 3 };
        let failure =
            partition.request(REMOVE, range).expect_err("the update of the property fails");
        assert_eq!(failure.error, Error::Update(-1));
        assert_eq!(partition.snapshot(), before);
        partition.end_script_and_count_calls();
        partition.request(REMOVE, range).expect("no obstacle prevents the request");
        assert_eq!(partition.assigned(), lmb_set([7, 8, 19]));
    });
}

#[test]
fn an_lmb_that_is_partly_offline_is_refused() {
    with_partition(|partition| {
        let half_lmb =
            PfnRange::with_len(lmb_range(17).start(), 1024).expect("the number is below the limit");
        partition.take_offline(half_lmb);
        // The request is polled directly, because `Partition::check` does not support LMBs that are
        // partly offline.
        let failure = partition
            .begin(movable_request(REMOVE, LmbSelection::Index(drc_index(17))), Budget::UNLIMITED);
        let Progress::Ready(Err(failure)) = failure else { panic!("{failure:?}") };
        assert_eq!(failure.error, Error::Mixed(drc_index(17)));
        partition
            .hotplug
            .online(half_lmb, OnlineType::AsBefore, &mut partition.kernel)
            .expect("the memory is offline");
        assert_eq!(half_lmb.bytes(), Bytes(4 << 20));
        partition
            .request(REMOVE, LmbSelection::Index(drc_index(17)))
            .expect("no obstacle prevents the request");
    });
}

/// The four LMBs from LMB 16 on are one range of the engine. Another caller is removing LMB 18.
#[test]
fn only_the_lmb_that_cannot_be_removed_is_skipped() {
    with_partition(|partition| {
        let all_lmbs = PfnRange::new(lmb_range(16).start(), lmb_range(19).end())
            .expect("the start is below the end");
        partition.take_offline(all_lmbs);
        let other_removal =
            with_kernel(&mut partition.hotplug, &mut partition.kernel, |hotplug, _| {
                hotplug.prepare_remove(lmb_range(18))
            })
            .expect("the memory is offline");
        let range = LmbSelection::Range { first: drc_index(16), count: 4 };
        let failure = partition.request(REMOVE, range).expect_err("LMB 18 is in use");
        let Error::Remove(RangeError { range: refused, kind: RangeErrorKind::Held }) =
            failure.error
        else {
            panic!("{failure}")
        };
        assert!(lmb_range(18).covers(refused), "{failure}");
        let summary = partition
            .request(REMOVE, LmbSelection::Count(5))
            .expect("enough other LMBs are available");
        assert_eq!((summary.lmbs, summary.skipped, summary.unrestored), (5, 1, 0));
        assert_eq!(partition.assigned(), lmb_set([18]));
        with_kernel(&mut partition.hotplug, &mut partition.kernel, |hotplug, hooks| {
            hotplug.abandon_remove(other_removal, hooks)
        });
        partition.request(REMOVE, LmbSelection::Count(1)).expect("LMB 18 is not in use");
    });
}
