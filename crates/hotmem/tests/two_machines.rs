//! Two machines in one process whose memory looks alike: what one has made, the other hands back or
//! refuses, both stay as they were, and the one that made it takes it still.

mod common;

use common::{BLOCK, Memory, SECTION, Snapshot, pfn, range};
use hotmem::geometry::FRAME_SIZE;
use hotmem::*;
use std::sync::Barrier;
use std::thread;

/// Sections: at boot, and of all memory that there can be.
const BOOT: u64 = 1;
const ALL: u64 = 5;

/// In the region above boot memory: online and movable, offline, absent.
fn online() -> PfnRange {
    range(2 * SECTION, SECTION)
}

fn offline() -> PfnRange {
    range(3 * SECTION, SECTION)
}

fn absent() -> PfnRange {
    range(4 * SECTION, SECTION)
}

struct Machine<'f> {
    hotplug: Hotplug<'f, OneCpu>,
    region: RegionId,
    used: Vec<PfnRange>,
}

impl<'f> Machine<'f> {
    fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.hotplug, ALL * SECTION, &self.used)
    }

    fn frames(&self) -> &'f Frames<OneCpu> {
        self.hotplug.frames()
    }
}

/// Two machines, each with a section in each state, and some of what is online in use.
fn on_two(test: impl for<'f> FnOnce(&mut Machine<'f>, &mut Machine<'f>)) {
    let memories = [Memory::new(ALL * SECTION), Memory::new(ALL * SECTION)];
    let frames = [Frames::new(OneCpu), Frames::new(OneCpu)];
    let ram = [BootRange { start: 0, len: Bytes(BOOT * SECTION * FRAME_SIZE) }];
    let [mut here, mut there] = [0, 1].map(|nth| {
        let direct_map = memories[nth].direct_map();
        let map = BootMap::of_ram(&ram);
        let mut hotplug = Hotplug::bootstrap(&frames[nth], direct_map, &map).unwrap();
        let region = hotplug.announce(range(2 * SECTION, 3 * SECTION)).unwrap();
        for part in [online(), offline()] {
            hotplug.add(part, &mut NoHooks).unwrap();
        }
        hotplug.online(online(), OnlineType::Movable, &mut NoHooks).unwrap();
        let used = frames[nth].alloc(Want::frames(1).movable().at(online().start())).unwrap();
        Machine { hotplug, region, used: vec![used] }
    });
    assert_ne!(here.hotplug.machine(), there.hotplug.machine());
    test(&mut here, &mut there);
    for machine in [here, there] {
        machine.frames().validate().unwrap();
    }
}

/// What is done `here` is to change neither machine.
fn unchanged<'f, T>(
    here: &mut Machine<'f>,
    there: &mut Machine<'f>,
    act: impl FnOnce(&mut Hotplug<'f, OneCpu>) -> T,
) -> T {
    let before = (here.snapshot(), there.snapshot());
    let answer = act(&mut here.hotplug);
    assert_eq!((here.snapshot(), there.snapshot()), before);
    answer
}

#[test]
fn an_addition() {
    on_two(|here, there| {
        let theirs = there.hotplug.prepare_add(absent(), &mut NoHooks).unwrap();
        // It would look right: this machine has prepared the same.
        let own = here.hotplug.prepare_add(absent(), &mut NoHooks).unwrap();
        let theirs = unchanged(here, there, |here| {
            let Foreign(theirs) = here.commit_add(theirs, &mut NoHooks).unwrap_err();
            let Foreign(theirs) = here.commit_attach(theirs, &mut NoHooks).unwrap_err();
            theirs
        });
        there.hotplug.commit_add(theirs, &mut NoHooks).unwrap();
        here.hotplug.commit_attach(own, &mut NoHooks).unwrap();
        let state = |machine: &Machine<'_>| machine.hotplug.state_at(absent().start(), Pfn::LIMIT);
        assert_eq!(state(there), (absent(), State::Offline));
        assert_eq!(state(here), (absent(), State::Device));
    });
}

#[test]
fn an_addition_that_is_dropped_or_forgotten() {
    struct Tables;
    impl Hooks for Tables {
        fn tables_needed(&self, _: PfnRange) -> u64 {
            2
        }
    }
    on_two(|here, there| {
        unchanged(here, there, |here| {
            drop(here.prepare_add(absent(), &mut Tables).unwrap());
        });
        let free = here.frames().counts().free;
        core::mem::forget(here.hotplug.prepare_add(absent(), &mut Tables).unwrap());
        assert_eq!(here.frames().validate().unwrap().free, free - 2);
        let again = here.hotplug.add(absent(), &mut NoHooks).unwrap_err();
        assert_eq!(again, AddError::Held(range(4 * SECTION, BLOCK)));
        assert_eq!(
            here.hotplug.withdraw(here.region),
            Err(WithdrawError::Present(range(2 * SECTION, BLOCK)))
        );
    });
}

#[test]
fn a_removal() {
    on_two(|here, there| {
        let theirs = there.hotplug.prepare_remove(offline(), &mut NoHooks).unwrap();
        let own = here.hotplug.prepare_remove(offline(), &mut NoHooks).unwrap();
        let theirs = unchanged(here, there, |here| {
            let Foreign(theirs) = here.commit_remove(theirs, &mut NoHooks).unwrap_err();
            let Foreign(theirs) = here.abandon_remove(theirs, &mut NoHooks).unwrap_err();
            theirs
        });
        there.hotplug.commit_remove(theirs, &mut NoHooks).unwrap();
        here.hotplug.abandon_remove(own, &mut NoHooks).unwrap();
        let state =
            |machine: &Machine<'_>| machine.hotplug.state_at(offline().start(), Pfn::LIMIT).1;
        assert_eq!((state(there), state(here)), (State::Absent, State::Offline));
    });
}

#[test]
fn a_part_of_a_removal() {
    on_two(|here, there| {
        let theirs = there.hotplug.prepare_remove(offline(), &mut NoHooks).unwrap();
        let (below, above) = theirs.split_at(pfn(3 * SECTION + BLOCK)).unwrap();
        // Here the same memory is online.
        here.hotplug.online(offline(), OnlineType::Kernel, &mut NoHooks).unwrap();
        let (below, above) = unchanged(here, there, |here| {
            let Foreign(below) = here.commit_remove(below, &mut NoHooks).unwrap_err();
            let Foreign(above) = here.abandon_remove(above, &mut NoHooks).unwrap_err();
            (below, above)
        });
        there.hotplug.commit_remove(below, &mut NoHooks).unwrap();
        there.hotplug.abandon_remove(above, &mut NoHooks).unwrap();
    });
}

#[test]
fn a_removal_that_is_dropped_stays_held_and_counted() {
    on_two(|here, _| {
        let present = here.frames().counts().present;
        drop(here.hotplug.prepare_remove(offline(), &mut NoHooks).unwrap());
        assert_eq!(here.frames().validate().unwrap().present, present);
        let first = range(3 * SECTION, BLOCK);
        let online = here.hotplug.online(offline(), OnlineType::Online, &mut NoHooks);
        assert_eq!(online, Err(OnlineError::Held(first)));
        assert_eq!(here.hotplug.remove(offline(), &mut NoHooks), Err(RemoveError::Held(first)));
    });
}

#[test]
fn an_isolation() {
    on_two(|here, there| {
        let free = range(2 * SECTION + BLOCK, BLOCK);
        let theirs = there.frames().isolate(free).unwrap();
        let own = here.frames().isolate(free).unwrap();
        let before = (here.frames().counts(), there.frames().counts());
        let (theirs, why) = here.hotplug.take_offline(theirs, &mut NoHooks).unwrap_err();
        assert_eq!(why, LeaveError::Foreign);
        assert_eq!((here.frames().counts(), there.frames().counts()), before);
        // Its other two exits need no machine: it has its own.
        theirs.release();
        assert_eq!(there.frames().counts().isolated, 0);
        assert_eq!(here.frames().counts(), before.0);
        own.mark_reported().unwrap();
        assert_eq!(here.frames().counts().reported, BLOCK);
        assert_eq!(there.frames().counts().reported, 0);
    });
}

#[test]
fn an_isolation_that_is_dropped_stays_isolated_and_counted() {
    on_two(|here, _| {
        let free = range(2 * SECTION + BLOCK, BLOCK);
        drop(here.frames().isolate(free).unwrap());
        assert_eq!(here.frames().validate().unwrap().isolated, BLOCK);
        let again = here.frames().isolate(free).unwrap_err();
        assert_eq!(again, IsolateError::HeldByAnother(free));
        assert!(here.frames().alloc(Want::frames(BLOCK).movable().at(free.start())).is_err());
    });
}

const PINNED: Why = Why::Pinned("this kernel does not migrate");

#[test]
fn a_request_to_go_offline() {
    on_two(|here, there| {
        let mut theirs = there.hotplug.offline(online()).unwrap();
        let foreign = Progress::Pending(Blocker { range: online(), why: Why::Foreign });
        let unlimited = Budget::UNLIMITED;
        // Before its first poll as after it; it waits for what is in use.
        let answer = unchanged(here, there, |here| theirs.poll(here, &mut NoHooks, unlimited));
        assert_eq!(answer, foreign);
        let blocked = theirs.poll(&mut there.hotplug, &mut NoHooks, unlimited);
        let pinned = Blocker { range: there.used[0], why: PINNED };
        assert_eq!(blocked, Progress::Pending(pinned));
        let theirs = unchanged(here, there, |here| {
            assert_eq!(theirs.poll(here, &mut NoHooks, unlimited), foreign);
            let Foreign(theirs) = theirs.cancel(here, &mut NoHooks).unwrap_err();
            theirs
        });
        assert_eq!(there.frames().counts().isolated, SECTION);
        theirs.cancel(&mut there.hotplug, &mut NoHooks).unwrap();
        assert_eq!(there.frames().counts().isolated, 0);
    });
}

#[test]
fn a_request_that_is_dropped_leaves_what_it_had_isolated_and_counted() {
    on_two(|here, _| {
        let mut request = here.hotplug.offline(online()).unwrap();
        let _ = request.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED);
        drop(request);
        assert_eq!(here.frames().validate().unwrap().isolated, SECTION);
        here.frames().free(here.used[0]).unwrap();
        assert_eq!(here.frames().validate().unwrap().isolated, SECTION);
        let mut shrink = Shrink::new(online(), SECTION, BLOCK, SECTION);
        let Shrunk::Done { left: SECTION, blocker: Some(blocker) } =
            shrink.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED)
        else {
            panic!("some of it has gone");
        };
        assert_eq!(blocker.why, Why::HeldByAnother);
    });
}

#[test]
fn a_shrink() {
    on_two(|here, there| {
        let mut theirs = Shrink::new(online(), SECTION, BLOCK, BLOCK);
        // It has more ready than it hands over at one time.
        let answer = theirs.poll(&mut there.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Shrunk::Ready(removal) = answer else { panic!("{answer:?}") };
        let top = range(3 * SECTION - BLOCK, BLOCK);
        assert_eq!(removal.range(), top);
        let held = there.frames().counts();
        let (theirs, removal) = unchanged(here, there, |here| {
            let answer = theirs.poll(here, &mut NoHooks, Budget::UNLIMITED);
            let Shrunk::Done { left, blocker: Some(blocker) } = answer else {
                panic!("{answer:?}")
            };
            assert_eq!((left > 0, blocker.why), (true, Why::Foreign));
            let Foreign(removal) = here.abandon_remove(removal, &mut NoHooks).unwrap_err();
            let Foreign(theirs) = theirs.cancel(here, &mut NoHooks).unwrap_err();
            (theirs, removal)
        });
        there.hotplug.abandon_remove(removal, &mut NoHooks).unwrap();
        theirs.cancel(&mut there.hotplug, &mut NoHooks).unwrap();
        let counts = there.frames().counts();
        assert!(held.online < counts.online);
        assert_eq!(counts.online, (BOOT + 1) * SECTION);
    });
}

#[test]
fn frames() {
    on_two(|here, there| {
        // Free, offline, absent and unknown here: it is told which.
        let free = there.frames().alloc(Want::frames(BLOCK).movable()).unwrap();
        there.hotplug.online(offline(), OnlineType::Movable, &mut NoHooks).unwrap();
        there.hotplug.add(absent(), &mut NoHooks).unwrap();
        there.hotplug.online(absent(), OnlineType::Movable, &mut NoHooks).unwrap();
        there.used.push(free);
        let at = |range: PfnRange| Want::frames(1).movable().at(range.start());
        let elsewhere = [offline(), absent()].map(|all| there.frames().alloc(at(all)).unwrap());
        there.used.extend(elsewhere);
        unchanged(here, there, |here| {
            let refused = |range, kind| {
                assert_eq!(here.frames().free(range), Err(FreeError { range, kind }));
            };
            refused(free, FreeErrorKind::NotAllocated);
            elsewhere.into_iter().for_each(|range| refused(range, FreeErrorKind::Foreign));
        });
        // What both have is freed here, and there it is still in use.
        assert_eq!(here.used, there.used[..1]);
        let before = there.snapshot();
        here.frames().free(there.used[0]).unwrap();
        here.used.clear();
        assert_eq!(there.snapshot(), before);
    });
}

#[test]
fn a_memory_block() {
    on_two(|here, there| {
        let theirs: Vec<_> = there.hotplug.memory_blocks(SECTION).collect();
        there.hotplug.remove(offline(), &mut NoHooks).unwrap();
        unchanged(here, there, |here| {
            for block in &theirs {
                let own = here.memory_blocks(SECTION).find(|own| own.range == block.range);
                assert_eq!(here.removable(block), here.removable(&own.unwrap()));
            }
        });
    });
}

#[test]
fn a_device() {
    on_two(|here, there| {
        there.hotplug.attach(absent(), &mut NoHooks).unwrap();
        unchanged(here, there, |here| {
            let not_device = DeviceError::NotDevice(range(4 * SECTION, BLOCK));
            assert_eq!(here.detach(absent(), &mut NoHooks), Err(not_device));
            let to_ram = here.device_to_ram(absent(), OnlineType::Offline, &mut NoHooks);
            assert_eq!(to_ram, Err(not_device));
        });
    });
}

#[test]
fn a_region() {
    on_two(|here, there| {
        let theirs = there.region;
        unchanged(here, there, |here| {
            assert_eq!(here.withdraw(theirs), Err(WithdrawError::Unknown));
            assert_eq!(here.trim(theirs, online()), Err(WithdrawError::Unknown));
            assert_eq!((here.region_range(theirs), here.region_node(theirs)), (None, None));
        });
    });
}

#[test]
fn a_region_that_was_withdrawn_names_no_later_one() {
    on_two(|here, _| {
        let beyond = range(ALL * SECTION, SECTION);
        let first = here.hotplug.announce(beyond).unwrap();
        here.hotplug.withdraw(first).unwrap();
        assert_eq!(here.hotplug.withdraw(first), Err(WithdrawError::Unknown));
        // It has the same words.
        let second = here.hotplug.announce(beyond).unwrap();
        assert_eq!(here.hotplug.withdraw(first), Err(WithdrawError::Unknown));
        assert_eq!(here.hotplug.region_range(first), None);
        assert_eq!(here.hotplug.region_range(second), Some(beyond));
    });
}

/// While one machine maps, another does, and they exchange what they have for page tables.
struct Exchanging<'a, 'f> {
    other: Option<(&'a mut Hotplug<'f, OneCpu>, Addition<'f, OneCpu>)>,
    theirs: Option<&'a mut Spare>,
}

impl Hooks for Exchanging<'_, '_> {
    fn tables_needed(&self, _: PfnRange) -> u64 {
        2
    }

    fn map(&mut self, _: PfnRange, spare: &mut Spare) {
        if let Some((other, addition)) = self.other.take() {
            other
                .commit_add(addition, &mut Exchanging { other: None, theirs: Some(spare) })
                .unwrap();
        } else if let Some(theirs) = &mut self.theirs {
            core::mem::swap(spare, theirs);
        }
    }
}

#[test]
fn spare_frames_that_a_hook_exchanges_are_freed_by_neither() {
    on_two(|here, there| {
        let hooks = || Exchanging { other: None, theirs: None };
        // The frames have other numbers there.
        there.used.push(there.hotplug.frames().alloc(Want::frames(1)).unwrap());
        let free = [here.frames().counts().free, there.frames().counts().free];
        let theirs = there.hotplug.prepare_add(absent(), &mut hooks()).unwrap();
        let own = here.hotplug.prepare_add(absent(), &mut hooks()).unwrap();
        let spares = (own.tables(), theirs.tables());
        let other = Some((&mut there.hotplug, theirs));
        here.hotplug.commit_add(own, &mut Exchanging { other, theirs: None }).unwrap();
        // They are lost to the kernel, but nobody else lost any.
        here.used.push(spares.0);
        there.used.push(spares.1);
        assert_eq!(
            [here, there].map(|machine| machine.frames().counts().free),
            free.map(|f| f - 2)
        );
    });
}

#[test]
fn a_machine_is_started_once() {
    let memory = Memory::new(SECTION);
    let ram = [BootRange { start: 0, len: Bytes(SECTION * FRAME_SIZE) }];
    for _ in 0..50 {
        let (frames, together) = (Frames::new(OneCpu), Barrier::new(4));
        let start = || Hotplug::bootstrap(&frames, memory.direct_map(), &BootMap::of_ram(&ram));
        let start_together = || {
            together.wait();
            start().is_ok()
        };
        let started = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(start_together));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(started.into_iter().filter(|&started| started).count(), 1);
        frames.validate().unwrap();
        assert_eq!(start().err(), Some(BootError::AlreadyStarted));
    }
}
