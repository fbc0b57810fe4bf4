//! Tests requests on platforms with the rules of QEMU: released memory cannot be acquired again,
//! memory can be released only if the host has asked for it, and a failed removal must be reported.

use crate::plain::{ADD, REMOVE};
use crate::world::{FIRST, World, lmbs, with};
use hotmem::{AllocRequest, Budget, Progress as Step, RangeError, RangeErrorKind, State};
use hotmem_dlpar::hypervisor::{Answer, HARDWARE_ERROR, HypervisorRequest, PARAMETER_ERROR};
use hotmem_dlpar::*;
use hotmem_testkit::link::lend;

const fn range(first: u32, count: u32) -> Which {
    Which::Range { first: DrcIndex(FIRST + first), count }
}

/// A DIMM: four LMBs that the partition has from the start.
const DIMM: Which = range(16, 4);

fn ask_back_dimm(world: &mut World<'_, '_>) {
    world.hypervisor.request_back(DrcIndex(FIRST + 16), 4);
}

fn with_qemu(f: impl FnOnce(&mut World<'_, '_>)) {
    with(|world| {
        world.hypervisor.set_like_qemu();
        f(world);
    });
}

#[test]
fn a_dimm_is_added_and_removed_repeatedly() {
    with_qemu(|world| {
        for _ in 0..3 {
            world.hypervisor.plug(DrcIndex(FIRST + 20), 3);
            let added = world.request(ADD, range(20, 3)).expect("plugged");
            assert_eq!((added.lmbs, added.skipped), (3, 0));
            world.hypervisor.request_back(DrcIndex(FIRST + 20), 3);
            let removed = world.request(REMOVE, range(20, 3)).expect("asked for");
            assert_eq!((removed.lmbs, removed.skipped), (3, 0));
        }
        assert_eq!(world.hypervisor.refusals(), 0);
    });
}

#[test]
fn a_request_by_count_skips_lmbs_without_memory() {
    with_qemu(|world| {
        world.hypervisor.plug(DrcIndex(FIRST + 20), 3);
        let added = world.request(ADD, Which::Count(3)).expect("three are plugged");
        assert_eq!((added.lmbs, added.unrestored), (3, 0));
        assert!(world.refused.iter().all(|refused| matches!(
            refused.error,
            Error::Connector(ConnectorError {
                call: Call::SetUsable,
                what: ConnectorFailure::Failed(PARAMETER_ERROR),
                stuck: false,
                ..
            })
        )));
        assert_eq!(added.skipped as usize, world.refused.len());
        assert!([20, 21, 22].iter().all(|nth| world.assigned().contains(nth)));
        assert!(!world.assigned().contains(&0));
    });
}

/// Shows the effect of a `configure` that returns before the connector is configured.
#[test]
fn a_connector_that_was_not_configured_to_the_end_cannot_be_released() {
    with_qemu(|world| {
        world.hypervisor.plug(DrcIndex(FIRST + 20), 1);
        world.script(|_, asked| match asked {
            HypervisorRequest::Connector(_, Call::Configure) => Answer::Status(0),
            _ => Answer::CarryOut,
        });
        world.request(ADD, range(20, 1)).expect("plugged");
        let before = world.snapshot();
        world.hypervisor.request_back(DrcIndex(FIRST + 20), 1);
        let failure = world.request(REMOVE, range(20, 1)).expect_err("not configured");
        let Error::Connector(error) = failure.error else { panic!("{failure}") };
        assert_eq!(
            (error.call, error.what),
            (Call::Isolate, ConnectorFailure::Failed(PARAMETER_ERROR))
        );
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!(world.hypervisor.refusals(), 1);
        assert_eq!(world.snapshot(), before);
    });
}

#[test]
fn a_failed_removal_is_reported_and_succeeds_later() {
    with_qemu(|world| {
        let in_use = AllocRequest::frames(3).movable().at(lmbs()[18].1.start());
        let used = world.hotplug.frames().alloc(in_use).expect("free");
        let before = world.snapshot();
        ask_back_dimm(world);
        let failure = world.request(REMOVE, DIMM).expect_err("in use");
        assert!(matches!(failure.error, Error::Blocked(_)), "{failure}");
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!(world.hypervisor.refusals(), 1);
        assert_eq!(world.snapshot(), before);
        drop(used);
        ask_back_dimm(world);
        assert_eq!(world.request(REMOVE, DIMM).expect("free").lmbs, 4);
        assert_eq!(world.hypervisor.refusals(), 1);
    });
}

#[test]
fn a_cancelled_removal_is_reported() {
    with_qemu(|world| {
        let before = world.snapshot();
        ask_back_dimm(world);
        let first = world.begin(Request::remove(DIMM), Budget { pageblocks: 8 });
        assert_eq!(first, Progress::Working);
        world.dlpar.cancel();
        let failure = world.poll_to_the_end(Budget { pageblocks: 8 }, |_| false);
        assert_eq!(failure.expect_err("cancelled").error, Error::Cancelled);
        assert_eq!((world.hypervisor.refusals(), world.snapshot()), (1, before));
    });
}

/// The last connector of the DIMM is in a state from which it cannot be released.
#[test]
fn connectors_are_checked_before_the_first_is_released() {
    with_qemu(|world| {
        let before = world.snapshot();
        ask_back_dimm(world);
        world.script(|_, asked| match asked {
            HypervisorRequest::Connector(DrcIndex(index), Call::Sense) if index == FIRST + 19 => {
                Answer::State(0)
            }
            _ => Answer::CarryOut,
        });
        let failure = world.request(REMOVE, DIMM).expect_err("in another state");
        assert!(matches!(
            failure.error,
            Error::Connector(ConnectorError {
                call: Call::Sense,
                what: ConnectorFailure::State(0),
                ..
            })
        ));
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!((world.hypervisor.refusals(), world.snapshot()), (1, before));
    });
}

/// The engine refuses to remove the last LMB of the DIMM, because another caller is removing it.
#[test]
fn memory_is_checked_before_the_first_connector_is_released() {
    with_qemu(|world| {
        let last = lmbs()[19].1;
        let mut offline = world.hotplug.offline(last).expect("online");
        let done = offline.poll(&mut world.hotplug, &mut world.kernel, Budget::UNLIMITED);
        assert!(matches!(done, Step::Ready(_)), "{done:?}");
        let removal =
            lend(&mut world.hotplug, &mut world.kernel, |hotplug, _| hotplug.prepare_remove(last));
        let removal = removal.expect("offline");
        let before = world.snapshot();
        ask_back_dimm(world);
        let failure = world.request(REMOVE, DIMM).expect_err("held");
        assert_eq!(
            failure.error,
            Error::Remove(RangeError { range: block_of(last), kind: RangeErrorKind::Held })
        );
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!((world.hypervisor.refusals(), world.snapshot()), (1, before));
        lend(&mut world.hotplug, &mut world.kernel, |hotplug, hooks| {
            hotplug.abandon_remove(removal, hooks)
        })
        .expect("this machine's");
        let there = world.hotplug.state_at(last.start(), last.end());
        assert_eq!(there, (last, State::Offline));
        ask_back_dimm(world);
        assert_eq!(world.request(REMOVE, DIMM).expect("all of it can go").lmbs, 4);
    });
}

/// Returns the first pageblock of a range.
fn block_of(range: hotmem::PfnRange) -> hotmem::PfnRange {
    hotmem::PfnRange::with_len(range.start(), hotmem::geometry::PAGEBLOCK_FRAMES as u64)
        .expect("small")
}

/// The host already has a part of the memory, so the removal must not be reported as failed.
#[test]
fn a_removal_that_loses_lmbs_is_not_reported_as_failed() {
    with_qemu(|world| {
        ask_back_dimm(world);
        world.script(|_, asked| match asked {
            HypervisorRequest::Connector(DrcIndex(index), Call::Isolate) if index == FIRST + 17 => {
                Answer::Status(HARDWARE_ERROR)
            }
            _ => Answer::CarryOut,
        });
        let failure = world.request(REMOVE, DIMM).expect_err("the second fails");
        assert_eq!((failure.unrestored, failure.lost), (0, 1));
        assert_eq!(world.hypervisor.refusals(), 0);
        assert!(!world.assigned().contains(&16));
        assert!([17, 18, 19].iter().all(|nth| world.assigned().contains(nth)));
    });
}

/// The kernel vetoes an LMB, so the addition of the DIMM fails. QEMU takes its connectors back only
/// if it has asked for them. They are not lost: the DIMM can be added again, or removed.
#[test]
fn connectors_that_cannot_be_released_are_added_again_or_removed() {
    let by_index = || (20..23).map(|nth| Which::Index(DrcIndex(FIRST + nth))).collect::<Vec<_>>();
    for (change, requests, lmbs) in
        [(ADD, vec![range(20, 3)], 3), (REMOVE, vec![range(20, 3)], 3), (REMOVE, by_index(), 1)]
    {
        with_qemu(|world| {
            let free = world.snapshot();
            world.hypervisor.plug(DrcIndex(FIRST + 20), 3);
            world.kernel.veto_online.insert(lmbs_at(21));
            let failure =
                world.request(ADD, range(20, 3)).expect_err("the kernel vetoes the change");
            assert!(matches!(failure.error, Error::Online(_)), "{failure}");
            assert_eq!((failure.unrestored, failure.lost), (3, 0));
            world.kernel.veto_online.clear();
            if change == REMOVE {
                world.hypervisor.request_back(DrcIndex(FIRST + 20), 3);
            }
            for which in requests {
                assert_eq!(world.request(change, which).expect("possible now").lmbs, lmbs);
            }
            // All LMBs are restored.
            world.excused = 0;
            world.check();
            if change == REMOVE {
                assert_eq!(world.snapshot().lmbs, free.lmbs);
            }
            assert_eq!(world.hypervisor.refusals(), 0);
        });
    }
}

/// As above, but the platform never takes the connectors back.
#[test]
fn connectors_that_stay_are_reported() {
    with_qemu(|world| {
        world.hypervisor.plug(DrcIndex(FIRST + 20), 3);
        world.kernel.veto_online.insert(lmbs_at(21));
        world.request(ADD, range(20, 3)).expect_err("the kernel vetoes the change");
        world.hypervisor.request_back(DrcIndex(FIRST + 20), 3);
        world.script(|_, asked| match asked {
            HypervisorRequest::Connector(_, Call::Isolate) => Answer::Status(HARDWARE_ERROR),
            _ => Answer::CarryOut,
        });
        let failure = world.request(REMOVE, range(20, 3)).expect_err("they stay");
        assert!(matches!(failure.error, Error::Connector(_)), "{failure}");
        assert_eq!((failure.unrestored, failure.lost), (0, 0));
        assert_eq!(world.hypervisor.refusals(), 1);
        world.answer_truthfully();
        world.hypervisor.request_back(DrcIndex(FIRST + 20), 3);
        assert_eq!(world.request(REMOVE, range(20, 3)).expect("asked for").lmbs, 3);
    });
}

fn lmbs_at(nth: usize) -> u64 {
    lmbs()[nth].1.start().number()
}

/// The platform is busy when a failed removal is reported. A caller that cancels does not wait.
#[test]
fn the_report_to_a_busy_platform_is_repeated_or_skipped() {
    for patient in [true, false] {
        with_qemu(|world| {
            let used = world
                .hotplug
                .frames()
                .alloc(AllocRequest::frames(1).movable().at(lmbs()[16].1.start()));
            let _used = used.expect("free").into_raw();
            ask_back_dimm(world);
            world.script(|call, asked| match asked {
                HypervisorRequest::Connector(_, Call::Unisolate) if call < 3 => {
                    Answer::Status(BUSY)
                }
                _ => Answer::CarryOut,
            });
            let result = world.run(Request::remove(DIMM), Budget::UNLIMITED, |_| !patient);
            assert!(result.is_err());
            assert_eq!(world.hypervisor.refusals(), u64::from(patient));
        });
    }
}
