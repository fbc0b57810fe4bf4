//! Tests tokens of one machine that are passed to another machine with equal memory. The other
//! machine refuses or returns them, both machines stay unchanged, and the first machine still
//! accepts the tokens.

use super::{BOOT_SECTIONS, Machine, SECTIONS, absent, offline, on_two, online, unchanged};
use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::Raw as _;
use hotmem_testkit::RawReserved as _;
use hotmem_testkit::region_range;
use hotmem_testkit::{PAGEBLOCK, SECTION, pfn, range};

#[test]
fn a_foreign_addition_is_returned() {
    on_two(|here, there| {
        let theirs = there.hotplug.prepare_add(absent()).unwrap();
        // This machine has prepared the same range.
        let own = here.hotplug.prepare_add(AddRequest { device: true, ..absent().into() }).unwrap();
        let theirs = unchanged(here, there, |here| here.commit_add(theirs).unwrap_err());
        there.hotplug.commit_add(theirs).unwrap();
        here.hotplug.commit_add(own).unwrap();
        let state = |machine: &Machine<'_>| machine.hotplug.state_at(absent().start(), Pfn::LIMIT);
        assert_eq!(state(there), (absent(), State::Offline));
        assert_eq!(state(here), (absent(), State::Device));
    });
}

#[test]
fn a_foreign_removal_is_returned() {
    on_two(|here, there| {
        let theirs = there.hotplug.prepare_remove(offline()).unwrap();
        let own = here.hotplug.prepare_remove(offline()).unwrap();
        let theirs = unchanged(here, there, |here| {
            let theirs = here.commit_remove(theirs).unwrap_err();
            here.abandon_remove(theirs, &mut NoHooks).unwrap_err()
        });
        there.hotplug.commit_remove(theirs).unwrap();
        here.hotplug.abandon_remove(own, &mut NoHooks).unwrap();
        let state =
            |machine: &Machine<'_>| machine.hotplug.state_at(offline().start(), Pfn::LIMIT).1;
        assert_eq!((state(there), state(here)), (State::Absent, State::Offline));
    });
}

#[test]
fn a_part_of_a_foreign_removal_is_returned() {
    on_two(|here, there| {
        let theirs = there.hotplug.prepare_remove(offline()).unwrap();
        let (below, above) = theirs.split_at(pfn(3 * SECTION + PAGEBLOCK)).unwrap();
        // The same memory is online on this machine.
        here.hotplug.online(offline(), OnlineType::Kernel, &mut NoHooks).unwrap();
        let (below, above) = unchanged(here, there, |here| {
            let below = here.commit_remove(below).unwrap_err();
            let above = here.abandon_remove(above, &mut NoHooks).unwrap_err();
            (below, above)
        });
        there.hotplug.commit_remove(below).unwrap();
        there.hotplug.abandon_remove(above, &mut NoHooks).unwrap();
    });
}

#[test]
fn a_foreign_isolation_token_is_returned() {
    on_two(|here, there| {
        let free = range(2 * SECTION + PAGEBLOCK, PAGEBLOCK);
        let theirs = there.frames().isolate(free).unwrap();
        let own = here.frames().isolate(free).unwrap();
        let before = (here.frames().counts(), there.frames().counts());
        let (theirs, why) = here.hotplug.take_offline(theirs, &mut NoHooks).unwrap_err();
        assert_eq!(why.why, Why::Foreign);
        assert_eq!((here.frames().counts(), there.frames().counts()), before);
        // The other two exits, release and report, are methods of the token, so they act on the
        // token's own machine.
        theirs.release();
        assert_eq!(there.frames().counts().isolated, 0);
        assert_eq!(here.frames().counts(), before.0);
        own.mark_reported().unwrap();
        assert_eq!(here.frames().counts().reported, PAGEBLOCK);
        assert_eq!(there.frames().counts().reported, 0);
    });
}

const PINNED: Why = Why::Unmovable("this kernel does not migrate");

#[test]
fn a_foreign_offline_request_is_refused_and_returned() {
    on_two(|here, there| {
        let mut theirs = there.hotplug.offline(online()).unwrap();
        let foreign = Progress::Pending(Blocker { range: online(), why: Why::Foreign });
        let unlimited = Budget::UNLIMITED;
        // This machine refuses the request before its first poll, and again while it waits for
        // frames in use.
        let answer = unchanged(here, there, |here| theirs.poll(here, &mut NoHooks, unlimited));
        assert_eq!(answer, foreign);
        let blocked = theirs.poll(&mut there.hotplug, &mut NoHooks, unlimited);
        let pinned = Blocker { range: there.used[0], why: PINNED };
        assert_eq!(blocked, Progress::Pending(pinned));
        let theirs = unchanged(here, there, |here| {
            assert_eq!(theirs.poll(here, &mut NoHooks, unlimited), foreign);
            theirs.cancel(here, &mut NoHooks).unwrap_err()
        });
        assert_eq!(there.frames().counts().isolated, SECTION);
        theirs.cancel(&mut there.hotplug, &mut NoHooks).unwrap();
        assert_eq!(there.frames().counts().isolated, 0);
    });
}

#[test]
fn a_foreign_shrink_is_refused_and_returned() {
    on_two(|here, there| {
        let mut theirs =
            Shrink::new(ShrinkOptions { frames: SECTION, largest: PAGEBLOCK, ..online().into() });
        // The shrink has taken more memory offline than one poll returns.
        let answer = theirs.poll(&mut there.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Progress::Ready(removal) = answer else { panic!("{answer:?}") };
        let top = range(3 * SECTION - PAGEBLOCK, PAGEBLOCK);
        assert_eq!(removal.range(), top);
        let held = there.frames().counts();
        let (theirs, removal) = unchanged(here, there, |here| {
            let answer = theirs.poll(here, &mut NoHooks, Budget::UNLIMITED);
            let Progress::Pending(blocker) = answer else { panic!("{answer:?}") };
            assert_eq!((theirs.left() > 0, blocker.why), (true, Why::Foreign));
            let removal = here.abandon_remove(removal, &mut NoHooks).unwrap_err();
            let theirs = theirs.cancel(here, &mut NoHooks).unwrap_err();
            (theirs, removal)
        });
        there.hotplug.abandon_remove(removal, &mut NoHooks).unwrap();
        theirs.cancel(&mut there.hotplug, &mut NoHooks).unwrap();
        let counts = there.frames().counts();
        assert!(held.online < counts.online);
        assert_eq!(counts.online, (BOOT_SECTIONS + 1) * SECTION);
    });
}

#[test]
fn foreign_frames_are_refused_unless_they_are_allocated_here_too() {
    on_two(|here, there| {
        // On this machine the memory is free, offline or absent.
        let free = there.frames().alloc_range(AllocRequest::frames(PAGEBLOCK).movable()).unwrap();
        there.hotplug.online(offline(), OnlineType::Movable, &mut NoHooks).unwrap();
        there.hotplug.add(absent()).unwrap();
        there.hotplug.online(absent(), OnlineType::Movable, &mut NoHooks).unwrap();
        there.used.push(free);
        let at = |range: PfnRange| AllocRequest::frames(1).movable().at(range.start());
        let elsewhere =
            [offline(), absent()].map(|all| there.frames().alloc_range(at(all)).unwrap());
        there.used.extend(elsewhere);
        unchanged(here, there, |here| {
            let refused = |range, kind| {
                assert_eq!(here.frames().free_range(range), Err(RangeError { range, kind }));
            };
            refused(free, RangeErrorKind::NotAllocated);
            elsewhere.into_iter().for_each(|range| refused(range, RangeErrorKind::Foreign));
        });
        // A range that is allocated on both machines is freed here, and stays in use there.
        assert_eq!(here.used, there.used[..1]);
        let before = there.snapshot();
        here.frames().free_range(there.used[0]).unwrap();
        here.used.clear();
        assert_eq!(there.snapshot(), before);
    });
}

#[test]
fn a_foreign_memory_block_counts_as_the_range_that_it_names() {
    on_two(|here, there| {
        let theirs: Vec<_> = there.hotplug.memory_blocks(SECTION).collect();
        there.hotplug.remove(offline()).unwrap();
        unchanged(here, there, |here| {
            for block in &theirs {
                let own = here.memory_blocks(SECTION).find(|own| own.range == block.range);
                assert_eq!(here.removable(block), here.removable(&own.unwrap()));
            }
        });
    });
}

#[test]
fn foreign_device_memory_is_refused() {
    on_two(|here, there| {
        there.hotplug.add(AddRequest { device: true, ..absent().into() }).unwrap();
        unchanged(here, there, |here| {
            let not_device = RangeError {
                range: range(4 * SECTION, PAGEBLOCK),
                kind: RangeErrorKind::NotDevice,
            };
            assert_eq!(here.detach_raw(absent()), Err(not_device));
            let to_ram = here.device_to_ram_raw(absent(), OnlineType::Offline, &mut NoHooks);
            assert_eq!(to_ram, Err(AddError::Range(not_device)));
        });
    });
}

#[test]
fn a_foreign_region_is_refused() {
    on_two(|here, there| {
        let theirs = there.region;
        let unknown = region_range(&there.hotplug, theirs)
            .map(|range| RangeError { range, kind: RangeErrorKind::NotAnnounced });
        unchanged(here, there, |here| {
            assert_eq!(here.withdraw(theirs).err(), unknown);
            assert_eq!(region_range(here, theirs), None);
        });
    });
}

#[test]
fn the_id_of_a_withdrawn_region_names_no_later_region() {
    on_two(|here, _| {
        let beyond = range(SECTIONS * SECTION, SECTION);
        let first = here.hotplug.announce(beyond).unwrap();
        here.hotplug.withdraw(first).unwrap();
        let unknown = RangeError { range: beyond, kind: RangeErrorKind::NotAnnounced };
        assert_eq!(here.hotplug.withdraw(first), Err(unknown));
        // Announce the same range again. It gets another id.
        let second = here.hotplug.announce(beyond).unwrap();
        assert_eq!(here.hotplug.withdraw(first), Err(unknown));
        assert_eq!(region_range(&here.hotplug, first), None);
        assert_eq!(region_range(&here.hotplug, second), Some(beyond));
    });
}
