//! Tests requests that succeed, and requests that are invalid.

use crate::common::Entry;
use crate::partition::{
    FIRST_INDEX, HOTPLUG_LMBS, LMB_BYTES, Partition, lmbs, movable_request, with_lmbs,
    with_partition,
};
use hotmem::{AddError, AllocRequest, Budget, NodeId, OnlineType, PfnRange, State, Zone};
use hotmem_dlpar::hypervisor::Answer;
use hotmem_dlpar::*;

pub(crate) const ADD: Change = Change::Add;
pub(crate) const REMOVE: Change = Change::Remove;

pub(crate) fn drc_index(nth: u32) -> DrcIndex {
    DrcIndex(FIRST_INDEX + nth)
}

pub(crate) fn lmb_range(nth: usize) -> PfnRange {
    lmbs()[nth].1
}

pub(crate) fn lmb_set(all: impl IntoIterator<Item = u64>) -> std::collections::BTreeSet<u64> {
    all.into_iter().collect()
}

#[test]
fn a_request_by_count_starts_at_the_lowest_address() {
    with_partition(|partition| {
        let summary =
            partition.request(ADD, LmbSelection::Count(6)).expect("enough LMBs are available");
        // LMB 3 is reserved, and LMBs 7 and 8 are assigned already. The added LMBs are on nodes 0 and
        // 1.
        assert_eq!(partition.assigned(), lmb_set([0, 1, 2, 4, 5, 6, 7, 8, 16, 17, 18, 19]));
        assert_eq!(
            (summary.lmbs, summary.ranges, summary.skipped, summary.misplaced),
            (6, 3, 0, 0)
        );
        assert_eq!(partition.hypervisor.updates(), 1);
        let summary =
            partition.request(REMOVE, LmbSelection::Count(8)).expect("enough LMBs are available");
        assert_eq!(partition.assigned(), lmb_set(16..20));
        assert_eq!((summary.lmbs, summary.skipped), (8, 0));
        assert_eq!(partition.hypervisor.updates(), 2);
    });
}

#[test]
fn all_memory_is_added_removed_and_added_again() {
    with_partition(|partition| {
        for _ in 0..3 {
            // Two LMBs are reserved, and six are assigned at boot.
            let free = HOTPLUG_LMBS as u32 - 2 - 6;
            partition.request(ADD, LmbSelection::Count(free)).expect("enough LMBs are available");
            assert_eq!(partition.assigned().len() as u64, HOTPLUG_LMBS - 2);
            partition
                .request(REMOVE, LmbSelection::Count(HOTPLUG_LMBS as u32 - 2))
                .expect("enough LMBs are available");
            assert_eq!(partition.assigned().len(), 0);
            partition
                .request(ADD, LmbSelection::Range { first: drc_index(16), count: 4 })
                .expect("the LMBs are available");
            partition
                .request(ADD, LmbSelection::Range { first: drc_index(7), count: 2 })
                .expect("the LMBs are available");
        }
    });
}

#[test]
fn a_request_by_index_changes_one_lmb() {
    with_partition(|partition| {
        partition.request(ADD, LmbSelection::Index(drc_index(20))).expect("the LMB is available");
        assert!(partition.assigned().contains(&20));
        let again = partition
            .request(ADD, LmbSelection::Index(drc_index(20)))
            .expect_err("the LMB is assigned");
        assert_eq!(again.error, Error::Assigned(drc_index(20)));
        partition.request(REMOVE, LmbSelection::Index(drc_index(20))).expect("the LMB is assigned");
        let again = partition
            .request(REMOVE, LmbSelection::Index(drc_index(20)))
            .expect_err("the LMB is not assigned");
        assert_eq!(again.error, Error::NotAssigned(drc_index(20)));
    });
}

#[test]
fn a_request_by_range_skips_lmbs_in_the_requested_state() {
    with_partition(|partition| {
        let summary = partition
            .request(ADD, LmbSelection::Range { first: drc_index(4), count: 10 })
            .expect("the memory is free");
        assert_eq!(summary.lmbs, 8);
        assert_eq!(partition.assigned(), lmb_set((4..14).chain(16..20)));
        let summary = partition
            .request(ADD, LmbSelection::Range { first: drc_index(4), count: 10 })
            .expect("all LMBs are assigned");
        assert_eq!((summary.lmbs, partition.hypervisor.updates()), (0, 1));
        let range = LmbSelection::Range { first: drc_index(15), count: 4 };
        assert_eq!(partition.request(REMOVE, range).expect("the LMBs are assigned").lmbs, 3);
        assert_eq!(partition.assigned(), lmb_set((4..14).chain(19..20)));
    });
}

#[test]
fn memory_is_added_to_the_node_of_its_lmb() {
    with_partition(|partition| {
        partition
            .request(ADD, LmbSelection::Count(HOTPLUG_LMBS as u32 - 8))
            .expect("enough LMBs are available");
        let node = |nth: usize| {
            let range = lmbs()[nth].1;
            let blocks = partition.hotplug.memory_blocks(1);
            let mut blocks_of_lmb = blocks.filter(|block| block.range.overlaps(range));
            let by_engine = blocks_of_lmb.next().map(|block| block.node.0);
            let by_table =
                partition.dlpar.table().node_at(range.start().phys_addr()).map(|node| node.0);
            (by_engine, by_table)
        };
        // LMB 13 is on a node that the lookup arrays did not contain. The associativity index of LMB 5
        // is marked as invalid, so its node is not known.
        for (nth_lmb, expected) in [(0, 0), (2, 0), (6, 1), (12, 1), (15, 2), (23, 2)] {
            assert_eq!(node(nth_lmb).1, Some(expected), "{nth_lmb}");
        }
        assert_eq!(node(5).1, None);
        assert_eq!(node(13).1, Some(3));
        let online = |node| {
            let node = NodeId(node);
            Zone::ALL.map(|zone| partition.hotplug.zone(node, zone).online).iter().sum::<u64>()
        };
        let lmbs_of = |node| online(node) * 4096 / LMB_BYTES;
        assert_eq!([lmbs_of(0), lmbs_of(1), lmbs_of(2), lmbs_of(3)], [4 + 5, 7, 9, 1]);
        let with_new_node = crate::common::arrays(&[0, 1, 2, 3]);
        assert_eq!(crate::common::bytes(partition.dlpar.table().lookup_arrays()), with_new_node);
    });
}

/// Eight LMBs of two nodes share a section (128 MiB).
#[test]
fn all_memory_of_a_section_is_on_the_node_of_its_first_added_lmb() {
    let entry = |nth: u32| Entry {
        address: u64::from(nth) * LMB_BYTES,
        index: FIRST_INDEX + nth,
        reserved: 0,
        aa_index: u32::from(nth >= 12),
        flags: 0,
    };
    let all: Vec<_> = (8..16).map(entry).collect();
    let halves = [(8, 0), (12, 1)].map(|(nth, node)| (drc_index(nth), node));
    for [first, second] in [halves, [halves[1], halves[0]]] {
        with_lmbs(
            &all,
            |nth| u32::from(nth >= 4),
            |partition| {
                let online = |partition: &Partition<'_, '_>, node| {
                    let node = NodeId(node);
                    let zones = Zone::ALL.map(|zone| partition.hotplug.zone(node, zone).online);
                    zones.iter().sum::<u64>()
                };
                let nodes = [first.1, second.1];
                let before = nodes.map(|node| online(partition, node));
                for (half, misplaced) in [(first, 0), (second, 4)] {
                    let selection = LmbSelection::Range { first: half.0, count: 4 };
                    let progress =
                        partition.begin(movable_request(ADD, selection), Budget::UNLIMITED);
                    let Progress::Ready(Ok(summary)) = progress else { panic!("{progress:?}") };
                    assert_eq!((summary.lmbs, summary.misplaced), (4, misplaced));
                }
                let after = [before[0] + 8 * LMB_BYTES / 4096, before[1]];
                assert_eq!(nodes.map(|node| online(partition, node)), after);
            },
        );
    }
}

#[test]
fn neighbouring_lmbs_of_a_node_are_added_as_one_range() {
    with_partition(|partition| {
        partition.announce();
        let summary = partition
            .request(ADD, LmbSelection::Range { first: drc_index(20), count: 4 })
            .expect("the memory is free");
        assert_eq!((summary.lmbs, summary.ranges), (4, 1));
        // The four LMBs and the four LMBs below them form one run.
        let start = lmb_range(16).start();
        let (run, state) = partition.hotplug.state_at(start, lmb_range(23).end());
        assert_eq!((run.frames(), state), (8 * LMB_BYTES / 4096, State::OnlineMovable));
    });
}

#[test]
fn invalid_requests_change_nothing() {
    let refused = [
        (ADD, LmbSelection::Count(0), Error::Zero),
        (REMOVE, LmbSelection::Count(0), Error::Zero),
        (ADD, LmbSelection::Range { first: drc_index(0), count: 0 }, Error::Zero),
        (ADD, LmbSelection::Count(17), Error::NotEnough { wanted: 17, available: 16 }),
        (ADD, LmbSelection::Count(u32::MAX), Error::NotEnough { wanted: u32::MAX, available: 16 }),
        (REMOVE, LmbSelection::Count(7), Error::NotEnough { wanted: 7, available: 6 }),
        (ADD, LmbSelection::Index(DrcIndex(0)), Error::Unknown(DrcIndex(0))),
        (ADD, LmbSelection::Index(drc_index(24)), Error::Unknown(drc_index(24))),
        (REMOVE, LmbSelection::Index(DrcIndex(u32::MAX)), Error::Unknown(DrcIndex(u32::MAX))),
        (ADD, LmbSelection::Index(drc_index(3)), Error::Reserved { address: 7 * LMB_BYTES }),
        (REMOVE, LmbSelection::Index(drc_index(3)), Error::Reserved { address: 7 * LMB_BYTES }),
        (ADD, LmbSelection::Index(drc_index(7)), Error::Assigned(drc_index(7))),
        (REMOVE, LmbSelection::Index(drc_index(0)), Error::NotAssigned(drc_index(0))),
        (
            ADD,
            LmbSelection::Range { first: drc_index(0), count: 5 },
            Error::Reserved { address: 7 * LMB_BYTES },
        ),
        (
            REMOVE,
            LmbSelection::Range { first: drc_index(20), count: 5 },
            Error::BeyondTable { first: drc_index(20), count: 5, there: 4 },
        ),
        (
            ADD,
            LmbSelection::Range { first: drc_index(20), count: u32::MAX },
            Error::BeyondTable { first: drc_index(20), count: u32::MAX, there: 4 },
        ),
    ];
    with_partition(|partition| {
        for (change, selection, error) in refused {
            let before = partition.snapshot();
            partition.end_script_and_count_calls();
            let failure = partition.request(change, selection).expect_err("the request is invalid");
            assert_eq!(
                (failure.error, partition.end_script_and_count_calls()),
                (error, 0),
                "{selection:?}"
            );
            assert_eq!(partition.snapshot(), before, "{selection:?}");
        }
    });
}

#[test]
fn a_request_is_refused_while_another_request_is_open() {
    with_partition(|partition| {
        partition.script(|call, _| if call == 0 { Answer::Status(BUSY) } else { Answer::CarryOut });
        let first = movable_request(ADD, LmbSelection::Count(2));
        assert!(matches!(partition.begin(first, Budget::UNLIMITED), Progress::Pending(_)));
        let refused = partition.dlpar.begin(movable_request(REMOVE, LmbSelection::Count(2)));
        assert_eq!(refused, Err(Error::InProgress(first)));
        assert!(partition.poll_to_end(Budget::UNLIMITED, |_| false).is_ok());
        assert!(partition.request(REMOVE, LmbSelection::Count(2)).is_ok());
    });
}

/// A request on a busy hypervisor: two of three calls are busy, and each poll has a small budget.
#[test]
fn busy_hypervisors_and_small_budgets_do_not_change_the_result() {
    let outcome = |is_busy: bool, partition: &mut Partition<'_, '_>| {
        let mut waits = Vec::new();
        if is_busy {
            partition.script(|call, _| match call % 3 {
                0 => Answer::Status(BUSY),
                1 => Answer::Status(9902),
                _ => Answer::CarryOut,
            });
        }
        let budget = if is_busy { Budget { pageblocks: 1 } } else { Budget::UNLIMITED };
        for (change, selection) in [
            (ADD, LmbSelection::Count(9)),
            (REMOVE, LmbSelection::Count(4)),
            (ADD, LmbSelection::Range { first: drc_index(4), count: 8 }),
            (REMOVE, LmbSelection::Index(drc_index(19))),
        ] {
            let summary = partition.run(movable_request(change, selection), budget, |wait| {
                waits.push(wait);
                false
            });
            assert!(summary.is_ok());
        }
        assert_eq!(is_busy, !waits.is_empty());
        let delay = |wait: &Wait| match *wait {
            Wait::Connector { milliseconds, .. } | Wait::Update { milliseconds } => milliseconds,
            Wait::Memory(_) | Wait::OtherInstance => panic!("{wait:?}"),
        };
        assert!(waits.iter().map(delay).all(|delay| delay == 0 || delay == 100));
        (partition.snapshot(), partition.hypervisor.property().to_vec())
    };
    let undisturbed = with_partition(|partition| outcome(false, partition));
    let disturbed = with_partition(|partition| outcome(true, partition));
    assert_eq!(undisturbed, disturbed);
}

#[test]
fn the_list_of_assigned_lmbs_is_written_once() {
    with_partition(|partition| {
        partition.request(ADD, LmbSelection::Count(3)).expect("enough LMBs are available");
        assert_eq!(partition.hypervisor.property(), partition.snapshot().property);
        let size = partition.dlpar.table().lmb_size();
        let memory = DynamicMemory::parse(Version::V2, partition.hypervisor.property(), size);
        let assigned =
            memory.expect("the value is valid").sets().filter(|set| set.flags & FLAG_ASSIGNED != 0);
        assert_eq!(assigned.map(|set| set.lmbs).sum::<u32>(), 6 + 3);
        partition.request(REMOVE, LmbSelection::Count(100)).expect_err("too few LMBs are assigned");
        assert_eq!(partition.hypervisor.updates(), 1);
    });
}

/// If all frames are allocated one by one, the bitmaps of a section are made in its own first LMB, and
/// stay there.
#[test]
fn metadata_in_an_lmb_is_removed_with_the_lmbs_that_it_describes() {
    for budget in [Budget { pageblocks: 1 }, Budget { pageblocks: 100 }, Budget::UNLIMITED] {
        for selection in
            [LmbSelection::Range { first: drc_index(16), count: 4 }, LmbSelection::Count(6)]
        {
            with_partition(|partition| {
                let frames = partition.hotplug.frames();
                let allocations: Vec<_> =
                    std::iter::from_fn(|| frames.alloc(AllocRequest::frames(1).movable()).ok())
                        .collect();
                drop(allocations);
                let lmb_16 = lmb_range(16);
                let mut metadata = frames.metadata();
                assert!(metadata.any(|metadata| lmb_16.covers(metadata.frames)), "not in LMB 16");
                let summary = partition.run(Request::new(REMOVE, selection), budget, |_| false);
                let lmbs = if matches!(selection, LmbSelection::Count(_)) { 6 } else { 4 };
                assert_eq!(
                    summary.map(|summary| (summary.lmbs, summary.skipped)),
                    Ok((lmbs, 0)),
                    "{budget:?}"
                );
            });
        }
    }
}

#[test]
fn page_tables_of_an_lmb_can_lie_in_lmbs_that_the_same_request_added() {
    with_partition(|partition| {
        partition.announce();
        let frames = partition.hotplug.frames();
        let alloc_all = |request| std::iter::from_fn(move || frames.alloc(request).ok());
        let mut ranges: Vec<_> = alloc_all(AllocRequest::frames(1024)).collect();
        let _single_frames: Vec<_> = alloc_all(AllocRequest::frames(1)).collect();
        drop(ranges.pop().expect("boot memory has a range of this length"));
        partition.kernel.tables_per_lmb = 800;
        let request = Request::add(LmbSelection::Count(10)).online_as(OnlineType::Kernel);
        let summary = partition
            .run(request, Budget::UNLIMITED, |_| false)
            .expect("enough memory is free for page tables");
        assert_eq!(summary.lmbs, 10);
        partition.kernel.tables_per_lmb = 1 << 20;
        let before = partition.snapshot();
        let failure = partition
            .request(ADD, LmbSelection::Index(drc_index(21)))
            .expect_err("too little memory is free for page tables");
        assert!(matches!(failure.error, Error::Add(AddError::NoTables { .. })), "{failure}");
        assert_eq!(partition.snapshot(), before);
    });
}
