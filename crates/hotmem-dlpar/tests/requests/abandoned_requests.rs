//! Tests that a caller can continue or cancel an open request that another caller has abandoned.

use crate::basic::{ADD, REMOVE};
use crate::other_instance::begin_partial_removal;
use crate::partition::{movable_request, with_partition};
use hotmem::Budget;
use hotmem_dlpar::{Error, LmbSelection};

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
