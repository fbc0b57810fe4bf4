//! Tests that a request with a temporary failure is repeated with pauses, and does not report success
//! before it has succeeded.

use crate::basic::{ADD, REMOVE};
use crate::partition::{FIRST_INDEX, lmbs, movable_request, with_partition};
use core::ops::ControlFlow;
use core::time::Duration;
use hotmem::{AddError, AllocRequest, OnlineType, State};
use hotmem_dlpar::*;

const PAUSE: Duration = Duration::from_millis(100);

fn range() -> LmbSelection {
    LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 16), count: 4 }
}

#[test]
fn a_vetoed_removal_waits_until_the_kernel_agrees() {
    with_partition(|partition| {
        partition.kernel.veto_offline.insert(lmbs()[18].1.start().number());
        partition.kernel.remaining_vetoes = Some(3);
        let mut pauses = Vec::new();
        let summary = partition.carry_out(movable_request(REMOVE, range()), |state| {
            assert_eq!(state.failure, None);
            assert!(state.taken_lmbs < 4 || state.pause.is_zero());
            pauses.extend(Some(state.pause).filter(|pause| !pause.is_zero()));
            ControlFlow::Continue(())
        });
        assert_eq!(
            (summary.expect("the kernel agrees after three vetoes").lmbs, pauses),
            (4, vec![PAUSE; 3])
        );
        assert_eq!(partition.assigned(), [7, 8].into());
    });
}

#[test]
fn a_vetoed_addition_is_undone_and_begins_again() {
    with_partition(|partition| {
        let range = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 20), count: 4 };
        partition.kernel.veto_online.insert(lmbs()[22].1.start().number());
        partition.kernel.remaining_vetoes = Some(3);
        let request = Request::add(range).online_as(OnlineType::Movable);
        let mut pauses = Vec::new();
        let summary = partition.carry_out(request, |state| {
            if let Some(failure) = state.failure {
                assert!(matches!(failure.error, Error::Online(_)), "{failure}");
                pauses.push(state.pause);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(summary.expect("the kernel agrees after three vetoes").lmbs, 4);
        assert!(!pauses.is_empty());
        for (nth, pause) in (0..).zip(pauses) {
            assert_eq!(pause, PAUSE * 2_u32.pow(nth));
        }
        for (_, lmb) in &lmbs()[20..24] {
            let state = partition.hotplug.state_at(lmb.start(), lmb.end());
            assert_eq!(state, (*lmb, State::OnlineMovable));
        }
    });
}

/// A request by count skips vetoed LMBs. If too few other LMBs are available, it begins again.
#[test]
fn a_removal_by_count_begins_again_after_a_veto() {
    with_partition(|partition| {
        partition.kernel.veto_offline.insert(lmbs()[18].1.start().number());
        // The first veto is for three LMBs of the section together, the second for two, and the third
        // for the one LMB.
        partition.kernel.remaining_vetoes = Some(3);
        let mut failures = Vec::new();
        let summary =
            partition.carry_out(movable_request(REMOVE, LmbSelection::Count(6)), |state| {
                failures.extend(state.failure);
                ControlFlow::Continue(())
            });
        assert_eq!(summary.expect("the kernel agrees after three vetoes").lmbs, 6);
        let [failure] = failures[..] else { panic!("{failures:?}") };
        assert_eq!(failure.error, Error::NotEnough { wanted: 6, available: 5 });
        assert!(matches!(failure.first_skip_error, Some(Error::Blocked(_))), "{failure}");
    });
}

#[test]
fn an_addition_begins_again_until_memory_for_page_tables_is_free() {
    with_partition(|partition| {
        partition.announce();
        let frames = partition.hotplug.frames();
        let mut allocations: Vec<_> =
            core::iter::from_fn(|| frames.alloc(AllocRequest::frames(1)).ok()).collect();
        partition.kernel.tables_per_lmb = 1;
        let range = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 20), count: 4 };
        let mut failures = Vec::new();
        let summary = partition.carry_out(Request::add(range), |state| {
            failures.extend(state.failure.map(|failure| failure.error));
            if failures.len() == 3 {
                allocations.clear();
            }
            ControlFlow::Continue(())
        });
        assert_eq!(summary.expect("there are frames for page tables now").lmbs, 4);
        let no_tables = |error: &Error| matches!(error, Error::Add(AddError::NoTables { .. }));
        assert!(failures.len() == 3 && failures.iter().all(no_tables), "{failures:?}");
    });
}

#[test]
fn a_removal_waits_for_free_memory_to_migrate_to() {
    with_partition(|partition| {
        let frames = partition.hotplug.frames();
        let all = |request: AllocRequest| core::iter::from_fn(move || frames.alloc(request).ok());
        let mut used: Vec<_> = all(AllocRequest::frames(1).movable()).collect();
        let mut pauses = Vec::new();
        let summary = partition.carry_out(movable_request(REMOVE, range()), |state| {
            assert_eq!(state.failure, None);
            pauses.extend(Some(state.pause).filter(|pause| !pause.is_zero()));
            if pauses.len() == 3 {
                used.clear();
            }
            ControlFlow::Continue(())
        });
        assert_eq!((summary.expect("there are free frames now").lmbs, pauses), (4, vec![PAUSE; 3]));
    });
}

#[test]
fn a_request_that_is_given_up_restores_the_former_state() {
    with_partition(|partition| {
        let vetoed = lmbs()[18].1.start().number();
        partition.kernel.veto_offline.insert(vetoed);
        let before = partition.snapshot();
        let give_up = |state: PollState| {
            if state.pause.is_zero() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let failure = partition
            .carry_out(movable_request(REMOVE, range()), give_up)
            .expect_err("the kernel vetoes the change");
        assert_eq!(failure, Error::Cancelled.into());
        assert_eq!(partition.snapshot(), before);
        partition.kernel.veto_online.insert(lmbs()[0].1.start().number());
        let index = LmbSelection::Index(DrcIndex(FIRST_INDEX));
        let failure = partition
            .carry_out(movable_request(ADD, index), give_up)
            .expect_err("the kernel vetoes the change");
        assert!(matches!(failure.error, Error::Online(_)) && failure.is_temporary(), "{failure}");
        assert_eq!(partition.snapshot(), before);
    });
}

#[test]
fn a_permanent_failure_is_not_repeated() {
    with_partition(|partition| {
        let start = lmbs()[17].1.start();
        let used = partition.hotplug.frames().alloc(AllocRequest::frames(3).movable().at(start));
        let _used = used.expect("the memory is free").into_raw();
        let no_pause = |state: PollState| {
            assert!(state.pause.is_zero(), "{state:?}");
            ControlFlow::Continue(())
        };
        let failure = partition
            .carry_out(movable_request(REMOVE, range()), no_pause)
            .expect_err("the memory is in use");
        assert!(matches!(failure.error, Error::Blocked(_)), "{failure}");
        let failure = partition
            .carry_out(movable_request(ADD, LmbSelection::Count(0)), no_pause)
            .expect_err("the request is for no LMBs");
        assert_eq!(failure.error, Error::Zero);
    });
}
