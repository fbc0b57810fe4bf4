//! Tests address spaces with two roots, one for kernel mode and one for user mode. 64-bit guests
//! have such address spaces.

use super::*;

/// The number of bytes that one entry of a root spans.
const ROOT_ENTRY_BYTES: u64 = 512 << 30;

/// Maps two pages below each of the first entries of both roots.
fn map_below_roots(xen: &Xen, entries: u64, pins_l1: bool) -> (Space, BTreeMap<u64, Entry>) {
    let space = xen.new_space_of_two_roots();
    let frame = xen.take_frame();
    let mut map = BTreeMap::new();
    for virt in (0..entries)
        .flat_map(|entry| [entry * ROOT_ENTRY_BYTES, entry * ROOT_ENTRY_BYTES + LARGE_PAGE_BYTES])
    {
        let entry = Entry::new(frame, Flags::PRESENT | Flags::USER | Flags::WRITABLE);
        assert!(xen.put(space, virt, entry, pins_l1));
        map.insert(virt, entry);
    }
    (space, map)
}

/// Returns, for each of the first entries of the roots, whether it is in use. Checks that it is in
/// use in both roots or in none.
fn used_entries(xen: &Xen, space: Space, entries: usize) -> Vec<bool> {
    let entry = |root, index| xen.entry(EntryAddr::new(root, index));
    let user = space.user_root.unwrap();
    (0..entries)
        .map(|index| {
            let (kernel, user) = (entry(space.root, index), entry(user, index));
            assert_eq!(
                kernel.is_empty(),
                user.is_empty(),
                "entry {index} is in use in one root only"
            );
            !kernel.is_empty()
        })
        .collect()
}

#[test]
fn an_address_space_with_two_roots_is_torn_down() {
    for pins_l1 in [false, true] {
        let xen = Xen::new(64);
        let before = xen.used_frames();
        let (space, map) = map_below_roots(&xen, 2, pins_l1);
        let mut owner = RecordingOwner::new(&xen);
        let config = Config { pins_l1, ..CONFIG };
        xen.hypercalls.set(0);
        xen.flushes.set(0);
        with_tables(&xen, space, config, |tables| tables.teardown(&mut owner)).unwrap();
        assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
        // Two roots, and four tables below each of two entries.
        assert_eq!((owner.freed_tables, xen.used_frames() - before), (2 + 2 * 4, 1));
        assert_eq!(xen.hypercalls.get(), 1);
        assert!(xen.flushes.get() <= 2, "{} flushes", xen.flushes.get());
    }
}

#[test]
fn a_teardown_is_refused_while_a_cpu_runs_on_the_user_root() {
    let xen = Xen::new(64);
    let (space, map) = map_below_roots(&xen, 2, true);
    let mut owner = RecordingOwner::new(&xen);
    let config = Config { pins_l1: true, ..CONFIG };
    let user = MmuExtOp::new_user_root(space.user_root.unwrap());
    (&xen).mmuext_op(&[user]).unwrap();
    let result = with_tables(&xen, space, config, |tables| tables.teardown(&mut owner));
    let busy = Fault::Refused { purpose: HypercallPurpose::Remap, errno: Errno::EBUSY };
    assert_eq!(
        result,
        Err(Stopped { address: 0, reason: StopReason::Mmu(busy), is_flushed: false })
    );
    assert_eq!((owner.pages(), owner.freed_tables), (vec![], 0));
    assert_eq!(used_entries(&xen, space, 2), [true, true]);
    xen.set_root(1, None).unwrap();
    with_tables(&xen, space, config, |tables| tables.teardown(&mut owner)).unwrap();
    assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
    assert_eq!(owner.freed_tables, 2 + 2 * 4);
}

#[test]
fn a_table_that_is_unhooked_at_the_root_is_unhooked_in_both_roots() {
    for (pins_l1, batch) in [(false, 512), (true, 512), (true, 1)] {
        let xen = Xen::new(64);
        let (space, map) = map_below_roots(&xen, 3, pins_l1);
        let mut owner = RecordingOwner::new(&xen);
        let config = Config { pins_l1, batch, ..CONFIG };
        with_tables(&xen, space, config, |mut tables| {
            tables.unmap_range(range(0, 2 * ROOT_ENTRY_BYTES), Unmap::default(), &mut owner)
        })
        .unwrap();
        assert_eq!(used_entries(&xen, space, 3), [false, false, true]);
        assert_eq!(owner.pages(), map.into_iter().take(4).collect::<Vec<_>>());
        assert_eq!((owner.freed_tables, owner.stuck_tables), (2 * 4, 0));
    }
}

#[test]
fn an_entry_is_in_both_roots_or_in_none_whatever_xen_refuses() {
    for refused_after in 0..4 {
        for refusals in [1, u64::MAX] {
            let xen = Xen::new(64);
            let (space, map) = map_below_roots(&xen, 2, false);
            let mut owner = RecordingOwner::new(&xen);
            xen.refuse_after.set(Some(refused_after));
            xen.refusals.set(refusals);
            let all = range(0, 2 * ROOT_ENTRY_BYTES);
            let stopped = with_tables(&xen, space, CONFIG, |mut tables| {
                tables.unmap_range(all, Unmap::default(), &mut owner)
            })
            .unwrap_err();
            let entries_done = refused_after / 2;
            assert_eq!(stopped.address, entries_done * ROOT_ENTRY_BYTES);
            // If Xen keeps refusing, it also refuses the flush of the completed part.
            let purpose = if refusals > 1 && entries_done > 0 {
                HypercallPurpose::Flush
            } else {
                HypercallPurpose::MmuUpdate
            };
            let refused = Fault::Refused { purpose, errno: Errno::EINVAL };
            if refused_after % 2 == 1 && refusals > 1 {
                // Xen also refuses to restore the entry of the user's root. This operation reports
                // the lost entry, or the next operation finds it.
                let user = EntryAddr::new(
                    space.user_root.unwrap(),
                    usize::try_from(entries_done).unwrap(),
                );
                let lost = Fault::LostFromUserRoot(user);
                assert_eq!(
                    stopped.reason,
                    StopReason::Mmu(if entries_done == 0 { lost } else { refused })
                );
                let again = with_tables(&xen, space, CONFIG, |mut tables| {
                    tables.unmap_range(all, Unmap::default(), &mut owner)
                });
                assert!(matches!(again.unwrap_err().reason, StopReason::RootsDiffer { .. }));
                continue;
            }
            assert_eq!(stopped.reason, StopReason::Mmu(refused));
            assert_eq!(used_entries(&xen, space, 2), [entries_done == 0, true]);
            xen.refuse_after.set(None);
            let stuck = owner.stuck_tables;
            with_tables(&xen, space, CONFIG, |mut tables| {
                tables.unmap_range(all, Unmap::default(), &mut owner)
            })
            .unwrap();
            assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
            assert_eq!(owner.freed_tables + stuck, 2 * 4);
        }
    }
}
