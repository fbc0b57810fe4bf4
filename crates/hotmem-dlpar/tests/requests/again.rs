//! Tests that a request with a temporary failure is repeated with pauses, and reports no success
//! meanwhile.

use crate::plain::{ADD, REMOVE};
use crate::world::{FIRST, lmbs, new, with};
use core::time::Duration;
use hotmem::{AddError, AllocRequest, OnlineType, State};
use hotmem_dlpar::*;

const PAUSE: Duration = Duration::from_millis(100);

fn range() -> Which {
    Which::Range { first: DrcIndex(FIRST + 16), count: 4 }
}

#[test]
fn a_vetoed_removal_waits_and_succeeds_later() {
    with(|world| {
        world.kernel.veto_offline.insert(lmbs()[18].1.start().number());
        world.kernel.vetoes_left = Some(3);
        let mut pauses = Vec::new();
        let done = world.carry_out(new(REMOVE, range()), |between| {
            assert_eq!(between.failure, None);
            assert!(between.done < 4 || between.pause.is_zero());
            pauses.extend(Some(between.pause).filter(|pause| !pause.is_zero()));
            Next::GoOn
        });
        assert_eq!(
            (done.expect("the kernel agrees after three vetoes").lmbs, pauses),
            (4, vec![PAUSE; 3])
        );
        assert_eq!(world.assigned(), [7, 8].into());
    });
}

#[test]
fn an_addition_that_is_vetoed_is_undone_and_begins_again() {
    with(|world| {
        let range = Which::Range { first: DrcIndex(FIRST + 20), count: 4 };
        world.kernel.veto_online.insert(lmbs()[22].1.start().number());
        world.kernel.vetoes_left = Some(3);
        let request = Request::add(range).online_as(OnlineType::Movable);
        let mut pauses = Vec::new();
        let done = world.carry_out(request, |between| {
            if let Some(failure) = between.failure {
                assert!(matches!(failure.error, Error::Online(_)), "{failure}");
                pauses.push(between.pause);
            }
            Next::GoOn
        });
        assert_eq!(done.expect("the kernel agrees after three vetoes").lmbs, 4);
        assert!(!pauses.is_empty());
        for (nth, pause) in (0..).zip(pauses) {
            assert_eq!(pause, PAUSE * 2_u32.pow(nth));
        }
        for (_, lmb) in &lmbs()[20..24] {
            let state = world.hotplug.state_at(lmb.start(), lmb.end());
            assert_eq!(state, (*lmb, State::OnlineMovable));
        }
    });
}

/// A request by count skips vetoed LMBs. If too few are left, it begins again.
#[test]
fn a_removal_by_count_begins_again_after_a_veto() {
    with(|world| {
        world.kernel.veto_offline.insert(lmbs()[18].1.start().number());
        // The veto applies to three LMBs of its section, then to two, then to it alone.
        world.kernel.vetoes_left = Some(3);
        let mut failures = Vec::new();
        let done = world.carry_out(new(REMOVE, Which::Count(6)), |between| {
            failures.extend(between.failure);
            Next::GoOn
        });
        assert_eq!(done.expect("the kernel agrees after three vetoes").lmbs, 6);
        let [failure] = failures[..] else { panic!("{failures:?}") };
        assert_eq!(failure.error, Error::NotEnough { wanted: 6, available: 5 });
        assert!(matches!(failure.because, Some(Error::Blocked(_))), "{failure}");
    });
}

#[test]
fn an_addition_without_page_tables_begins_again_when_there_are_some() {
    with(|world| {
        world.dlpar.table().announce(&mut world.hotplug).expect("room");
        let frames = world.hotplug.frames();
        let mut used: Vec<_> =
            core::iter::from_fn(|| frames.alloc(AllocRequest::frames(1)).ok()).collect();
        world.kernel.tables = 1;
        let range = Which::Range { first: DrcIndex(FIRST + 20), count: 4 };
        let mut failures = Vec::new();
        let done = world.carry_out(Request::add(range), |between| {
            failures.extend(between.failure.map(|failure| failure.error));
            if failures.len() == 3 {
                used.clear();
            }
            Next::GoOn
        });
        assert_eq!(done.expect("there are frames for page tables now").lmbs, 4);
        let no_tables = |error: &Error| matches!(error, Error::Add(AddError::NoTables { .. }));
        assert!(failures.len() == 3 && failures.iter().all(no_tables), "{failures:?}");
    });
}

#[test]
fn a_removal_waits_for_free_memory_to_migrate_to() {
    with(|world| {
        let frames = world.hotplug.frames();
        let all = |want: AllocRequest| core::iter::from_fn(move || frames.alloc(want).ok());
        let mut used: Vec<_> = all(AllocRequest::frames(1).movable()).collect();
        let mut pauses = Vec::new();
        let done = world.carry_out(new(REMOVE, range()), |between| {
            assert_eq!(between.failure, None);
            pauses.extend(Some(between.pause).filter(|pause| !pause.is_zero()));
            if pauses.len() == 3 {
                used.clear();
            }
            Next::GoOn
        });
        assert_eq!((done.expect("there are free frames now").lmbs, pauses), (4, vec![PAUSE; 3]));
    });
}

#[test]
fn giving_up_restores_the_former_state() {
    with(|world| {
        let vetoed = lmbs()[18].1.start().number();
        world.kernel.veto_offline.insert(vetoed);
        let before = world.snapshot();
        let give_up = |between: Between| {
            if between.pause.is_zero() { Next::GoOn } else { Next::GiveUp }
        };
        let failure = world
            .carry_out(new(REMOVE, range()), give_up)
            .expect_err("the kernel vetoes the change");
        assert_eq!(failure, Error::Cancelled.into());
        assert_eq!(world.snapshot(), before);
        world.kernel.veto_online.insert(lmbs()[0].1.start().number());
        let index = Which::Index(DrcIndex(FIRST));
        let failure =
            world.carry_out(new(ADD, index), give_up).expect_err("the kernel vetoes the change");
        assert!(matches!(failure.error, Error::Online(_)) && failure.is_temporary(), "{failure}");
        assert_eq!(world.snapshot(), before);
    });
}

#[test]
fn a_permanent_failure_is_not_repeated() {
    with(|world| {
        let start = lmbs()[17].1.start();
        let used = world.hotplug.frames().alloc(AllocRequest::frames(3).movable().at(start));
        let _used = used.expect("free").into_raw();
        let never = |between: Between| {
            assert!(between.pause.is_zero(), "{between:?}");
            Next::GoOn
        };
        let failure = world.carry_out(new(REMOVE, range()), never).expect_err("in use");
        assert!(matches!(failure.error, Error::Blocked(_)), "{failure}");
        let failure = world.carry_out(new(ADD, Which::Count(0)), never).expect_err("nothing");
        assert_eq!(failure.error, Error::Zero);
    });
}
