//! What is dropped, forgotten, used again or exchanged by a hook: undone, or held and counted; never
//! used by two.

use crate::common::{BLOCK, SECTION, range};
use crate::{absent, offline, on_two, online, unchanged};
use hotmem::*;

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
fn a_shrink_that_is_dropped_leaves_what_was_ready_offline_held_and_counted() {
    on_two(|here, _| {
        let counts = here.frames().counts();
        here.frames().free(here.used.remove(0)).unwrap();
        let mut shrink = Shrink::new(online(), SECTION, BLOCK, BLOCK);
        let answer = shrink.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Shrunk::Ready(removal) = answer else { panic!("{answer:?}") };
        here.hotplug.commit_remove(removal, &mut NoHooks).unwrap();
        drop(shrink);
        let left = here.frames().validate().unwrap();
        assert_eq!(left.present, counts.present - BLOCK);
        assert_eq!(left.online, counts.online - SECTION);
        let next = range(3 * SECTION - 2 * BLOCK, BLOCK);
        let online = here.hotplug.online(next, OnlineType::Movable, &mut NoHooks);
        assert_eq!(online, Err(OnlineError::Held(next)));
    });
}

#[test]
fn requests_that_are_over_do_nothing_when_they_are_used_again() {
    on_two(|here, there| {
        here.frames().free(here.used.remove(0)).unwrap();
        let mut offline = here.hotplug.offline(online()).unwrap();
        let done = offline.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Done(online()));
        unchanged(here, there, |here| {
            let again = offline.poll(here, &mut NoHooks, Budget::UNLIMITED);
            let Progress::Pending(blocker) = again else { panic!("{again:?}") };
            assert_eq!(blocker.why, Why::NotOnline);
            offline.cancel(here, &mut NoHooks).unwrap();
        });
        here.hotplug.online(online(), OnlineType::Movable, &mut NoHooks).unwrap();
        let mut shrink = Shrink::new(online(), BLOCK, BLOCK, BLOCK);
        let answer = shrink.poll(&mut here.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Shrunk::Ready(removal) = answer else { panic!("{answer:?}") };
        here.hotplug.abandon_remove(removal, &mut NoHooks).unwrap();
        unchanged(here, there, |here| {
            for _ in 0..2 {
                let over = shrink.poll(here, &mut NoHooks, Budget::UNLIMITED);
                assert!(matches!(over, Shrunk::Done { left: 0, blocker: None }), "{over:?}");
            }
            shrink.cancel(here, &mut NoHooks).unwrap();
        });
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
