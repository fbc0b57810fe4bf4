//! Compares random requests with a naive model of the LMBs that are added and removed. Hypervisor
//! errors, vetoes, memory in use and cancellations occur at random.

use crate::world::{ALL, FIRST, lmbs, new, with};
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
    which: Which,
    /// LMBs whose connectors always fail, and the call that fails.
    broken: Vec<(u64, Call)>,
    veto_online: BTreeSet<u64>,
    veto_offline: BTreeSet<u64>,
    /// LMBs that something is allocated in.
    used: BTreeSet<u64>,
    /// How often each call is busy first.
    busy: u64,
    /// Whether failing calls are busy first as well.
    breaks_late: bool,
    budget: u64,
    update_fails: bool,
    /// The number of polls before the cancellation.
    cancel: Option<u32>,
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let lmb = 0..ALL;
    let count = prop_oneof![Just(0), 1..6_u32, 1..20_u32, any::<u32>()];
    let index = lmb.clone().prop_map(|nth| DrcIndex(FIRST + u32::try_from(nth).expect("few")));
    let which = prop_oneof![
        3 => count.clone().prop_map(Which::Count),
        1 => index.clone().prop_map(Which::Index),
        2 => (index, count).prop_map(|(first, count)| Which::Range { first, count }),
    ];
    let call = prop_oneof![
        Just(Call::Sense),
        Just(Call::SetUsable),
        Just(Call::Unisolate),
        Just(Call::Configure),
        Just(Call::Isolate),
        Just(Call::SetUnusable),
    ];
    let some = || prop::collection::btree_set(0..ALL, 0..3);
    let change = prop_oneof![Just(Change::Add), Just(Change::Remove)];
    let broken = prop::collection::vec((lmb, call), 0..3);
    let ways = (broken, some(), some(), some());
    let pace = (0..3_u64, any::<bool>(), prop_oneof![Just(u64::MAX), 1..40_u64]);
    let ends = (prop::bool::weighted(0.1), prop::option::weighted(0.2, 0..30_u32));
    let round = (change, which, ways, pace, ends).prop_map(|(change, which, ways, pace, ends)| {
        let (broken, veto_online, veto_offline, used) = ways;
        Round {
            change,
            which,
            broken,
            veto_online,
            veto_offline,
            used,
            busy: pace.0,
            breaks_late: pace.1,
            budget: pace.2,
            update_fails: ends.0,
            cancel: ends.1,
        }
    });
    prop::collection::vec(round, 1..7)
}

/// Returns the expected LMBs of a request that is not cancelled, or `None` if it must fail.
fn expected(
    round: &Round,
    assigned: &BTreeSet<u64>,
    used: &BTreeSet<u64>,
) -> Option<BTreeSet<u64>> {
    let reserved = [3, 14];
    let adding = round.change == Change::Add;
    let is_candidate = |nth: &u64| !reserved.contains(nth) && assigned.contains(nth) != adding;
    let matters = |call: Call| match call {
        Call::Sense => true,
        Call::SetUsable | Call::Unisolate | Call::Configure => adding,
        Call::Isolate | Call::SetUnusable => !adding,
    };
    let works = |nth: &u64| {
        let broken = round.broken.iter().any(|&(lmb, call)| lmb == *nth && matters(call));
        let vetoed = if adding { &round.veto_online } else { &round.veto_offline };
        !broken && !vetoed.contains(nth) && (adding || !used.contains(nth))
    };
    let nth_of = |index: DrcIndex| u64::from(index.0 - FIRST);
    let range = |first: u64, count: u32| {
        let all = first..first + u64::from(count);
        let sound = count > 0 && all.end <= ALL && !reserved.iter().any(|r| all.contains(r));
        sound.then(|| all.filter(is_candidate).collect::<Vec<_>>())
    };
    let chosen = match round.which {
        Which::Count(count) => {
            let count = usize::try_from(count).expect("64 bits");
            let enough = (0..ALL).filter(is_candidate).count() >= count && count > 0;
            let chosen: Vec<_> = (0..ALL).filter(is_candidate).filter(works).take(count).collect();
            (enough && chosen.len() == count).then_some(chosen)
        }
        Which::Index(index) => {
            let nth = nth_of(index);
            (is_candidate(&nth) && works(&nth)).then(|| vec![nth])
        }
        Which::Range { first, count } => {
            range(nth_of(first), count).filter(|all| all.iter().all(works))
        }
    }?;
    // The property is written only if something changed.
    let written = !round.update_fails || chosen.is_empty();
    written.then(|| chosen.into_iter().collect())
}

/// Runs the rounds. Returns how many connectors failed after they had been busy.
fn play(rounds: &[Round]) -> u64 {
    let broke_late = Rc::new(Cell::new(0));
    with(|world| {
        let mut in_use: Vec<(u64, Allocation<'_, OneCpu>)> = Vec::new();
        for round in rounds {
            for &nth in &round.used {
                let start = lmbs()[usize::try_from(nth).expect("few")].1.start();
                let place = start.checked_add(700).expect("small");
                let want = AllocRequest::frames(5).movable().at(place);
                if let Ok(frames) = world.hotplug.frames().alloc(want) {
                    in_use.push((nth, frames));
                }
            }
            let pfns = |all: &BTreeSet<u64>| {
                let start = |&nth: &u64| lmbs()[usize::try_from(nth).expect("few")].1.start();
                all.iter().map(|nth| start(nth).number()).collect()
            };
            world.kernel.veto_online = pfns(&round.veto_online);
            world.kernel.veto_offline = pfns(&round.veto_offline);
            let used: BTreeSet<_> = in_use.iter().map(|&(nth, _)| nth).collect();
            let (broken, fails) = (round.broken.clone(), round.update_fails);
            let (busy, breaks_late) = (round.busy, round.breaks_late);
            let broke_late = broke_late.clone();
            let mut turn = 0;
            world.script(move |_, asked| {
                let is_broken = match asked {
                    HypervisorRequest::Update => fails,
                    HypervisorRequest::Connector(index, call) => {
                        broken.contains(&(u64::from(index.0 - FIRST), call))
                    }
                };
                if turn < busy && (breaks_late || !is_broken) {
                    turn += 1;
                    return Answer::Status(BUSY);
                }
                let was_busy = std::mem::take(&mut turn) > 0;
                let is_connector = matches!(asked, HypervisorRequest::Connector(..));
                let late = is_broken && was_busy && is_connector;
                broke_late.set(broke_late.get() + u64::from(late));
                if is_broken { Answer::Status(-1) } else { Answer::CarryOut }
            });
            let before = world.snapshot();
            let assigned = world.assigned();
            let expected = expected(round, &assigned, &used);
            let budget = match round.budget {
                u64::MAX => Budget::UNLIMITED,
                pageblocks => Budget { pageblocks },
            };
            let mut polls = 0;
            world.refused.clear();
            let begun = world.dlpar.begin(new(round.change, round.which));
            let result = begun.map_err(Failure::from).and_then(|()| {
                loop {
                    if round.cancel == Some(polls) {
                        world.dlpar.cancel();
                    }
                    polls += 1;
                    assert!(polls < 100_000, "the request does not end: {round:?}");
                    match world.poll(budget) {
                        Progress::Ready(result) => break result,
                        // The veto is permanent.
                        Progress::Pending(Wait::Memory(_)) => world.dlpar.cancel(),
                        _ => {}
                    }
                }
            });
            world.finished(&result);
            let now = world.assigned();
            let excused = match &result {
                Ok(summary) => summary.unrestored + summary.lost,
                Err(failure) => failure.unrestored + failure.lost,
            };
            let cancelled = round.cancel.is_some_and(|at| at < polls);
            match &result {
                Ok(_) => {
                    let changed: BTreeSet<_> =
                        now.symmetric_difference(&assigned).copied().collect();
                    if excused == 0 {
                        assert_eq!(Some(changed), expected, "{round:?}");
                    }
                }
                Err(failure) => {
                    if !cancelled && excused == 0 {
                        assert_eq!(expected, None, "{round:?}: {failure}");
                    }
                    if excused == 0 {
                        assert_eq!(world.snapshot(), before, "{round:?}: {failure}");
                    }
                }
            }
            if excused > 0 {
                // LMBs stay changed only if undoing fails.
                let vetoed_on_the_way_back = match round.change {
                    Change::Add => &round.veto_offline,
                    Change::Remove => &round.veto_online,
                };
                // A caller that cancels during the undoing does not wait for connectors.
                let in_a_hurry = cancelled && round.busy > 0;
                let is_cause =
                    !round.broken.is_empty() || !vetoed_on_the_way_back.is_empty() || in_a_hurry;
                assert!(is_cause, "{round:?}: {result:?}");
                // The next request cannot repair a connector that always fails.
                return;
            }
            world.answer_truthfully();
            for (_, frames) in in_use.extract_if(.., |(nth, _)| *nth % 2 == 0) {
                drop(frames);
            }
        }
    });
    broke_late.get()
}

#[test]
fn a_failed_connector_is_undone_although_the_caller_cancels() {
    for cancel in 0..20 {
        play(&[Round {
            change: Change::Add,
            which: Which::Range { first: DrcIndex(FIRST + 5), count: 1 },
            broken: vec![(5, Call::Unisolate)],
            veto_online: BTreeSet::new(),
            veto_offline: BTreeSet::new(),
            used: BTreeSet::new(),
            busy: 2,
            breaks_late: false,
            budget: u64::MAX,
            update_fails: false,
            cancel: Some(cancel),
        }]);
    }
}

#[test]
fn requests_agree_with_a_naive_model() {
    let cases = if std::env::var_os("HOTMEM_DEEP").is_some() { 20_000 } else { 400 };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let broke_late = Cell::new(0);
    let result = TestRunner::new(config).run(&rounds(), |rounds| {
        broke_late.set(broke_late.get() + play(&rounds));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(broke_late.get() > 0, "no connector failed after it had been busy");
}
