//! Checks operations that stop because the MMU refuses one of their steps. Each returns the address at
//! which it stopped. The operation is complete below this address, and the owner has received the
//! pages that lie below it.
#![cfg(not(loom))]

mod common;

use common::{
    Arena, KEEP, LARGE_PAGE_BYTES, PAGE_BYTES, RecordingOwner, join_adjacent, mapped_space, pfn,
    range,
};
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::x86_64::{
    Batch, Change, Entry, Flags, LocatedEntry, Space, StopReason, Stopped,
};
use hotmem_pgtable::{
    BatchError, CoveredTables, Flush, Level, Mmu, PageTables, Table, Unmap, X86_64,
};

/// An MMU that changes at most the first `entries` entries. It refuses every `split` and every
/// `retire`. With `refuses_flush` or `refuses_reclaim` set, it also refuses every `flush` or every
/// `reclaim`, which turns unhooked tables into ordinary memory.
struct FailingMmu<M> {
    mmu: M,
    entries: usize,
    refuses_flush: bool,
    refuses_reclaim: bool,
}

impl<M> FailingMmu<M> {
    fn new(mmu: M, entries: usize) -> FailingMmu<M> {
        FailingMmu { mmu, entries, refuses_flush: false, refuses_reclaim: false }
    }

    /// Returns the part of the batch that the MMU changes, and an error if the part is not the
    /// whole batch.
    fn change_first(&mut self, batch: &Batch) -> (Batch, Result<(), BatchError<&'static str>>) {
        let mut first = batch.clone();
        first.truncate(self.entries);
        let entries_done = first.len();
        self.entries -= entries_done;
        let refused = BatchError { entries_done, fault: "refused" };
        (first, if entries_done < batch.len() { Err(refused) } else { Ok(()) })
    }
}

impl<M: Mmu<Format = X86_64>> Mmu for FailingMmu<M> {
    type Format = X86_64;
    type Fault = &'static str;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.mmu.table(frame)
    }

    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), BatchError<&'static str>> {
        let (mut first, result) = self.change_first(batch);
        self.mmu
            .get_and_clear(&mut first)
            .map_err(|_| BatchError { entries_done: 0, fault: "native" })?;
        let cleared = first.entry_runs().flat_map(|located| located.entries);
        for (entry, cleared) in
            batch.entry_runs_mut().flat_map(|located| located.entries).zip(cleared)
        {
            *entry = *cleared;
        }
        result
    }

    fn protect(&mut self, batch: &Batch, change: Change) -> Result<(), BatchError<&'static str>> {
        let (first, result) = self.change_first(batch);
        self.mmu
            .protect(&first, change)
            .map_err(|_| BatchError { entries_done: 0, fault: "native" })?;
        result
    }

    fn split(&mut self, _: &LocatedEntry, _: Pfn) -> Result<(), &'static str> {
        Err("no large pages")
    }

    fn flush(&mut self, flush: Flush) -> Result<(), &'static str> {
        if self.refuses_flush {
            return Err("not flushed");
        }
        self.mmu.flush(flush).map_err(|_| "native")
    }

    fn reclaim(&mut self, _: &Batch) -> Result<(), &'static str> {
        if self.refuses_reclaim { Err("not reclaimed") } else { Ok(()) }
    }

    fn retire(&mut self, _: Space) -> Result<(), &'static str> {
        Err("not retired")
    }
}

#[test]
fn an_unmapping_whose_batch_stops_in_the_middle_passes_its_first_part_to_the_owner() {
    // The range has two pages of the first table, two whole tables, and a page of the next one.
    for (tables, entries) in [(CoveredTables::Free, 0..5), (CoveredTables::Keep, 0..1027)] {
        for refused_after in entries.step_by(if tables == CoveredTables::Free { 1 } else { 114 }) {
            let arena = Arena::new(16);
            let space = mapped_space(&arena, 4 * 512);
            let all = arena.mappings(space);
            let mut batch = Batch::new();
            let mut owner = RecordingOwner::new(&arena);
            let mmu = FailingMmu::new(arena.native(), refused_after);
            let range = range(510 * PAGE_BYTES, (2 + 2 * 512 + 1) * PAGE_BYTES);
            let options = Unmap { tables, ..Unmap::default() };
            let stopped = PageTables::new(mmu, space, &mut batch)
                .unmap_range(range, options, &mut owner)
                .unwrap_err();
            assert_eq!((stopped.reason, stopped.is_flushed), (StopReason::Mmu("refused"), true));
            let pages = match tables {
                CoveredTables::Keep => refused_after as u64,
                _ => [0, 1, 2, 2 + 512, 2 + 1024][refused_after],
            };
            assert_eq!(stopped.address, (510 + pages) * PAGE_BYTES);
            let unmapped = 510..510 + usize::try_from(pages).unwrap();
            assert_eq!(join_adjacent(&owner.mappings()), join_adjacent(&all[unmapped.clone()]));
            let remaining = [&all[..unmapped.start], &all[unmapped.end..]].concat();
            assert_eq!(arena.mappings(space), remaining);
            let freed =
                if tables == CoveredTables::Keep { 0 } else { refused_after.saturating_sub(2) };
            assert_eq!(owner.freed_tables, freed);
            assert_eq!(arena.flushes.borrow().is_empty(), pages == 0);
        }
    }
}

#[test]
fn tables_that_are_not_reclaimed_are_passed_to_the_owner_as_stuck_and_not_freed() {
    for (refuses_flush, refuses_reclaim) in [(true, false), (false, true)] {
        let arena = Arena::new(16);
        let space = mapped_space(&arena, 3 * 512);
        let mut batch = Batch::new();
        let mut owner = RecordingOwner::new(&arena);
        let mmu = FailingMmu { mmu: arena.native(), entries: 99, refuses_flush, refuses_reclaim };
        let stopped = PageTables::new(mmu, space, &mut batch)
            .unmap_range(range(0, 2 * 512 * PAGE_BYTES), Unmap::default(), &mut owner)
            .unwrap_err();
        let reason = StopReason::Mmu(if refuses_flush { "not flushed" } else { "not reclaimed" });
        assert_eq!(
            stopped,
            Stopped { address: 2 * 512 * PAGE_BYTES, reason, is_flushed: !refuses_flush }
        );
        assert_eq!((owner.freed_tables, owner.stuck_tables.len()), (0, 2));
        assert_eq!(
            owner.unmapped_bytes(),
            Bytes(2 * 512 * PAGE_BYTES),
            "the owner receives all pages that the tables mapped"
        );
    }
}

#[test]
fn a_refused_teardown_changes_nothing() {
    let arena = Arena::new(16);
    let space = mapped_space(&arena, 600);
    let before = arena.mappings(space);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mmu = FailingMmu::new(arena.native(), 0);
    let stopped = PageTables::new(mmu, space, &mut batch).teardown(&mut owner).unwrap_err();
    assert_eq!(
        stopped,
        Stopped { address: 0, reason: StopReason::Mmu("not retired"), is_flushed: false }
    );
    assert!(owner.runs.is_empty() && owner.freed_tables == 0);
    assert_eq!(arena.mappings(space), before);
}

#[test]
fn the_table_of_a_refused_split_is_freed() {
    let arena = Arena::new(16);
    let space = mapped_space(&arena, 1);
    arena.put_entry(
        space,
        LARGE_PAGE_BYTES,
        Level::L2,
        Entry::new(pfn(0x200), Flags::PRESENT | Flags::LARGE),
    );
    let owned = arena.table_count();
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mmu = FailingMmu::new(arena.native(), 9);
    let stopped = PageTables::new(mmu, space, &mut batch)
        .unmap_range(range(0, LARGE_PAGE_BYTES + PAGE_BYTES), KEEP, &mut owner)
        .unwrap_err();
    assert_eq!(
        (stopped.address, stopped.reason),
        (LARGE_PAGE_BYTES, StopReason::Mmu("no large pages"))
    );
    assert_eq!((arena.table_count(), owner.unmapped_bytes()), (owned, Bytes(PAGE_BYTES)));
}

#[test]
fn a_protection_whose_batch_stops_in_the_middle_changes_its_first_part() {
    let arena = Arena::new(16);
    let space = mapped_space(&arena, 1024);
    let mut batch = Batch::new();
    let mut owner = RecordingOwner::new(&arena);
    let mmu = FailingMmu::new(arena.native(), 700);
    let change = Change::new(Flags::empty(), Flags::WRITABLE).unwrap();
    let stopped = PageTables::new(mmu, space, &mut batch)
        .protect(range(0, 1024 * PAGE_BYTES), change, &mut owner)
        .unwrap_err();
    assert_eq!(
        stopped,
        Stopped { address: 700 * PAGE_BYTES, reason: StopReason::Mmu("refused"), is_flushed: true }
    );
    let writable = |mapping: &common::MappedRange| mapping.bits & 2 != 0;
    assert_eq!(
        arena.mappings(space).iter().filter(|mapping| writable(mapping)).count(),
        1024 - 700
    );
    assert_eq!(arena.flushes.borrow().len(), 1);
}
