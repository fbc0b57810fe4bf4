//! Tests address spaces with one root for the kernel and another for user mode, as 64-bit guests
//! have.

use super::*;

/// The bytes that one entry of the root spans.
const ROOT_ENTRY: u64 = 512 << 30;

/// Maps two pages below each of the first entries of both roots.
fn mapped_below(xen: &Xen, entries: u64, pins_l1: bool) -> (Space, BTreeMap<u64, Entry>) {
    let space = xen.new_space_of_two_roots();
    let frame = xen.frame();
    let mut map = BTreeMap::new();
    for virt in (0..entries).flat_map(|entry| [entry * ROOT_ENTRY, entry * ROOT_ENTRY + LARGE]) {
        let entry = Entry::new(frame, Flags::PRESENT | Flags::USER | Flags::WRITABLE);
        assert!(xen.put(space, virt, entry, pins_l1));
        map.insert(virt, entry);
    }
    (space, map)
}

/// Returns which of the first entries of the roots are in use. Checks that both roots agree.
fn in_both(xen: &Xen, space: Space, entries: usize) -> Vec<bool> {
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
        let before = xen.in_use();
        let (space, map) = mapped_below(&xen, 2, pins_l1);
        let mut notes = Notes::new(&xen);
        let config = Config { pins_l1, ..CONFIG };
        xen.hypercalls.set(0);
        xen.flushes.set(0);
        with(&xen, space, config, |tables| tables.teardown(&mut notes)).unwrap();
        assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
        // Two roots, and four tables below each of two entries.
        assert_eq!((notes.freed, xen.in_use() - before), (2 + 2 * 4, 1));
        assert_eq!(xen.hypercalls.get(), 1);
        assert!(xen.flushes.get() <= 2, "{} flushes", xen.flushes.get());
    }
}

#[test]
fn an_address_space_is_torn_down_only_once_its_user_root_is_unused() {
    let xen = Xen::new(64);
    let (space, map) = mapped_below(&xen, 2, true);
    let mut notes = Notes::new(&xen);
    let config = Config { pins_l1: true, ..CONFIG };
    let user = MmuExtOp::new_user_root(space.user_root.unwrap());
    (&xen).mmuext_op(&[user]).unwrap();
    let torn = with(&xen, space, config, |tables| tables.teardown(&mut notes));
    let busy = Fault::Refused { call: Call::Remap, errno: Errno::EBUSY };
    assert_eq!(torn, Err(Stopped { at: 0, why: Why::Mmu(busy), flushed: false }));
    assert_eq!((notes.pages(), notes.freed), (vec![], 0));
    assert_eq!(in_both(&xen, space, 2), [true, true]);
    xen.set_base(1, None).unwrap();
    with(&xen, space, config, |tables| tables.teardown(&mut notes)).unwrap();
    assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
    assert_eq!(notes.freed, 2 + 2 * 4);
}

#[test]
fn a_table_unhooked_at_the_root_leaves_the_user_root() {
    for (pins_l1, batch) in [(false, 512), (true, 512), (true, 1)] {
        let xen = Xen::new(64);
        let (space, map) = mapped_below(&xen, 3, pins_l1);
        let mut notes = Notes::new(&xen);
        let config = Config { pins_l1, batch, ..CONFIG };
        with(&xen, space, config, |mut tables| {
            tables.unmap_range(range(0, 2 * ROOT_ENTRY), Unmap::default(), &mut notes)
        })
        .unwrap();
        assert_eq!(in_both(&xen, space, 3), [false, false, true]);
        assert_eq!(notes.pages(), map.into_iter().take(4).collect::<Vec<_>>());
        assert_eq!((notes.freed, notes.stuck), (2 * 4, 0));
    }
}

#[test]
fn an_entry_is_in_both_roots_or_in_none_whatever_xen_refuses() {
    for refused_after in 0..4 {
        for refusals in [1, u64::MAX] {
            let xen = Xen::new(64);
            let (space, map) = mapped_below(&xen, 2, false);
            let mut notes = Notes::new(&xen);
            xen.refuse_after.set(Some(refused_after));
            xen.refusals.set(refusals);
            let all = range(0, 2 * ROOT_ENTRY);
            let stopped = with(&xen, space, CONFIG, |mut tables| {
                tables.unmap_range(all, Unmap::default(), &mut notes)
            })
            .unwrap_err();
            let done = refused_after / 2;
            assert_eq!(stopped.at, done * ROOT_ENTRY);
            // If Xen keeps refusing, it also refuses the flush of the completed part.
            let call = if refusals > 1 && done > 0 { Call::Flush } else { Call::MmuUpdate };
            let refused = Fault::Refused { call, errno: Errno::EINVAL };
            if refused_after % 2 == 1 && refusals > 1 {
                // The entry cannot be restored either. That is reported, or found by the next
                // operation.
                let user = EntryAddr::new(space.user_root.unwrap(), usize::try_from(done).unwrap());
                let lost = Fault::LostFromUserRoot(user);
                assert_eq!(stopped.why, Why::Mmu(if done == 0 { lost } else { refused }));
                let again = with(&xen, space, CONFIG, |mut tables| {
                    tables.unmap_range(all, Unmap::default(), &mut notes)
                });
                assert!(matches!(again.unwrap_err().why, Why::RootsDiffer { .. }));
                continue;
            }
            assert_eq!(stopped.why, Why::Mmu(refused));
            let left = [done == 0, true];
            assert_eq!(in_both(&xen, space, 2), left);
            xen.refuse_after.set(None);
            let stuck = notes.stuck;
            with(&xen, space, CONFIG, |mut tables| {
                tables.unmap_range(all, Unmap::default(), &mut notes)
            })
            .unwrap();
            assert_eq!(notes.pages(), map.into_iter().collect::<Vec<_>>());
            assert_eq!(notes.freed + stuck, 2 * 4);
        }
    }
}
