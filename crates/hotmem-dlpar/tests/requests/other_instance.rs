//! Tests that polling a request changes nothing if the request was begun with another instance of
//! the engine, or has ended, and that a second request is refused.

use crate::basic::{ADD, REMOVE};
use crate::partition::{LMB_BYTES, Partition, movable_request, ram, with_partition};
use hotmem::{Budget, Bytes, Frames, OneCpu};
use hotmem_dlpar::{Error, LmbSelection, Progress, Wait};
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::boot_forwarding;
use std::mem::swap;

const ON_OTHER_INSTANCE: Progress = Progress::Pending(Wait::OtherInstance);

/// Begins a removal of four LMBs, and polls it until it has taken at least one LMB.
pub(crate) fn begin_partial_removal(partition: &mut Partition<'_, '_>) {
    partition
        .dlpar
        .begin(movable_request(REMOVE, LmbSelection::Count(4)))
        .expect("the request can begin");
    while partition.dlpar.progress().0 == 0 {
        assert_eq!(partition.poll(Budget { pageblocks: 1 }), Progress::Working);
    }
}

#[test]
fn a_request_on_another_instance_waits_and_changes_nothing() {
    static OTHER_FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
    let ram = ram();
    with_partition(|partition| {
        let mut other_hotplug = boot_forwarding(&OTHER_FRAMES, &ram, Bytes(LMB_BYTES).frames());
        begin_partial_removal(partition);
        let (before, other_before) = (partition.snapshot(), OTHER_FRAMES.counts());
        swap(&mut partition.hotplug, &mut other_hotplug);
        assert_eq!(partition.poll(Budget::UNLIMITED), ON_OTHER_INSTANCE);
        partition.dlpar.cancel();
        assert_eq!(partition.poll(Budget::UNLIMITED), ON_OTHER_INSTANCE);
        swap(&mut partition.hotplug, &mut other_hotplug);
        assert_eq!(
            (partition.snapshot(), OTHER_FRAMES.validated().unwrap()),
            (before, other_before)
        );
        let cancelled = partition.poll_to_end(Budget::UNLIMITED, |_| false);
        assert!(cancelled.is_err());
    });
}

#[test]
fn a_request_that_has_ended_changes_nothing() {
    with_partition(|partition| {
        assert!(partition.request(ADD, LmbSelection::Count(1)).is_ok());
        let before = partition.snapshot();
        assert_eq!(
            (partition.poll(Budget::UNLIMITED), partition.dlpar.request()),
            (Progress::Idle, None)
        );
        partition.dlpar.cancel();
        assert_eq!(partition.poll(Budget::UNLIMITED), Progress::Idle);
        assert_eq!(partition.snapshot(), before);
    });
}

#[test]
fn a_second_request_is_refused_and_the_first_continues() {
    with_partition(|partition| {
        assert!(partition.request(ADD, LmbSelection::Count(1)).is_ok());
        begin_partial_removal(partition);
        let first = partition.dlpar.request().expect("a request is in progress");
        let before = partition.snapshot();
        let refused = partition.dlpar.begin(movable_request(ADD, LmbSelection::Count(1)));
        assert_eq!(refused, Err(Error::InProgress(first)));
        assert_eq!(partition.snapshot(), before);
        let summary = partition.poll_to_end(Budget::UNLIMITED, |_| false).unwrap();
        assert_eq!(summary.lmbs, 4);
    });
}
