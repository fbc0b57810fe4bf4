//! Injects faults: each call of the hypervisor fails once in each way, in each kind of request.

use crate::common::Entry;
use crate::plain::{ADD, REMOVE};
use crate::world::{FIRST, LMB, World, lmbs, new, with, with_lmbs};
use hotmem::{AddError, AllocRequest, Budget, OnlineType, Pfn, RangeError, RangeErrorKind, State};
use hotmem_dlpar::hypervisor::{Answer, HypervisorRequest};
use hotmem_dlpar::*;
use hotmem_testkit::Validated as _;

const INDEX: DrcIndex = DrcIndex(FIRST + 6);
const THERE: DrcIndex = DrcIndex(FIRST + 17);

/// One request of each kind.
const REQUESTS: [(Change, Which); 8] = [
    (ADD, Which::Count(7)),
    (ADD, Which::Count(16)),
    (ADD, Which::Index(INDEX)),
    (ADD, Which::Range { first: INDEX, count: 8 }),
    (REMOVE, Which::Count(4)),
    (REMOVE, Which::Count(6)),
    (REMOVE, Which::Index(THERE)),
    (REMOVE, Which::Range { first: INDEX, count: 8 }),
];

const ANSWERS: [Answer; 5] = [
    Answer::Status(-1),
    Answer::Status(i32::MAX),
    Answer::State(0),
    Answer::State(77),
    Answer::List(1000),
];

/// Runs `test` for each call of each request.
fn each_call(test: impl Fn(Change, Which, u64)) {
    for (change, which) in REQUESTS {
        let calls = with(|world| {
            world.answer_truthfully();
            world.request(change, which).expect("nothing is wrong yet");
            world.answer_truthfully()
        });
        assert!(calls > 0);
        for at in 0..calls {
            test(change, which, at);
        }
    }
}

#[test]
fn each_call_fails_once() {
    each_call(|change, which, at| {
        for answer in ANSWERS {
            with(|world| {
                world.script(move |call, _| if call == at { answer } else { Answer::CarryOut });
                let before = world.snapshot();
                let updates = world.hypervisor.updates();
                let result = world.request(change, which);
                let what = format!("{change:?} {which:?} {answer:?} at {at}: {result:?}");
                match result {
                    Ok(summary) => {
                        // The LMB was skipped, or the answer does not matter for this call.
                        let by_count = matches!(which, Which::Count(_));
                        assert!(summary.skipped <= u32::from(by_count), "{what}");
                        assert_eq!((summary.unrestored, summary.lost), (0, 0), "{what}");
                        assert_eq!(world.hypervisor.updates(), updates + 1, "{what}");
                        let property = world.snapshot().property;
                        assert_eq!(world.hypervisor.property(), property, "{what}");
                    }
                    Err(failure) => {
                        assert_eq!((failure.unrestored, failure.lost), (0, 0), "{what}");
                        assert_eq!(world.snapshot(), before, "{what}");
                        assert_eq!(world.hypervisor.updates(), updates, "{what}");
                        assert!(world.request(change, which).is_ok(), "{what}");
                    }
                }
            });
        }
    });
}

/// From some call on every call fails. The request reports how many LMBs were not restored.
#[test]
fn all_calls_fail_from_one_call_on() {
    each_call(|change, which, at| {
        with(|world| {
            world.script(
                move |call, _| if call >= at { Answer::Status(-1) } else { Answer::CarryOut },
            );
            let had = world.assigned();
            // Checks that all differences were reported.
            let failure = world.request(change, which).expect_err("nothing works");
            let has = world.assigned();
            let lost = had.difference(&has).count();
            assert_eq!(failure.lost as usize, lost, "{change:?} {which:?} at {at}");
            assert!(has.is_subset(&had));
        });
    });
}

/// The request is cancelled when a call is busy, for each call: the machine is then as it was
/// before.
#[test]
fn each_call_is_busy_until_it_is_cancelled() {
    each_call(|change, which, at| {
        with(|world| {
            let turned = std::rc::Rc::new(std::cell::Cell::new(false));
            let seen = turned.clone();
            world.script(move |call, _| match call >= at && !seen.get() {
                true => Answer::Status(BUSY),
                false => Answer::CarryOut,
            });
            let before = world.snapshot();
            let result = world.run(new(change, which), Budget::UNLIMITED, |_| {
                turned.set(true);
                true
            });
            let failure = result.expect_err("cancelled");
            assert_eq!(failure.error, Error::Cancelled, "{change:?} {which:?} at {at}");
            assert_eq!((failure.unrestored, failure.lost), (0, 0));
            assert_eq!(world.snapshot(), before, "{change:?} {which:?} at {at}");
            assert!(world.request(change, which).is_ok());
        });
    });
}

/// The hypervisor stays busy, also while the request is undone. Cancelling again ends the request.
#[test]
fn a_second_cancellation_ends_a_request_on_a_busy_hypervisor() {
    each_call(|change, which, at| {
        with(|world| {
            world.script(
                move |call, _| {
                    if call >= at { Answer::Status(9905) } else { Answer::CarryOut }
                },
            );
            let result = world.run(new(change, which), Budget::UNLIMITED, |_| true);
            let failure = result.expect_err("cancelled");
            assert_eq!(failure.error, Error::Cancelled);
        });
    });
}

#[test]
fn a_request_can_be_cancelled_after_each_poll() {
    for (change, which) in REQUESTS {
        for polls in 0.. {
            let done = with(|world| {
                let before = world.snapshot();
                world.dlpar.begin(new(change, which)).expect("nothing is wrong");
                for _ in 0..polls {
                    let progress = world.poll(Budget { pageblocks: 1 });
                    if let Progress::Ready(result) = progress {
                        world.finished(&result);
                        return true;
                    }
                }
                world.dlpar.cancel();
                let result = world.poll_to_the_end(Budget { pageblocks: 1 }, |_| false);
                let failure = result.expect_err("cancelled");
                assert_eq!(failure, Error::Cancelled.into(), "after {polls}");
                assert_eq!(world.snapshot(), before, "{change:?} {which:?} after {polls}");
                false
            });
            if done {
                break;
            }
        }
    }
}

#[test]
fn memory_in_use_is_skipped_or_fails_the_request() {
    with(|world| {
        let pinned = lmbs()[17].1;
        let used =
            world.hotplug.frames().alloc(AllocRequest::frames(3).movable().at(pinned.start()));
        let _used = used.expect("free").into_raw();
        let before = world.snapshot();
        let range = Which::Range { first: DrcIndex(FIRST + 16), count: 4 };
        let failure = world.request(REMOVE, range).expect_err("in use");
        assert!(matches!(failure.error, Error::Blocked(_)), "{failure}");
        assert_eq!(world.snapshot(), before);
        let failure = world.request(REMOVE, Which::Count(6)).expect_err("one is in use");
        assert_eq!(failure.error, Error::NotEnough { wanted: 6, available: 5 });
        assert!(matches!(failure.because, Some(Error::Blocked(_))), "{failure}");
        assert_eq!(world.snapshot(), before);
        let done = world.request(REMOVE, Which::Count(5)).expect("the others");
        assert_eq!((done.lmbs, done.skipped), (5, 1));
        assert_eq!(world.assigned(), [17].into());
    });
}

#[test]
fn vetoed_lmbs_are_skipped_or_fail_the_request() {
    with(|world| {
        world.kernel.veto_online.insert(lmbs()[1].1.start().number());
        world.kernel.veto_offline.insert(lmbs()[18].1.start().number());
        let before = world.snapshot();
        let failure = world
            .request(ADD, Which::Index(DrcIndex(FIRST + 1)))
            .expect_err("the kernel vetoes the change");
        assert!(matches!(failure.error, Error::Online(_)), "{failure}");
        assert_eq!(world.snapshot(), before);
        let range = Which::Range { first: DrcIndex(FIRST), count: 3 };
        let failure = world.request(ADD, range).expect_err("the kernel vetoes the change");
        assert!(matches!(failure.error, Error::Online(_)), "{failure}");
        assert_eq!(world.snapshot(), before);
        let done = world.request(ADD, Which::Count(4)).expect("others");
        assert_eq!((done.lmbs, done.skipped), (4, 1));
        let refused = Refused {
            connector: Some(DrcIndex(FIRST + 1)),
            range: lmbs()[1].1,
            left: FinalState::AsItWas,
            error: Error::Online(RangeError {
                range: lmbs()[1].1,
                kind: RangeErrorKind::Vetoed(hotmem::Veto("not this one")),
            }),
        };
        assert_eq!((&world.refused[..], done.because), (&[refused][..], Some(refused.error)));
        assert!(refused.error.is_temporary());
        assert_eq!(world.assigned(), [0, 2, 4, 5, 7, 8, 16, 17, 18, 19].into());
        let done = world.request(REMOVE, Which::Count(9)).expect("others");
        assert_eq!((done.lmbs, done.skipped), (9, 1));
        assert_eq!(world.assigned(), [18].into());
    });
}

/// Added memory that is in use when the request must be undone stays, and is reported.
#[test]
fn added_memory_in_use_is_reported_when_the_request_is_undone() {
    with(|world| {
        world.script(|_, asked| match asked {
            HypervisorRequest::Update => Answer::Status(BUSY),
            HypervisorRequest::Connector(..) => Answer::CarryOut,
        });
        let waiting = world.begin(new(ADD, Which::Index(DrcIndex(FIRST))), Budget::UNLIMITED);
        assert!(matches!(waiting, Progress::Pending(Wait::Update { .. })), "{waiting:?}");
        let start = lmbs()[0].1.start();
        let used = world.hotplug.frames().alloc(AllocRequest::frames(1).movable().at(start));
        let _used = used.expect("online").into_raw();
        world.dlpar.cancel();
        let failure = world.poll_to_the_end(Budget::UNLIMITED, |_| false).expect_err("cancelled");
        assert_eq!((failure.unrestored, failure.lost), (1, 0));
        let [refused] = world.refused[..] else { panic!("{:?}", world.refused) };
        assert_eq!((refused.left, refused.range), (FinalState::Unrestored, lmbs()[0].1));
        assert!(matches!(refused.error, Error::Blocked(_)), "{refused:?}");
        // The LMB is a regular part of the partition now.
        world.excused = 0;
        world.refused.clear();
        assert!(world.assigned().contains(&0));
        world.finished(&Err(Failure { unrestored: 0, ..failure }));
        assert_eq!(LMB, 16 << 20);
    });
}

/// Boots a machine with LMBs 8 to 23 in two sections that hold their own descriptors. The first
/// section is online.
fn with_own_descriptors(f: impl FnOnce(&mut World<'_, '_>)) {
    let entry = |nth: u32| Entry {
        address: u64::from(nth) * LMB,
        index: FIRST + nth,
        reserved: 0,
        aa_index: 0,
        flags: 0,
    };
    let lmbs: Vec<_> = (8..24).map(entry).collect();
    with_lmbs(
        &lmbs,
        |_| 0,
        |world| {
            world.kernel.keeps = true;
            let added = world.begin(new(ADD, SECTION), Budget::UNLIMITED);
            assert!(matches!(added, Progress::Ready(Ok(_))), "{added:?}");
            f(world);
        },
    );
}

/// The LMBs of the first of these sections.
const SECTION: Which = Which::Range { first: DrcIndex(FIRST + 8), count: 8 };

/// Makes the connector of LMB 10 fail all calls except for reading its state.
fn refuse_the_third(world: &World<'_, '_>) {
    world.script(|_, asked| match asked {
        HypervisorRequest::Connector(_, Call::Sense) => Answer::CarryOut,
        HypervisorRequest::Connector(DrcIndex(index), _) if index == FIRST + 10 => {
            Answer::Status(-1)
        }
        _ => Answer::CarryOut,
    });
}

/// A section of eight LMBs holds its own descriptors. Its first LMB is removed, but its third
/// cannot be.
#[test]
fn the_rest_of_a_section_gets_new_descriptors() {
    with_own_descriptors(|world| {
        let kept = |world: &World<'_, '_>| {
            world
                .hotplug
                .frames()
                .metadata()
                .filter(|metadata| metadata.frames.frames() == 512)
                .count()
        };
        assert_eq!(kept(world), 1);
        refuse_the_third(world);
        let removed = world.begin(new(REMOVE, SECTION), Budget::UNLIMITED);
        assert!(matches!(removed, Progress::Ready(Err(_))), "{removed:?}");
        assert_eq!(kept(world), 0);
        let at = |lmb: u64| Pfn::new(lmb * LMB / 4096).expect("small");
        let there = world.hotplug.state_at(at(8), at(16));
        assert_eq!((there.0.frames(), there.1), (LMB / 4096 * 8, State::OnlineMovable));
        // A request by count removes other LMBs instead. The rest of the section keeps its zone.
        world.answer_truthfully();
        for (change, which) in [(REMOVE, SECTION), (ADD, Which::Count(16))] {
            let done = world.begin(new(change, which), Budget::UNLIMITED);
            assert!(matches!(done, Progress::Ready(Ok(_))), "{done:?}");
        }
        assert_eq!(kept(world), 2);
        refuse_the_third(world);
        let done = world.begin(new(REMOVE, Which::Count(8)), Budget::UNLIMITED);
        assert!(matches!(done, Progress::Ready(Ok(_))), "{done:?}");
        assert_eq!(world.hotplug.state_at(at(10), at(11)).1, State::OnlineMovable);
        world.hotplug.frames().validated().expect("the engine is consistent");
    });
}

/// As above, but without memory for new descriptors: the rest of the section is reported, and still
/// counts as assigned.
#[test]
fn the_rest_of_a_section_without_descriptors_is_reported() {
    for which in [SECTION, Which::Count(8)] {
        with_own_descriptors(|world| {
            if let Which::Count(_) = which {
                let added = world.begin(new(ADD, Which::Count(8)), Budget::UNLIMITED);
                assert!(matches!(added, Progress::Ready(Ok(_))), "{added:?}");
            }
            refuse_the_third(world);
            world.kernel.tables_after_unmap = Some(1 << 20);
            let removed = world.begin(new(REMOVE, which), Budget::UNLIMITED);
            let unrestored = match removed {
                // Two LMBs of the first section were removed, and six of the second, but not its
                // first, which holds the descriptors of the last.
                Progress::Ready(Ok(summary)) if which != SECTION => {
                    assert_eq!((summary.lmbs, summary.skipped, summary.lost), (8, 2, 0));
                    summary.unrestored
                }
                // The two removed LMBs were acquired again, without memory for their descriptors.
                Progress::Ready(Err(failure)) if which == SECTION => {
                    assert_eq!(failure.lost, 0);
                    failure.unrestored - 2
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(unrestored, 6);
            for refused in
                world.refused.iter().filter(|refused| refused.left != FinalState::AsItWas)
            {
                assert_eq!(refused.left, FinalState::Unrestored);
                assert!(matches!(refused.error, Error::Add(AddError::NoTables { .. })));
            }
            // The table agrees with the connectors.
            let connectors = (8..24).zip(world.hypervisor.connectors());
            for (index, connector) in connectors {
                let lmb = world.dlpar.table().by_index(DrcIndex(FIRST + index)).expect("known");
                let assigned = lmb.flags & FLAG_ASSIGNED != 0;
                assert_eq!(connector.usable && !connector.isolated, assigned, "{index}");
            }
            // Once there is memory again, it can be added.
            world.kernel.tables = 0;
            world.kernel.tables_after_unmap = None;
            let World { dlpar, hotplug, kernel, .. } = world;
            dlpar.table().adopt(hotplug, kernel, OnlineType::Movable).expect("room");
            for (range, _) in dlpar.table().assigned() {
                let there = hotplug.state_at(range.start(), range.end());
                assert_eq!(there, (range, State::OnlineMovable));
            }
        });
    }
}
