//! Tests requests for sections that hold their own descriptors, if an LMB of a section stays.

use crate::basic::{ADD, REMOVE};
use crate::common::Entry;
use crate::partition::{FIRST_INDEX, LMB_BYTES, Partition, movable_request, with_lmbs};
use hotmem::{
    AddError, AllocError, AllocRequest, Budget, Bytes, OnlineType, Pfn, PfnRange, Poisoned, State,
};
use hotmem_dlpar::hypervisor::{Answer, HypervisorRequest};
use hotmem_dlpar::*;
use hotmem_testkit::Validated as _;

/// The LMBs of the first section of [`with_own_descriptors`].
const FIRST_SECTION: LmbSelection =
    LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 8), count: 8 };

/// Boots a machine with LMBs 8 to 23 in two sections that hold their own descriptors. The first
/// section is online.
fn with_own_descriptors(f: impl FnOnce(&mut Partition<'_, '_>)) {
    with_two_sections(true, f);
}

/// Does the same as [`with_own_descriptors`], except that the sections hold their own descriptors only
/// if `has_own_descriptors` is true.
fn with_two_sections(has_own_descriptors: bool, f: impl FnOnce(&mut Partition<'_, '_>)) {
    let entry = |nth: u32| Entry {
        address: u64::from(nth) * LMB_BYTES,
        index: FIRST_INDEX + nth,
        reserved: 0,
        aa_index: 0,
        flags: 0,
    };
    let lmbs: Vec<_> = (8..24).map(entry).collect();
    with_lmbs(
        &lmbs,
        |_| 0,
        |partition| {
            partition.kernel.has_own_descriptors = has_own_descriptors;
            let added = partition.begin(movable_request(ADD, FIRST_SECTION), Budget::UNLIMITED);
            assert!(matches!(added, Progress::Ready(Ok(_))), "{added:?}");
            f(partition);
        },
    );
}

/// Makes all calls for the connector of LMB 10 fail, except those that read its state.
fn fail_calls_of_third_lmb(partition: &Partition<'_, '_>) {
    partition.script(|_, request| match request {
        HypervisorRequest::Connector(_, Call::Sense) => Answer::CarryOut,
        HypervisorRequest::Connector(DrcIndex(index), _) if index == FIRST_INDEX + 10 => {
            Answer::Status(-1)
        }
        _ => Answer::CarryOut,
    });
}

/// A section of eight LMBs holds its own descriptors. The request removes its first LMB, but cannot
/// remove its third LMB.
#[test]
fn the_remaining_lmbs_of_a_section_get_new_descriptors() {
    with_own_descriptors(|partition| {
        let own_descriptor_ranges = |partition: &Partition<'_, '_>| {
            partition
                .hotplug
                .frames()
                .metadata()
                .filter(|metadata| metadata.frames.frames() == 512)
                .count()
        };
        assert_eq!(own_descriptor_ranges(partition), 1);
        fail_calls_of_third_lmb(partition);
        let removed = partition.begin(movable_request(REMOVE, FIRST_SECTION), Budget::UNLIMITED);
        assert!(matches!(removed, Progress::Ready(Err(_))), "{removed:?}");
        assert_eq!(own_descriptor_ranges(partition), 0);
        let first_pfn =
            |lmb: u64| Pfn::new(lmb * LMB_BYTES / 4096).expect("the number is below the limit");
        let state = partition.hotplug.state_at(first_pfn(8), first_pfn(16));
        assert_eq!((state.0.frames(), state.1), (LMB_BYTES / 4096 * 8, State::OnlineMovable));
        // Remove the rest of the section, and then add both sections.
        partition.end_script_and_count_calls();
        for (change, selection) in [(REMOVE, FIRST_SECTION), (ADD, LmbSelection::Count(16))] {
            let summary = partition.begin(movable_request(change, selection), Budget::UNLIMITED);
            assert!(matches!(summary, Progress::Ready(Ok(_))), "{summary:?}");
        }
        assert_eq!(own_descriptor_ranges(partition), 2);
        // A request by count skips the LMB whose calls fail, and removes LMBs elsewhere. The LMBs of
        // its section that remain stay in their zone.
        fail_calls_of_third_lmb(partition);
        let summary =
            partition.begin(movable_request(REMOVE, LmbSelection::Count(8)), Budget::UNLIMITED);
        assert!(matches!(summary, Progress::Ready(Ok(_))), "{summary:?}");
        assert_eq!(
            partition.hotplug.state_at(first_pfn(10), first_pfn(11)).1,
            State::OnlineMovable
        );
        partition.hotplug.frames().validated().expect("the engine is consistent");
    });
}

/// As in the previous test, but no memory is free for new descriptors. The remaining LMBs of the
/// section are reported, and stay assigned.
#[test]
fn the_remaining_lmbs_of_a_section_without_descriptors_are_reported() {
    for selection in [FIRST_SECTION, LmbSelection::Count(8)] {
        with_own_descriptors(|partition| {
            if let LmbSelection::Count(_) = selection {
                let added = partition
                    .begin(movable_request(ADD, LmbSelection::Count(8)), Budget::UNLIMITED);
                assert!(matches!(added, Progress::Ready(Ok(_))), "{added:?}");
            }
            fail_calls_of_third_lmb(partition);
            partition.kernel.tables_per_lmb_after_unmap = Some(1 << 20);
            let removed = partition.begin(movable_request(REMOVE, selection), Budget::UNLIMITED);
            let unrestored = match removed {
                // Two LMBs of the first section and six of the second were removed. The first LMB of
                // the second section was not removed, because it holds the descriptors of the last
                // LMB of that section, which was not removed either.
                Progress::Ready(Ok(summary)) if selection != FIRST_SECTION => {
                    assert_eq!((summary.lmbs, summary.skipped, summary.lost), (8, 2, 0));
                    summary.unrestored
                }
                // LMBs 8 and 9 were removed, and acquired again, without memory for their descriptors.
                Progress::Ready(Err(failure)) if selection == FIRST_SECTION => {
                    assert_eq!(failure.lost, 0);
                    failure.unrestored - 2
                }
                progress => panic!("{progress:?}"),
            };
            assert_eq!(unrestored, 6);
            for refused in partition
                .refused_lmbs
                .iter()
                .filter(|refused| refused.final_state != FinalState::AsItWas)
            {
                assert_eq!(refused.final_state, FinalState::Unrestored);
                assert!(matches!(refused.error, Error::Add(AddError::NoTables { .. })));
            }
            // The table agrees with the connectors.
            let connectors = (8..24).zip(partition.hypervisor.connectors());
            for (index, connector) in connectors {
                let lmb = partition
                    .dlpar
                    .table()
                    .by_index(DrcIndex(FIRST_INDEX + index))
                    .expect("the table has an LMB with this connector");
                let assigned = lmb.flags & FLAG_ASSIGNED != 0;
                assert_eq!(connector.is_usable && !connector.is_isolated, assigned, "{index}");
            }
            // When memory for descriptors is free again, the LMBs can be added.
            partition.kernel.tables_per_lmb = 0;
            partition.kernel.tables_per_lmb_after_unmap = None;
            let Partition { dlpar, hotplug, kernel, .. } = partition;
            dlpar
                .table()
                .adopt(hotplug, kernel, OnlineType::Movable)
                .expect("memory is free for metadata");
            for (range, _) in dlpar.table().assigned() {
                let state = hotplug.state_at(range.start(), range.end());
                assert_eq!(state, (range, State::OnlineMovable));
            }
        });
    }
}

/// A removal of a section fails in the middle of the section. The memory that stays has a poisoned
/// frame, which must be neither forgotten nor allocated.
#[test]
fn a_failed_removal_forgets_no_poisoned_frame() {
    for has_own_descriptors in [false, true] {
        with_two_sections(has_own_descriptors, |partition| {
            // A frame in the middle of LMB 12, which is not the first LMB that stays.
            let bad = Pfn::new(12 * LMB_BYTES / 4096 + 700).unwrap();
            assert_eq!(partition.hotplug.poison(bad), Ok(Poisoned::Quarantined));
            fail_calls_of_third_lmb(partition);
            let removed =
                partition.begin(movable_request(REMOVE, FIRST_SECTION), Budget::UNLIMITED);
            assert!(matches!(removed, Progress::Ready(Err(_))), "{removed:?}");
            partition.end_script_and_count_calls();
            let frames = partition.hotplug.frames();
            assert!(frames.poisoned().eq([(bad, Poisoned::Quarantined)]));
            let taken = frames.alloc(AllocRequest::frames(1).movable().at(bad));
            assert!(matches!(taken, Err(AllocError::NotFree(_))), "{taken:?}");
            // The rest of the LMB is online again.
            let lmb = PfnRange::from_bytes(12 * LMB_BYTES, Bytes(LMB_BYTES)).unwrap();
            let state = partition.hotplug.state_at(lmb.start(), lmb.end());
            assert_eq!(state, (lmb, State::OnlineMovable));
            assert_eq!(frames.validated().unwrap().poisoned, 1);
        });
    }
}
