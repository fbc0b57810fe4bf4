//! Injects faults on a platform with the rules of QEMU: each call fails once or stays busy. The
//! request must fail with the error of that call, and afterwards the DIMM can be added and removed.

use crate::plain::{ADD, REMOVE};
use crate::world::{FIRST, Snapshot, World, new, with};
use hotmem::Budget;
use hotmem_dlpar::hypervisor::{
    Answer, HARDWARE_ERROR, HypervisorRequest, NOT_CONFIGURABLE, PARAMETER_ERROR,
};
use hotmem_dlpar::*;

const FIRST_OF_DIMM: DrcIndex = DrcIndex(FIRST + 20);
const LMBS: u32 = 3;
const DIMM: Which = Which::Range { first: FIRST_OF_DIMM, count: LMBS };

/// Statuses of PAPR: hardware error, no such indicator, not configurable, and an undefined one.
const STATUSES: [i32; 4] = [HARDWARE_ERROR, PARAMETER_ERROR, NOT_CONFIGURABLE, i32::MAX];

/// Boots a machine with a plugged DIMM. For a removal, the DIMM is added and the host has asked for
/// it. Passes a snapshot from before that.
fn with_dimm(change: Change, f: impl FnOnce(&mut World<'_, '_>, Snapshot)) {
    with(|world| {
        world.hypervisor.set_like_qemu();
        world.hypervisor.plug(FIRST_OF_DIMM, LMBS);
        if change == REMOVE {
            world.request(ADD, DIMM).expect("plugged");
        }
        let before = world.snapshot();
        if change == REMOVE {
            world.hypervisor.request_back(FIRST_OF_DIMM, LMBS);
        }
        world.answer_truthfully();
        f(world, before);
    });
}

/// Runs `test` for each call of both requests, and with and without adding the DIMM before it is
/// removed.
fn each_call(test: impl Fn(Change, u64, bool)) {
    for change in [ADD, REMOVE] {
        let mut calls = 0;
        with_dimm(change, |world, _| {
            world.request(change, DIMM).expect("nothing is wrong yet");
            calls = world.answer_truthfully();
        });
        assert!(calls > 0);
        for at in 0..calls {
            [true, false].into_iter().for_each(|first_added| test(change, at, first_added));
        }
    }
}

/// Checks that the DIMM can be removed, after it was added or as it was left.
fn check_removable(world: &mut World<'_, '_>, first_added: bool, what: &str) {
    world.answer_truthfully();
    let here = (0..u64::from(LMBS)).all(|nth| world.assigned().contains(&(20 + nth)));
    if !here && first_added {
        let added = world.request(ADD, DIMM);
        assert!(added.is_ok_and(|added| added.unrestored == 0), "{what}; then {added:?}");
    }
    world.hypervisor.request_back(FIRST_OF_DIMM, LMBS);
    let removed = world.request(REMOVE, DIMM);
    assert!(removed.is_ok(), "{what}; then {removed:?}");
    world.excused = 0;
    world.check();
    let dimm = &world.hypervisor.connectors()[20..][..LMBS as usize];
    assert!(dimm.iter().all(|connector| !connector.usable && connector.isolated), "{what}");
}

#[test]
fn each_call_fails_once() {
    each_call(|change, at, first_added| {
        for status in STATUSES {
            with_dimm(change, |world, before| {
                let failed = std::rc::Rc::new(std::cell::Cell::new(None));
                let seen = failed.clone();
                world.script(move |call, asked| {
                    if call != at {
                        return Answer::CarryOut;
                    }
                    seen.set(Some(asked));
                    Answer::Status(status)
                });
                let result = world.request(change, DIMM);
                let what = format!("{change:?}, {status} at {at}: {result:?}");
                let Some(asked) = failed.get() else { panic!("{what}: no such call") };
                let failure = result.expect_err(&what);
                match (asked, failure.error) {
                    (HypervisorRequest::Update, Error::Update(answered)) => {
                        assert_eq!(answered, status)
                    }
                    (HypervisorRequest::Connector(connector, call), Error::Connector(error)) => {
                        let found = (error.connector, error.call, error.what);
                        assert_eq!(
                            found,
                            (connector, call, ConnectorFailure::Failed(status)),
                            "{what}"
                        );
                    }
                    _ => panic!("{asked:?}; {what}"),
                }
                if failure.unrestored == 0 && failure.lost == 0 {
                    assert_eq!(world.snapshot(), before, "{what}");
                }
                if change == REMOVE && failure.lost == 0 {
                    assert_eq!(world.hypervisor.refusals(), 1, "{what}");
                }
                if failure.lost == 0 {
                    check_removable(world, first_added, &what);
                }
            });
        }
    });
}

/// The platform stays busy from each call on. A request that is cancelled twice ends, and reports
/// the LMBs that it leaves.
#[test]
fn each_call_is_busy_for_ever() {
    each_call(|change, at, first_added| {
        with_dimm(change, |world, before| {
            world.script(move |call, _| match call >= at {
                true => Answer::Status(BUSY),
                false => Answer::CarryOut,
            });
            let result = world.run(new(change, DIMM), Budget::UNLIMITED, |_| true);
            let what = format!("{change:?} at {at}: {result:?}");
            let failure = result.expect_err(&what);
            assert_eq!(failure.error, Error::Cancelled, "{what}");
            if (failure.unrestored, failure.lost) == (0, 0) && change == ADD {
                assert_eq!(world.snapshot(), before, "{what}");
            }
            if failure.lost == 0 {
                // A connector that was never configured must be added first.
                check_removable(world, first_added || failure.unrestored > 0, &what);
            }
        });
    });
}

/// The addition leaves two connectors behind. The host gets the third at once, or the first of the
/// two when the second fails. So the removal must not be reported as failed.
#[test]
fn a_removal_is_not_reported_as_failed_after_a_part_was_released() {
    for (failing, acquired) in [(20, 2), (21, 2), (21, 3)] {
        with_dimm(ADD, |world, _| {
            world.script(move |_, asked| match asked {
                HypervisorRequest::Connector(DrcIndex(index), Call::SetUsable)
                    if index == FIRST + 22 =>
                {
                    if acquired == 2 {
                        Answer::Status(HARDWARE_ERROR)
                    } else {
                        Answer::CarryOut
                    }
                }
                HypervisorRequest::Update => Answer::Status(HARDWARE_ERROR),
                _ => Answer::CarryOut,
            });
            let failure = world.request(ADD, DIMM).expect_err("the last, or the update");
            assert_eq!(failure.unrestored, acquired);
            world.hypervisor.request_back(FIRST_OF_DIMM, LMBS);
            world.script(move |_, asked| match asked {
                HypervisorRequest::Connector(DrcIndex(index), Call::Isolate)
                    if index == FIRST + failing =>
                {
                    Answer::Status(HARDWARE_ERROR)
                }
                _ => Answer::CarryOut,
            });
            let failure = world.request(REMOVE, DIMM).expect_err("it cannot be isolated");
            let Error::Connector(error) = failure.error else { panic!("{failure}") };
            assert_eq!((error.connector.0, error.call), (FIRST + failing, Call::Isolate));
            assert_eq!(world.hypervisor.refusals(), 0, "{failing} of {acquired}");
            world.answer_truthfully();
            world.request(REMOVE, DIMM).expect("the host still wants it");
            world.excused = 0;
            world.check();
        });
    }
}
