//! Tests that a request changes nothing if it is polled with another machine than that of its
//! table, or after its end.

use crate::plain::{ADD, REMOVE};
use crate::world::{LMB, World, new, ram, with};
use hotmem::{Budget, Bytes, Frames, OneCpu};
use hotmem_dlpar::{Error, Progress, Wait, Which};
use hotmem_testkit::Validated as _;
use hotmem_testkit::link::boot_linked;
use std::mem::swap;

const ELSEWHERE: Progress = Progress::Pending(Wait::OtherMachine);

/// Begins a removal, and polls until some of the LMBs are taken.
pub(crate) fn half_way(world: &mut World<'_, '_>) {
    world.dlpar.begin(new(REMOVE, Which::Count(4))).expect("nothing is in the way");
    while world.dlpar.progress().0 == 0 {
        assert_eq!(world.poll(Budget { pageblocks: 1 }), Progress::Working);
    }
}

#[test]
fn a_request_on_another_machine_waits_and_changes_nothing() {
    static OTHER: Frames<OneCpu> = Frames::new(OneCpu);
    let ram = ram();
    with(|world| {
        let mut other = boot_linked(&OTHER, &ram, Bytes(LMB).frames());
        half_way(world);
        let (own, theirs) = (world.snapshot(), OTHER.counts());
        swap(&mut world.hotplug, &mut other);
        assert_eq!(world.poll(Budget::UNLIMITED), ELSEWHERE);
        world.dlpar.cancel();
        assert_eq!(world.poll(Budget::UNLIMITED), ELSEWHERE);
        swap(&mut world.hotplug, &mut other);
        assert_eq!((world.snapshot(), OTHER.validated().unwrap()), (own, theirs));
        let cancelled = world.poll_to_the_end(Budget::UNLIMITED, |_| false);
        assert!(cancelled.is_err());
    });
}

#[test]
fn a_request_that_has_ended_changes_nothing() {
    with(|world| {
        assert!(world.request(ADD, Which::Count(1)).is_ok());
        let before = world.snapshot();
        assert_eq!((world.poll(Budget::UNLIMITED), world.dlpar.request()), (Progress::Idle, None));
        world.dlpar.cancel();
        assert_eq!(world.poll(Budget::UNLIMITED), Progress::Idle);
        assert_eq!(world.snapshot(), before);
        half_way(world);
        let open = world.dlpar.request().expect("one is open");
        let before = world.snapshot();
        let refused = world.dlpar.begin(new(ADD, Which::Count(1)));
        assert_eq!(refused, Err(Error::InProgress(open)));
        assert_eq!(world.snapshot(), before);
        let summary = world.poll_to_the_end(Budget::UNLIMITED, |_| false).unwrap();
        assert_eq!(summary.lmbs, 4);
    });
}
