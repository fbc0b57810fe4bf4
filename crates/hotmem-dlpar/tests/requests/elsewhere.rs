//! Requests that come to a table or a machine that they were not begun with, or come again when they
//! are over: nothing changes.

use crate::plain::{ADD, REMOVE};
use crate::world::{LMB, Ram, World, new, with};
use hotmem::{BootMap, BootRange, Budget, Bytes, DirectMap, Frames, Hotplug, OneCpu};
use hotmem_dlpar::{Machine, Progress, Request, Wait, Which};
use std::mem::swap;

const ELSEWHERE: Progress = Progress::Pending(Wait::Elsewhere);

/// Begins to remove some LMBs, with some of them in hand.
fn half_way<'f>(world: &mut World<'_, 'f>) -> Request<'f, OneCpu> {
    let mut request = new(REMOVE, Which::Count(4));
    while request.progress(&world.table).0 == 0 {
        assert_eq!(world.poll(&mut request, Budget::pageblocks(1)), Progress::Working);
    }
    request
}

#[test]
fn another_table() {
    with(|world| {
        let mut request = half_way(world);
        with(|other| {
            // It has a request of its own.
            let mut theirs = half_way(other);
            let before = (world.snapshot(), other.snapshot());
            let World { hotplug, kernel, hypervisor, .. } = &mut *world;
            let mut machine = Machine { hotplug, hooks: kernel, connectors: hypervisor };
            let answer = request.poll(&mut other.table, &mut machine, Budget::UNLIMITED);
            assert_eq!(answer, ELSEWHERE);
            assert_eq!((world.snapshot(), other.snapshot()), before);
            assert!(other.run(&mut theirs, Budget::UNLIMITED, |_| false).is_ok());
        });
        assert!(world.run(&mut request, Budget::UNLIMITED, |_| false).is_ok());
    });
}

#[test]
fn another_machine() {
    static OTHER: Frames<OneCpu> = Frames::new(OneCpu);
    let ram = Ram::new();
    let boot = [BootRange { start: 0, len: Bytes(LMB) }];
    // SAFETY: the memory is this machine's alone, and nobody uses it after this test.
    let direct_map = unsafe { DirectMap::at(ram.base()) };
    with(|world| {
        let mut other = Hotplug::bootstrap(&OTHER, direct_map, &BootMap::of_ram(&boot)).unwrap();
        let mut request = half_way(world);
        let (own, theirs) = (world.snapshot(), OTHER.counts());
        swap(&mut world.hotplug, &mut other);
        assert_eq!(world.poll(&mut request, Budget::UNLIMITED), ELSEWHERE);
        request.cancel();
        assert_eq!(world.poll(&mut request, Budget::UNLIMITED), ELSEWHERE);
        swap(&mut world.hotplug, &mut other);
        assert_eq!((world.snapshot(), OTHER.validate().unwrap()), (own, theirs));
        let cancelled = world.run(&mut request, Budget::UNLIMITED, |_| false);
        assert!(cancelled.is_err());
    });
}

#[test]
fn one_that_is_over() {
    with(|world| {
        let mut done = new(ADD, Which::Count(1));
        assert!(world.run(&mut done, Budget::UNLIMITED, |_| false).is_ok());
        let mut request = half_way(world);
        let mut refused = new(ADD, Which::Count(1));
        let answer = world.poll(&mut refused, Budget::UNLIMITED);
        assert!(matches!(answer, Progress::Done(Err(_))));
        let before = world.snapshot();
        for over in [&mut done, &mut refused] {
            assert_eq!(world.poll(over, Budget::UNLIMITED), ELSEWHERE);
        }
        assert_eq!(world.snapshot(), before);
        let summary = world.run(&mut request, Budget::UNLIMITED, |_| false).unwrap();
        assert_eq!(summary.lmbs, 4);
    });
}
