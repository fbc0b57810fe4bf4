//! Tests tokens that are dropped, forgotten, or used again. Either the effect of the token is
//! undone, or its memory stays isolated and counted. The memory never has two owners.

use super::{KernelWithTables, absent, offline, on_two, online, unchanged};
use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::Raw as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::link::{Link, Maps, lend};
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, range, start};

#[test]
fn an_addition_that_is_dropped_is_undone_and_a_forgotten_one_stays_held() {
    on_two(|here, there| {
        unchanged(here, there, |here| {
            drop(
                lend(here, &mut KernelWithTables(2), |hotplug, _| hotplug.prepare_add(absent()))
                    .unwrap(),
            );
        });
        let free = here.frames().counts().free;
        core::mem::forget(
            lend(&mut here.hotplug, &mut KernelWithTables(2), |hotplug, _| {
                hotplug.prepare_add(absent())
            })
            .unwrap(),
        );
        assert_eq!(here.frames().validated().unwrap().free, free - 2);
        let again = here.hotplug.add(absent()).unwrap_err();
        assert_eq!(
            again,
            AddError::Range(RangeError {
                range: range(4 * SECTION, PAGEBLOCK),
                kind: RangeErrorKind::Held
            })
        );
        assert_eq!(
            here.hotplug.withdraw(here.region),
            Err(RangeError { range: range(2 * SECTION, PAGEBLOCK), kind: RangeErrorKind::Present })
        );
    });
}

#[test]
fn a_removal_that_is_dropped_stays_held_and_counted() {
    on_two(|here, _| {
        let present = here.frames().counts().present;
        drop(here.hotplug.prepare_remove(offline()).unwrap());
        assert_eq!(here.frames().validated().unwrap().present, present);
        let first = range(3 * SECTION, PAGEBLOCK);
        let online = here.hotplug.online(offline(), OnlineType::Online, &mut NoHooks);
        assert_eq!(online, Err(RangeError { range: first, kind: RangeErrorKind::Held }));
        assert_eq!(
            here.hotplug.remove(offline()),
            Err(RangeError { range: first, kind: RangeErrorKind::Held })
        );
    });
}

#[test]
fn an_isolation_that_is_dropped_stays_isolated_and_counted() {
    on_two(|here, _| {
        let free = range(2 * SECTION + PAGEBLOCK, PAGEBLOCK);
        drop(here.frames().isolate(free).unwrap());
        assert_eq!(here.frames().validated().unwrap().isolated, PAGEBLOCK);
        let again = here.frames().isolate(free).unwrap_err();
        assert_eq!(again, RangeError { range: free, kind: RangeErrorKind::Isolated });
        assert!(
            here.frames()
                .alloc_range(AllocRequest::frames(PAGEBLOCK).movable().at(free.start()))
                .is_err()
        );
    });
}

#[test]
fn an_offline_request_that_is_dropped_leaves_its_memory_isolated_and_counted() {
    on_two(|here, _| {
        let mut request = here.hotplug.offline(online()).unwrap();
        let _ = request.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED);
        drop(request);
        assert_eq!(here.frames().validated().unwrap().isolated, SECTION);
        here.frames().free_range(here.used[0]).unwrap();
        assert_eq!(here.frames().validated().unwrap().isolated, SECTION);
        let mut shrink = Shrink::new(ShrinkOptions { frames: SECTION, ..online().into() });
        let ended = shrink.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let why = ended.pending().map(|blocker| blocker.why);
        assert_eq!((shrink.left(), why), (SECTION, Some(Why::HeldByAnother)));
    });
}

#[test]
fn a_shrink_that_is_dropped_leaves_memory_that_it_took_offline_held_and_counted() {
    on_two(|here, _| {
        let counts = here.frames().counts();
        here.frames().free_range(here.used.remove(0)).unwrap();
        let mut shrink =
            Shrink::new(ShrinkOptions { frames: SECTION, largest: PAGEBLOCK, ..online().into() });
        let answer = shrink.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Progress::Ready(removal) = answer else { panic!("{answer:?}") };
        here.hotplug.commit_remove(removal).unwrap();
        drop(shrink);
        let left = here.frames().validated().unwrap();
        assert_eq!(left.present, counts.present - PAGEBLOCK);
        assert_eq!(left.online, counts.online - SECTION);
        let next = range(3 * SECTION - 2 * PAGEBLOCK, PAGEBLOCK);
        let online = here.hotplug.online(next, OnlineType::Movable, &mut NoHooks);
        assert_eq!(online, Err(RangeError { range: next, kind: RangeErrorKind::Held }));
    });
}

#[test]
fn requests_that_have_ended_do_nothing_when_they_are_polled_again() {
    on_two(|here, there| {
        here.frames().free_range(here.used.remove(0)).unwrap();
        let mut offline = here.hotplug.offline(online()).unwrap();
        let done = offline.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(online()));
        unchanged(here, there, |here| {
            let again = offline.poll(here, &mut NoHooks, Budget::UNLIMITED);
            assert_eq!(again, Progress::Idle);
            offline.cancel(here, &mut NoHooks).unwrap();
        });
        here.hotplug.online(online(), OnlineType::Movable, &mut NoHooks).unwrap();
        let mut shrink = Shrink::new(ShrinkOptions { frames: PAGEBLOCK, ..online().into() });
        let answer = shrink.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Progress::Ready(removal) = answer else { panic!("{answer:?}") };
        here.hotplug.abandon_remove(removal, &mut NoHooks).unwrap();
        unchanged(here, there, |here| {
            for _ in 0..2 {
                let ended = shrink.poll(here, &mut NoHooks, Budget::UNLIMITED);
                assert!(matches!(ended, Progress::Idle), "{ended:?}");
                assert_eq!(shrink.left(), 0);
            }
            shrink.cancel(here, &mut NoHooks).unwrap();
        });
    });
}

/// Commits an addition of one machine within `map` of another machine. Each machine must take its
/// own frames for page tables.
#[test]
fn nested_additions_of_two_machines_take_page_tables_from_their_own_machine() {
    type Theirs<'f> = Hotplug<'f, OneCpu, Link<KernelWithTables>>;
    struct Nested<'a, 'f> {
        other: Option<(&'a mut Theirs<'f>, Addition<'f, OneCpu>)>,
        taken: Vec<Pfn>,
    }
    impl Maps for Nested<'_, '_> {
        fn tables_needed(&self, _: PfnRange) -> u64 {
            2
        }
        fn map(&mut self, _: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
            if let Some((other, addition)) = self.other.take() {
                other.commit_add(addition).unwrap();
            }
            self.taken.extend(take());
        }
    }
    on_two(|_, there| {
        let memory = Memory::new(4 * SECTION);
        let frames = Frames::new(OneCpu);
        let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
        let map = BootMap::of_ram(&ram);
        let mut here = start(&frames, Link::new(memory.direct_map()), &map).unwrap();
        hotmem_testkit::divide_a_pageblock(&frames);
        here.announce(range(2 * SECTION, SECTION)).unwrap();
        hotmem_testkit::make_words(&mut here, range(2 * SECTION, SECTION));
        // Allocate a frame, so that the next free frames of the machines have different numbers.
        there.used.push(there.frames().alloc_range(AllocRequest::frames(1)).unwrap());
        let free = [frames.counts().free, there.frames().counts().free];
        let theirs =
            lend(&mut there.hotplug, &mut KernelWithTables(2), |h, _| h.prepare_add(absent()));
        let other = Some((&mut there.hotplug, theirs.unwrap()));
        let mut nested = Nested { other, taken: vec![] };
        lend(&mut here, &mut nested, |here, _| here.add(range(2 * SECTION, SECTION))).unwrap();
        let taken = std::mem::take(&mut nested.taken);
        // One frame of this machine was taken for page tables, and no frame of the other machine.
        // All other frames were freed on their own machines.
        assert_eq!(taken.len(), 1);
        let left = [frames.validated().unwrap().free, there.frames().validated().unwrap().free];
        assert_eq!(left, [free[0] - 1, free[1]]);
        frames.free_range(PfnRange::with_len(taken[0], 1).unwrap()).unwrap();
    });
}
