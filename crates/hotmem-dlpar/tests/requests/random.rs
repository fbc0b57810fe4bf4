//! Compares random requests with a naive model of the LMBs. Errors of the hypervisor, vetoes,
//! allocated memory and cancellations occur at random.

use crate::partition::{FIRST_INDEX, HOTPLUG_LMBS, lmbs, movable_request, with_partition};
use hotmem::{AllocRequest, Allocation, Budget, OneCpu};
use hotmem_dlpar::hypervisor::{Answer, HypervisorRequest};
use hotmem_dlpar::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// One request and its obstacles.
#[derive(Clone, Debug)]
struct Round {
    change: Change,
    selection: LmbSelection,
    /// The LMBs whose connectors always fail, each with the call that fails.
    failing_connectors: Vec<(u64, Call)>,
    veto_online: BTreeSet<u64>,
    veto_offline: BTreeSet<u64>,
    /// The LMBs in which frames are allocated.
    used_lmbs: BTreeSet<u64>,
    /// The number of times that a call is busy before it succeeds.
    busy_answers: u64,
    /// Whether a call that is to fail also returns `busy_answers` busy answers first. Otherwise it
    /// fails at once.
    fails_after_busy: bool,
    /// The pageblocks that each poll may handle. `u64::MAX` means that there is no limit.
    budget: u64,
    update_fails: bool,
    /// The number of polls before the cancellation.
    polls_before_cancel: Option<u32>,
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let lmb_numbers = 0..HOTPLUG_LMBS;
    let count = prop_oneof![Just(0), 1..6_u32, 1..20_u32, any::<u32>()];
    let index = lmb_numbers.clone().prop_map(|nth| {
        DrcIndex(FIRST_INDEX + u32::try_from(nth).expect("the number fits in `u32`"))
    });
    let selection = prop_oneof![
        3 => count.clone().prop_map(LmbSelection::Count),
        1 => index.clone().prop_map(LmbSelection::Index),
        2 => (index, count).prop_map(|(first, count)| LmbSelection::Range { first, count }),
    ];
    let call = prop_oneof![
        Just(Call::Sense),
        Just(Call::SetUsable),
        Just(Call::Unisolate),
        Just(Call::Configure),
        Just(Call::Isolate),
        Just(Call::SetUnusable),
    ];
    let lmb_set = || prop::collection::btree_set(0..HOTPLUG_LMBS, 0..3);
    let change = prop_oneof![Just(Change::Add), Just(Change::Remove)];
    let failing_connectors = prop::collection::vec((lmb_numbers, call), 0..3);
    let obstacles = (failing_connectors, lmb_set(), lmb_set(), lmb_set());
    let timing = (0..3_u64, any::<bool>(), prop_oneof![Just(u64::MAX), 1..40_u64]);
    let ending = (prop::bool::weighted(0.1), prop::option::weighted(0.2, 0..30_u32));
    let round = (change, selection, obstacles, timing, ending).prop_map(
        |(change, selection, obstacles, timing, ending)| {
            let (failing_connectors, veto_online, veto_offline, used_lmbs) = obstacles;
            Round {
                change,
                selection,
                failing_connectors,
                veto_online,
                veto_offline,
                used_lmbs,
                busy_answers: timing.0,
                fails_after_busy: timing.1,
                budget: timing.2,
                update_fails: ending.0,
                polls_before_cancel: ending.1,
            }
        },
    );
    prop::collection::vec(round, 1..7)
}

/// Returns the LMBs that a request must change if it is not cancelled, or `None` if it must fail.
fn expected(
    round: &Round,
    assigned: &BTreeSet<u64>,
    used_lmbs: &BTreeSet<u64>,
) -> Option<BTreeSet<u64>> {
    let reserved = [3, 14];
    let adding = round.change == Change::Add;
    let is_candidate = |nth: &u64| !reserved.contains(nth) && assigned.contains(nth) != adding;
    let is_called = |call: Call| match call {
        Call::Sense => true,
        Call::SetUsable | Call::Unisolate | Call::Configure => adding,
        Call::Isolate | Call::SetUnusable => !adding,
    };
    let can_change = |nth: &u64| {
        let failing_connectors =
            round.failing_connectors.iter().any(|&(lmb, call)| lmb == *nth && is_called(call));
        let vetoed = if adding { &round.veto_online } else { &round.veto_offline };
        !failing_connectors && !vetoed.contains(nth) && (adding || !used_lmbs.contains(nth))
    };
    let nth_of = |index: DrcIndex| u64::from(index.0 - FIRST_INDEX);
    let candidates_of_range = |first: u64, count: u32| {
        let all = first..first + u64::from(count);
        let is_valid =
            count > 0 && all.end <= HOTPLUG_LMBS && !reserved.iter().any(|r| all.contains(r));
        is_valid.then(|| all.filter(is_candidate).collect::<Vec<_>>())
    };
    let chosen = match round.selection {
        LmbSelection::Count(count) => {
            let count = usize::try_from(count).expect("`usize` has 64 bits");
            let enough = (0..HOTPLUG_LMBS).filter(is_candidate).count() >= count && count > 0;
            let chosen: Vec<_> =
                (0..HOTPLUG_LMBS).filter(is_candidate).filter(can_change).take(count).collect();
            (enough && chosen.len() == count).then_some(chosen)
        }
        LmbSelection::Index(index) => {
            let nth = nth_of(index);
            (is_candidate(&nth) && can_change(&nth)).then(|| vec![nth])
        }
        LmbSelection::Range { first, count } => {
            candidates_of_range(nth_of(first), count).filter(|all| all.iter().all(can_change))
        }
    }?;
    // A request fails if its update of the property fails. It updates the property only if at
    // least one LMB changed.
    let has_no_failed_update = !round.update_fails || chosen.is_empty();
    has_no_failed_update.then(|| chosen.into_iter().collect())
}

/// Runs the rounds. Returns how many calls for connectors failed after at least one busy answer.
fn run_rounds(rounds: &[Round]) -> u64 {
    let failures_after_busy = Rc::new(Cell::new(0));
    with_partition(|partition| {
        let mut in_use: Vec<(u64, Allocation<'_, OneCpu>)> = Vec::new();
        for round in rounds {
            for &nth in &round.used_lmbs {
                let start =
                    lmbs()[usize::try_from(nth).expect("the number fits in `usize`")].1.start();
                let place = start.checked_add(700).expect("the number is below the limit");
                let request = AllocRequest::frames(5).movable().at(place);
                if let Ok(frames) = partition.hotplug.frames().alloc(request) {
                    in_use.push((nth, frames));
                }
            }
            let pfns = |all: &BTreeSet<u64>| {
                let start = |&nth: &u64| {
                    lmbs()[usize::try_from(nth).expect("the number fits in `usize`")].1.start()
                };
                all.iter().map(|nth| start(nth).number()).collect()
            };
            partition.kernel.veto_online = pfns(&round.veto_online);
            partition.kernel.veto_offline = pfns(&round.veto_offline);
            let used_lmbs: BTreeSet<_> = in_use.iter().map(|&(nth, _)| nth).collect();
            let (failing_connectors, fails) =
                (round.failing_connectors.clone(), round.update_fails);
            let (busy, fails_after_busy) = (round.busy_answers, round.fails_after_busy);
            let failures_after_busy = failures_after_busy.clone();
            let mut busy_answers = 0;
            partition.script(move |_, call| {
                let is_broken = match call {
                    HypervisorRequest::Update => fails,
                    HypervisorRequest::Connector(index, call) => {
                        failing_connectors.contains(&(u64::from(index.0 - FIRST_INDEX), call))
                    }
                };
                if busy_answers < busy && (fails_after_busy || !is_broken) {
                    busy_answers += 1;
                    return Answer::Status(BUSY);
                }
                let was_busy = std::mem::take(&mut busy_answers) > 0;
                let is_connector = matches!(call, HypervisorRequest::Connector(..));
                let fails_late = is_broken && was_busy && is_connector;
                failures_after_busy.set(failures_after_busy.get() + u64::from(fails_late));
                if is_broken { Answer::Status(-1) } else { Answer::CarryOut }
            });
            let before = partition.snapshot();
            let assigned = partition.assigned();
            let expected = expected(round, &assigned, &used_lmbs);
            let budget = match round.budget {
                u64::MAX => Budget::UNLIMITED,
                pageblocks => Budget { pageblocks },
            };
            let mut polls = 0;
            partition.refused_lmbs.clear();
            let begun = partition.dlpar.begin(movable_request(round.change, round.selection));
            let result = begun.map_err(Failure::from).and_then(|()| {
                loop {
                    if round.polls_before_cancel == Some(polls) {
                        partition.dlpar.cancel();
                    }
                    polls += 1;
                    assert!(polls < 100_000, "the request does not end: {round:?}");
                    match partition.poll(budget) {
                        Progress::Ready(result) => break result,
                        // Memory stays online because of a veto. The veto lasts until the round
                        // ends, so the request would wait forever.
                        Progress::Pending(Wait::Memory(_)) => partition.dlpar.cancel(),
                        _ => {}
                    }
                }
            });
            partition.check_result(&result);
            let assigned_after = partition.assigned();
            let reported = match &result {
                Ok(summary) => summary.unrestored + summary.lost,
                Err(failure) => failure.unrestored + failure.lost,
            };
            let cancelled = round.polls_before_cancel.is_some_and(|limit| limit < polls);
            match &result {
                Ok(_) => {
                    let changed: BTreeSet<_> =
                        assigned_after.symmetric_difference(&assigned).copied().collect();
                    if reported == 0 {
                        assert_eq!(Some(changed), expected, "{round:?}");
                    }
                }
                Err(failure) => {
                    if !cancelled && reported == 0 {
                        assert_eq!(expected, None, "{round:?}: {failure}");
                    }
                    if reported == 0 {
                        assert_eq!(partition.snapshot(), before, "{round:?}: {failure}");
                    }
                }
            }
            if reported > 0 {
                // The request has left LMBs changed. It does so only if undoing fails.
                let vetoed_during_undo = match round.change {
                    Change::Add => &round.veto_offline,
                    Change::Remove => &round.veto_online,
                };
                // If the caller cancels while a request is being undone, the request does not wait
                // for busy connectors.
                let skips_waiting = cancelled && round.busy_answers > 0;
                let has_cause = !round.failing_connectors.is_empty()
                    || !vetoed_during_undo.is_empty()
                    || skips_waiting;
                assert!(has_cause, "{round:?}: {result:?}");
                // Leave out the other rounds: no request can repair a connector that always fails.
                return;
            }
            partition.end_script_and_count_calls();
            for (_, frames) in in_use.extract_if(.., |(nth, _)| *nth % 2 == 0) {
                drop(frames);
            }
        }
    });
    failures_after_busy.get()
}

#[test]
fn a_failed_connector_is_restored_even_if_the_caller_cancels() {
    for cancel in 0..20 {
        run_rounds(&[Round {
            change: Change::Add,
            selection: LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 5), count: 1 },
            failing_connectors: vec![(5, Call::Unisolate)],
            veto_online: BTreeSet::new(),
            veto_offline: BTreeSet::new(),
            used_lmbs: BTreeSet::new(),
            busy_answers: 2,
            fails_after_busy: false,
            budget: u64::MAX,
            update_fails: false,
            polls_before_cancel: Some(cancel),
        }]);
    }
}

#[test]
fn requests_agree_with_a_naive_model() {
    let cases = if std::env::var_os("HOTMEM_DEEP").is_some() { 20_000 } else { 400 };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let failures_after_busy = Cell::new(0);
    let result = TestRunner::new(config).run(&rounds(), |rounds| {
        failures_after_busy.set(failures_after_busy.get() + run_rounds(&rounds));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(failures_after_busy.get() > 0, "no connector failed after it had been busy");
}
