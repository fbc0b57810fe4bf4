//! Tests tokens that are dropped, forgotten, or used again. Either the effect of the token is
//! undone, or its memory stays isolated and counted, until it is removed. The memory never has two
//! owners.

use super::{KernelWithTables, absent, assert_unchanged, offline, online, with_two_instances};
use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::{ForwardingMapping, TestMapping, with_kernel};
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, range, start};

#[test]
fn an_addition_that_is_dropped_is_undone_and_a_forgotten_one_stays_held() {
    with_two_instances(|local, foreign| {
        assert_unchanged(local, foreign, |local| {
            drop(
                with_kernel(local, &mut KernelWithTables(2), |hotplug, _| {
                    hotplug.prepare_add(absent())
                })
                .unwrap(),
            );
        });
        let free = local.frames().counts().free;
        core::mem::forget(
            with_kernel(&mut local.hotplug, &mut KernelWithTables(2), |hotplug, _| {
                hotplug.prepare_add(absent())
            })
            .unwrap(),
        );
        assert_eq!(local.frames().validated().unwrap().free, free - 2);
        let again = local.hotplug.add(absent()).unwrap_err();
        assert_eq!(
            again,
            AddError::Range(RangeError {
                range: range(4 * SECTION, PAGEBLOCK),
                kind: RangeErrorKind::Held
            })
        );
        assert_eq!(
            local.hotplug.withdraw(local.region),
            Err(RangeError { range: range(2 * SECTION, PAGEBLOCK), kind: RangeErrorKind::Present })
        );
    });
}

#[test]
fn a_removal_that_is_dropped_stays_held_and_counted_until_it_is_removed() {
    with_two_instances(|local, _| {
        let before = local.frames().counts();
        drop(local.hotplug.prepare_remove(offline()).unwrap());
        assert_eq!(local.frames().validated().unwrap(), before);
        let first = range(3 * SECTION, PAGEBLOCK);
        let held = Err(RangeError { range: first, kind: RangeErrorKind::Held });
        let online = local.hotplug.online(offline(), OnlineType::Online, &mut NoHooks);
        assert_eq!(online, held);
        assert_eq!(local.hotplug.prepare_remove(offline()).map(drop), held);
        let state = local.hotplug.state_at(offline().start(), offline().end());
        assert_eq!(state, (offline(), State::Removing));
        local.hotplug.remove(offline()).unwrap();
        let after = local.frames().validated().unwrap();
        assert_eq!(after.present, before.present - offline().frames());
        local.hotplug.add(offline()).unwrap();
        assert_eq!(local.frames().validated().unwrap(), before);
    });
}

#[test]
fn a_removal_that_is_forgotten_stays_held_and_counted() {
    with_two_instances(|local, _| {
        let present = local.frames().counts().present;
        core::mem::forget(local.hotplug.prepare_remove(offline()).unwrap());
        assert_eq!(local.frames().validated().unwrap().present, present);
        let first = range(3 * SECTION, PAGEBLOCK);
        let held = Err(RangeError { range: first, kind: RangeErrorKind::Held });
        assert_eq!(local.hotplug.remove(offline()), held);
    });
}

#[test]
fn an_isolation_that_is_dropped_stays_isolated_and_counted() {
    with_two_instances(|local, _| {
        let free = range(2 * SECTION + PAGEBLOCK, PAGEBLOCK);
        drop(local.frames().isolate(free).unwrap());
        assert_eq!(local.frames().validated().unwrap().isolated, PAGEBLOCK);
        let again = local.frames().isolate(free).unwrap_err();
        assert_eq!(again, RangeError { range: free, kind: RangeErrorKind::Isolated });
        assert!(
            local
                .frames()
                .alloc_range(AllocRequest::frames(PAGEBLOCK).movable().at(free.start()))
                .is_err()
        );
    });
}

#[test]
fn an_offline_request_that_is_dropped_gives_its_memory_back() {
    with_two_instances(|local, _| {
        let before = local.frames().counts();
        let mut request = local.hotplug.offline(online()).unwrap();
        let _ = request.poll(&mut local.hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(local.frames().validated().unwrap().isolated, SECTION);
        drop(request);
        assert_eq!(local.frames().validated().unwrap(), before);
    });
}

#[test]
fn an_offline_request_that_is_forgotten_leaves_its_memory_isolated_and_counted() {
    with_two_instances(|local, _| {
        let mut request = local.hotplug.offline(online()).unwrap();
        let _ = request.poll(&mut local.hotplug, &mut NoHooks, Budget::UNLIMITED);
        core::mem::forget(request);
        assert_eq!(local.frames().validated().unwrap().isolated, SECTION);
        local.frames().free_range(local.allocations[0]).unwrap();
        assert_eq!(local.frames().validated().unwrap().isolated, SECTION);
        let mut shrink = Shrink::new(ShrinkOptions { frames: SECTION, ..online().into() });
        let ended = shrink.poll(&mut local.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let reason = hotmem_testkit::blocker_of(ended).map(|blocker| blocker.kind);
        assert_eq!((shrink.frames_left(), reason), (SECTION, Some(BlockerKind::HeldByAnother)));
    });
}

#[test]
fn a_shrink_that_is_dropped_leaves_memory_that_it_took_offline_held_and_counted() {
    with_two_instances(|local, _| {
        let counts = local.frames().counts();
        local.frames().free_range(local.allocations.remove(0)).unwrap();
        let mut shrink = Shrink::new(ShrinkOptions {
            frames: SECTION,
            max_run_frames: PAGEBLOCK,
            ..online().into()
        });
        let answer = shrink.poll(&mut local.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Progress::Ready(removal) = answer else { panic!("{answer:?}") };
        local.hotplug.commit_remove(removal);
        drop(shrink);
        let remaining = local.frames().validated().unwrap();
        assert_eq!(remaining.present, counts.present - PAGEBLOCK);
        assert_eq!(remaining.online, counts.online - SECTION);
        let next = range(3 * SECTION - 2 * PAGEBLOCK, PAGEBLOCK);
        let online = local.hotplug.online(next, OnlineType::Movable, &mut NoHooks);
        assert_eq!(online, Err(RangeError { range: next, kind: RangeErrorKind::Held }));
    });
}

#[test]
fn requests_that_have_ended_do_nothing_when_they_are_polled_again() {
    with_two_instances(|local, foreign| {
        local.frames().free_range(local.allocations.remove(0)).unwrap();
        let mut offline = local.hotplug.offline(online()).unwrap();
        let done = offline.poll(&mut local.hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(online()));
        assert_unchanged(local, foreign, |local| {
            let again = offline.poll(local, &mut NoHooks, Budget::UNLIMITED);
            assert_eq!(again, Progress::Idle);
            offline.cancel(local, &mut NoHooks);
        });
        local.hotplug.online(online(), OnlineType::Movable, &mut NoHooks).unwrap();
        let mut shrink = Shrink::new(ShrinkOptions { frames: PAGEBLOCK, ..online().into() });
        let answer = shrink.poll(&mut local.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Progress::Ready(removal) = answer else { panic!("{answer:?}") };
        local.hotplug.abandon_remove(removal, &mut NoHooks);
        assert_unchanged(local, foreign, |local| {
            for _ in 0..2 {
                let ended = shrink.poll(local, &mut NoHooks, Budget::UNLIMITED);
                assert!(matches!(ended, Progress::Idle), "{ended:?}");
                assert_eq!(shrink.frames_left(), 0);
            }
            shrink.cancel(local, &mut NoHooks);
        });
    });
}

/// Commits an addition of one instance within `map` of another instance. Each instance must take
/// its own frames for page tables.
#[test]
fn nested_additions_of_two_instances_take_page_tables_from_their_own_instance() {
    type OtherHotplug<'f> = Hotplug<'f, OneCpu, ForwardingMapping<KernelWithTables>>;
    struct NestingHooks<'a, 'f> {
        other_instance: Option<(&'a mut OtherHotplug<'f>, Addition<'f, OneCpu>)>,
        allocated: Vec<Pfn>,
    }
    impl TestMapping for NestingHooks<'_, '_> {
        fn tables_needed(&self, _: PfnRange) -> u64 {
            2
        }
        fn map(&mut self, _: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
            if let Some((other, addition)) = self.other_instance.take() {
                other.commit_add(addition);
            }
            self.allocated.extend(take());
        }
    }
    with_two_instances(|_, foreign| {
        let memory = Memory::new(4 * SECTION);
        let frames = Frames::new(OneCpu);
        let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
        let map = BootMap::from(&ram);
        let mut local = start(&frames, ForwardingMapping::new(memory.direct_map()), map).unwrap();
        hotmem_testkit::divide_two_pageblocks(&frames);
        local.announce(range(2 * SECTION, SECTION)).unwrap();
        hotmem_testkit::make_words(&mut local, range(2 * SECTION, SECTION));
        // Allocate a frame, so that the next free frames of the instances have different numbers.
        foreign.allocations.push(foreign.frames().alloc_range(AllocRequest::frames(1)).unwrap());
        let free = [frames.counts().free, foreign.frames().counts().free];
        let foreign_token = with_kernel(&mut foreign.hotplug, &mut KernelWithTables(2), |h, _| {
            h.prepare_add(absent())
        });
        let other = Some((&mut foreign.hotplug, foreign_token.unwrap()));
        let mut nested = NestingHooks { other_instance: other, allocated: vec![] };
        with_kernel(&mut local, &mut nested, |local, _| local.add(range(2 * SECTION, SECTION)))
            .unwrap();
        let allocated = std::mem::take(&mut nested.allocated);
        // One frame of this instance was taken for page tables, and no frame of the other instance.
        // All other frames were freed on the instances that they belong to.
        assert_eq!(allocated.len(), 1);
        let remaining =
            [frames.validated().unwrap().free, foreign.frames().validated().unwrap().free];
        assert_eq!(remaining, [free[0] - 1, free[1]]);
        frames.free_range(PfnRange::with_len(allocated[0], 1).unwrap()).unwrap();
    });
}
