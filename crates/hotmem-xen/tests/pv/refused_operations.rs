//! Tests operations that Xen or the kernel refuses.

use super::*;
use std::cell::Cell;

/// A kernel whose direct map does not map one of its tables.
struct TableNotInDirectMap<'x> {
    xen: &'x Xen,
    table: Pfn,
}

impl Tables for TableNotInDirectMap<'_> {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        Tables::table(&self.xen, frame)
    }
}

impl MachineTables for TableNotInDirectMap<'_> {
    fn direct_map_entry(&self, frame: Pfn) -> Option<(EntryAddr, Entry)> {
        self.xen.direct_map_entry(frame).filter(|_| frame != self.table)
    }

    fn grace_period(&self) {
        self.xen.grace_period();
    }
}

#[test]
fn a_teardown_is_refused_if_a_table_is_not_in_the_direct_map() {
    let xen = Xen::new(64);
    let (space, map) = map_pages(&xen, 3 * 512, true);
    let table = xen.find(space, LARGE_PAGE_BYTES).unwrap().table();
    let reason = StopReason::Mmu(Fault::NotMapped(table));
    let config = Config { pins_l1: true, ..CONFIG };
    let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
    let mut owner = RecordingOwner::new(&xen);
    let tables = TableNotInDirectMap { xen: &xen, table };
    let mmu = XenPv::new(&xen, tables, config, &mut buffer);
    let result = PageTables::new(mmu, space, &mut batch).teardown(&mut owner);
    assert_eq!(result, Err(Stopped { address: 0, reason, is_flushed: false }));
    assert_eq!((owner.pages(), owner.freed_tables), (vec![], 0));
    with_tables(&xen, space, config, |tables| tables.teardown(&mut owner)).unwrap();
    assert_eq!((owner.pages(), owner.freed_tables), (map.into_iter().collect(), 6));
}

/// A kernel that gives access to one of its tables only a limited number of times.
struct LimitedAccess<'x> {
    xen: &'x Xen,
    table: Pfn,
    accesses_left: Cell<u32>,
}

impl Tables for LimitedAccess<'_> {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        let remaining = self.accesses_left.get();
        if frame == self.table {
            self.accesses_left.set(remaining.saturating_sub(1));
        }
        Tables::table(&self.xen, frame).filter(|_| frame != self.table || remaining > 0)
    }
}

impl MachineTables for LimitedAccess<'_> {
    fn direct_map_entry(&self, frame: Pfn) -> Option<(EntryAddr, Entry)> {
        self.xen.direct_map_entry(frame)
    }

    fn grace_period(&self) {
        self.xen.grace_period();
    }
}

#[test]
fn pages_whose_cleared_entries_cannot_be_read_count_as_dirty() {
    let xen = Xen::new(64);
    let (space, map) = map_pages(&xen, 4, false);
    let table = xen.find(space, 0).unwrap().table();
    let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
    let mut owner = RecordingOwner::new(&xen);
    // The walk accesses the table two times: to read its entries, and to find no further entry.
    let tables = LimitedAccess { xen: &xen, table, accesses_left: Cell::new(2) };
    let mmu = XenPv::new(&xen, tables, CONFIG, &mut buffer);
    let mut tables = PageTables::new(mmu, space, &mut batch);
    let unmapped = tables.unmap_range(range(0, 64 * PAGE_BYTES), KEEP_TABLES, &mut owner);
    let reason = StopReason::Mmu(Fault::NotMapped(table));
    assert_eq!(unmapped, Err(Stopped { address: 4 * PAGE_BYTES, reason, is_flushed: true }));
    let used = |(addr, entry): (u64, Entry)| {
        (addr, if entry.has_final_flags() { entry } else { entry.with(Flags::ACCESSED_DIRTY) })
    };
    assert_eq!(owner.pages(), map.into_iter().map(used).collect::<Vec<_>>());
}

#[test]
fn a_table_that_cannot_be_searched_for_grants_is_not_unhooked() {
    let xen = Xen::new(64);
    let (space, _) = map_pages(&xen, 512, false);
    let table = xen.find(space, 0).unwrap().table();
    let before = xen.used_frames();
    let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
    let mut owner = RecordingOwner::new(&xen);
    // The walk accesses the table one time, when it decides to unhook the table.
    let tables = LimitedAccess { xen: &xen, table, accesses_left: Cell::new(1) };
    let mmu = XenPv::new(&xen, tables, with_grants(), &mut buffer);
    let mut tables = PageTables::new(mmu, space, &mut batch);
    let unmapped = tables.unmap_range(range(0, LARGE_PAGE_BYTES), Unmap::default(), &mut owner);
    let reason = StopReason::Mmu(Fault::NotMapped(table));
    assert_eq!(unmapped, Err(Stopped { address: 0, reason, is_flushed: true }));
    assert_eq!((owner.pages(), owner.freed_tables, xen.used_frames()), (vec![], 0, before));
}

#[test]
fn all_bits_of_entries_with_kernel_data_are_cleared() {
    let xen = Xen::new(64);
    let (space, _) = map_pages(&xen, 4, false);
    let kernel_data = Entry::from_bits(0x6a);
    assert!(xen.put(space, 9 * PAGE_BYTES, kernel_data, false));
    let mut owner = RecordingOwner::new(&xen);
    with_tables(&xen, space, CONFIG, |mut tables| {
        tables.unmap_range(range(0, 64 * PAGE_BYTES), KEEP_TABLES, &mut owner)
    })
    .unwrap();
    assert_eq!(owner.pages()[4], (9 * PAGE_BYTES, kernel_data));
    assert_eq!(xen.entry(xen.find(space, 9 * PAGE_BYTES).unwrap()), Entry::from_bits(0));
    let residue = xen.entry(xen.find(space, PAGE_BYTES).unwrap());
    assert_eq!(
        residue.bits(),
        Flags::ACCESSED.bits(),
        "Accessed and Dirty of a page stay, and the entry counts as empty"
    );
    assert!(residue.is_empty());
}

#[test]
fn an_unmap_stops_at_a_grant_after_unmapping_the_pages_before_it() {
    let xen = Xen::new(64);
    let (space, map) = map_pages(&xen, 20, false);
    let frame = xen.take_frame();
    let granted = Entry::new(frame, Flags::PRESENT | GRANT);
    xen.put(space, 20 * PAGE_BYTES, granted, false);
    xen.put(space, 21 * PAGE_BYTES, Entry::new(frame, Flags::PRESENT), false);
    let mut owner = RecordingOwner::new(&xen);
    let config = Config { batch: 8, ..with_grants() };
    let stopped = with_tables(&xen, space, config, |mut tables| {
        tables.unmap_range(range(0, 64 * PAGE_BYTES), KEEP_TABLES, &mut owner)
    })
    .unwrap_err();
    let addr = xen.find(space, 20 * PAGE_BYTES).unwrap();
    let reason = StopReason::Mmu(Fault::GrantMapped { at: addr, entry: granted });
    assert_eq!(stopped, Stopped { address: 20 * PAGE_BYTES, reason, is_flushed: true });
    assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
    assert_eq!(xen.entry(addr), granted);
}

#[test]
fn a_table_with_a_grant_is_not_unhooked_and_an_address_space_with_one_is_not_torn_down() {
    for pins_l1 in [false, true] {
        let xen = Xen::new(64);
        let (space, map) = map_pages(&xen, 3 * 512, pins_l1);
        let granted = Entry::new(xen.take_frame(), Flags::PRESENT | GRANT);
        xen.put(space, 4 * LARGE_PAGE_BYTES - PAGE_BYTES, granted, pins_l1);
        // In an entry that is not present, the flag does not mark a grant.
        let kernel_data = Entry::from_bits(GRANT.bits());
        xen.put(space, 3 * LARGE_PAGE_BYTES, kernel_data, pins_l1);
        let (before, addr) =
            (xen.used_frames(), xen.find(space, 4 * LARGE_PAGE_BYTES - PAGE_BYTES).unwrap());
        let reason = StopReason::Mmu(Fault::GrantMapped { at: addr, entry: granted });
        let mut owner = RecordingOwner::new(&xen);
        let config = Config { pins_l1, ..with_grants() };
        xen.hypercalls.set(0);
        let result = with_tables(&xen, space, config, |tables| tables.teardown(&mut owner));
        assert_eq!(result, Err(Stopped { address: 0, reason, is_flushed: false }));
        assert_eq!((xen.hypercalls.get(), owner.pages()), (0, vec![]));
        let stopped = with_tables(&xen, space, config, |mut tables| {
            tables.unmap_range(range(0, 5 * LARGE_PAGE_BYTES), Unmap::default(), &mut owner)
        });
        assert_eq!(
            stopped,
            Err(Stopped { address: 3 * LARGE_PAGE_BYTES, reason, is_flushed: true })
        );
        assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
        assert_eq!((owner.freed_tables, before - xen.used_frames()), (3, 3));
        let remaining = [3 * LARGE_PAGE_BYTES, 4 * LARGE_PAGE_BYTES - PAGE_BYTES]
            .map(|virt| xen.entry(xen.find(space, virt).unwrap()));
        assert_eq!(remaining, [kernel_data, granted]);
    }
}

#[test]
fn l1_tables_that_are_not_pinned_are_freed_by_an_unmap() {
    for pinned in [[false; 3], [true, true, false], [false, true, true]] {
        let xen = Xen::new(64);
        let (space, map) = map_pages(&xen, 3 * 512, false);
        for (table, _) in (0..).zip(pinned).filter(|(_, pinned)| *pinned) {
            let table = xen.find(space, table * LARGE_PAGE_BYTES).unwrap().table();
            (&xen).mmuext_op(&[MmuExtOp::pin(Level::L1, table).unwrap()]).unwrap();
        }
        let mut owner = RecordingOwner::new(&xen);
        let config = Config { pins_l1: true, ..CONFIG };
        with_tables(&xen, space, config, |mut tables| {
            tables.unmap_range(range(0, 3 * LARGE_PAGE_BYTES), Unmap::default(), &mut owner)
        })
        .unwrap();
        assert_eq!((owner.freed_tables, owner.stuck_tables), (3, 0));
        assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
    }
}

/// A hypervisor that refuses to unpin.
struct NoUnpinning<'x>(&'x Xen);

impl Hypervisor for NoUnpinning<'_> {
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), BatchRefused> {
        self.0.mmu_update(updates, owner)
    }

    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), BatchRefused> {
        self.0.mmuext_op(ops)
    }

    fn mmuext_op_then_update(
        &mut self,
        _: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), BatchRefused>, Result<(), BatchRefused>) {
        (
            Err(BatchRefused { entries_done: 0, errno: Errno::EPERM }),
            self.0.mmu_update(updates, DomId::SELF),
        )
    }
}

#[test]
fn a_refused_unpinning_is_an_error_and_the_owner_receives_all_unmapped_pages() {
    for (pins_l1, purpose, errno) in [
        (false, HypercallPurpose::Unpin, Errno::EPERM),
        (true, HypercallPurpose::Remap, Errno::EBUSY),
    ] {
        let xen = Xen::new(64);
        let (space, map) = map_pages(&xen, 3 * 512, pins_l1);
        let mut owner = RecordingOwner::new(&xen);
        let config = Config { pins_l1: true, ..CONFIG };
        let (mut batch, mut buffer) = (Box::new(Batch::new()), Box::new(HypercallBuffer::new()));
        let mmu = XenPv::new(NoUnpinning(&xen), &xen, config, &mut buffer);
        let stopped = PageTables::new(mmu, space, &mut batch).unmap_range(
            range(0, 2 * LARGE_PAGE_BYTES),
            Unmap::default(),
            &mut owner,
        );
        // Xen does not make a pinned table writable, so with pinned tables the remap fails as well. Its
        // error takes precedence over that of the unpinning.
        let reason = StopReason::Mmu(Fault::Refused { purpose, errno });
        assert_eq!(
            stopped,
            Err(Stopped { address: 2 * LARGE_PAGE_BYTES, reason, is_flushed: true })
        );
        let (freed, stuck) = if pins_l1 { (0, 2) } else { (2, 0) };
        assert_eq!((owner.freed_tables, owner.stuck_tables), (freed, stuck));
        assert_eq!(owner.pages(), map.into_iter().take(1024).collect::<Vec<_>>());
    }
}

#[test]
fn a_teardown_that_is_refused_in_the_middle_can_be_repeated() {
    // A teardown unpins the root (and three L1 tables), and then remaps three L1 tables and the
    // three tables above them.
    for (pins_l1, operations) in [(false, 1 + 6), (true, 4 + 6)] {
        for refused_after in 0..operations {
            let xen = Xen::new(64);
            let (space, map) = map_pages(&xen, 3 * 512, pins_l1);
            let mut owner = RecordingOwner::new(&xen);
            let config = Config { pins_l1, ..CONFIG };
            xen.refuse_after.set(Some(refused_after));
            let result = with_tables(&xen, space, config, |tables| tables.teardown(&mut owner));
            assert!(
                result.is_err_and(|stopped| stopped.address == 0),
                "{refused_after}: {result:?}"
            );
            assert_eq!((owner.pages(), owner.freed_tables, owner.stuck_tables), (vec![], 0, 0));
            xen.refuse_after.set(None);
            with_tables(&xen, space, config, |tables| tables.teardown(&mut owner)).unwrap();
            assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
            assert_eq!((owner.freed_tables, owner.stuck_tables), (6, 0));
        }
    }
}

#[test]
fn a_hypercall_that_stops_in_the_middle_reports_its_first_part() {
    let pages = 1024;
    for batch in [1, 100, 512] {
        for refused_after in [0, 1, 99, 100, 511, 512, 777, 1023] {
            let xen = Xen::new(64);
            let (space, map) = map_pages(&xen, pages, false);
            let mut owner = RecordingOwner::new(&xen);
            xen.refuse_after.set(Some(refused_after));
            let config = Config { batch, ..CONFIG };
            let stopped = with_tables(&xen, space, config, |mut tables| {
                tables.unmap_range(range(0, pages * PAGE_BYTES), KEEP_TABLES, &mut owner)
            })
            .unwrap_err();
            let refused =
                Fault::Refused { purpose: HypercallPurpose::MmuUpdate, errno: Errno::EINVAL };
            // The model refuses all further calls, so it also refuses the flush of the first part.
            let is_flushed = refused_after == 0;
            assert_eq!(
                stopped,
                Stopped {
                    address: refused_after * PAGE_BYTES,
                    reason: StopReason::Mmu(refused),
                    is_flushed
                }
            );
            let (unmapped, remaining): (Vec<_>, Vec<_>) =
                map.into_iter().partition(|(virt, _)| *virt < refused_after * PAGE_BYTES);
            assert_eq!(owner.pages(), unmapped);
            assert!(
                remaining
                    .iter()
                    .all(|(virt, entry)| { xen.entry(xen.find(space, *virt).unwrap()) == *entry })
            );
        }
    }
}

#[test]
fn tables_that_xen_refuses_to_remap_are_not_freed() {
    // Xen clears the entries of two tables and flushes, and then refuses to remap the first table.
    let xen = Xen::new(64);
    let (space, map) = map_pages(&xen, 1024, false);
    let mut owner = RecordingOwner::new(&xen);
    xen.refuse_after.set(Some(3));
    let stopped = with_tables(&xen, space, CONFIG, |mut tables| {
        tables.unmap_range(range(0, 2 * LARGE_PAGE_BYTES), Unmap::default(), &mut owner)
    })
    .unwrap_err();
    let refused = Fault::Refused { purpose: HypercallPurpose::Remap, errno: Errno::EINVAL };
    assert_eq!(
        stopped,
        Stopped {
            address: 2 * LARGE_PAGE_BYTES,
            reason: StopReason::Mmu(refused),
            is_flushed: true
        }
    );
    assert_eq!((owner.freed_tables, owner.stuck_tables), (0, 2));
    assert_eq!(owner.pages(), map.into_iter().collect::<Vec<_>>());
}
