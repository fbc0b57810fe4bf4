//! Checks address spaces with two roots: a change of the kernel's root also changes the user's
//! root.
#![cfg(not(loom))]

mod common;

use common::{Arena, PAGE_BYTES, RecordingOwner, link, page_entry, range};
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::x86_64::{Batch, Entry, Run, Space, StopReason, Stopped};
use hotmem_pgtable::{
    Attributes, CoveredTables, Flush, Flusher, Level, Native, Owner, PageTables, Unmap, VirtRange,
    aarch64,
};
use std::sync::atomic::Ordering::Relaxed;

/// The number of bytes that one entry of a root spans.
const ROOT_ENTRY_BYTES: u64 = 512 << 30;

fn space(arena: &Arena) -> Space {
    let roots = [(); 2].map(|()| arena.table().unwrap());
    Space::new(roots[0], Level::L4).with_user_root(roots[1])
}

#[test]
fn a_table_that_is_unhooked_at_the_root_is_cleared_in_both_roots() {
    let arena = Arena::new(32);
    let space = space(&arena);
    for number in 0..3 {
        assert!(arena.put_entry(space, number * ROOT_ENTRY_BYTES, Level::L1, page_entry(number)));
    }
    assert!(arena.is_shared(space));
    let (mut batch, mut owner) = (Batch::new(), RecordingOwner::new(&arena));
    PageTables::new(arena.native(), space, &mut batch)
        .unmap_range(range(0, 2 * ROOT_ENTRY_BYTES), Unmap::default(), &mut owner)
        .unwrap();
    assert_eq!((owner.unmapped_bytes(), owner.freed_tables), (Bytes(2 * PAGE_BYTES), 6));
    let user = arena.words(space.user_root.unwrap());
    assert_eq!([0, 1].map(|index| user[index].load(Relaxed)), [0, 0]);
    assert_ne!(user[2].load(Relaxed), 0);
    assert!(arena.is_shared(space));
    // The teardown frees the remaining tables: the two roots and three tables below them.
    PageTables::new(arena.native(), space, &mut batch).teardown(&mut owner).unwrap();
    assert_eq!((owner.unmapped_bytes(), arena.table_count()), (Bytes(3 * PAGE_BYTES), 0));
}

#[test]
fn pages_are_mapped_in_both_roots() {
    let arena = Arena::new(32);
    let space = space(&arena);
    let upper = 0u64.wrapping_sub(1 << 47);
    let (mut batch, mut owner) = (Batch::new(), RecordingOwner::new(&arena));
    let mut tables = PageTables::new(arena.native(), space, &mut batch);
    for start in [0, ROOT_ENTRY_BYTES - PAGE_BYTES, upper] {
        let run =
            Run { virt: range(start, 2 * PAGE_BYTES), entry: page_entry(0), level: Level::L1 };
        tables.map(run, &mut owner).unwrap();
    }
    assert!(
        arena.is_shared(space),
        "the lower half is in both roots, the upper half only in the kernel's"
    );
    let cheapest = Unmap { tables: CoveredTables::Cheapest, ..Unmap::default() };
    tables.unmap_range(range(upper, 1 << 46), cheapest, &mut owner).unwrap();
    assert!(arena.is_shared(space));
}

#[test]
fn operations_on_roots_that_differ_are_refused_and_change_nothing() {
    let arena = Arena::new(32);
    let space = space(&arena);
    assert!(arena.put_entry(space, ROOT_ENTRY_BYTES, Level::L1, page_entry(0)));
    let user_root = space.user_root.unwrap();
    let (kernel, user) = (Entry::EMPTY, link(Pfn::new(7).unwrap()));
    arena.words(user_root)[3].store(user.bits(), Relaxed);
    let refused = |space: Space, reason| {
        let (mut batch, mut owner) = (Batch::new(), RecordingOwner::new(&arena));
        let refused = Err(Stopped { address: 3 * ROOT_ENTRY_BYTES, reason, is_flushed: true });
        let range = range(3 * ROOT_ENTRY_BYTES, PAGE_BYTES);
        let mut tables = PageTables::new(arena.native(), space, &mut batch);
        assert_eq!(tables.unmap_range(range, Unmap::default(), &mut owner), refused);
        let run = Run { virt: range, entry: page_entry(1), level: Level::L1 };
        assert_eq!(tables.map(run, &mut owner).map(|_| ()), refused);
        assert_eq!((owner.requested_tables, arena.flushes.borrow().len()), (0, 0));
        tables.teardown(&mut owner)
    };
    let differ = StopReason::RootsDiffer { kernel, user };
    let torn_down = refused(space, differ);
    assert_eq!(
        torn_down,
        Err(Stopped { address: 3 * ROOT_ENTRY_BYTES, reason: differ, is_flushed: true })
    );
    let missing = Pfn::new(0x777).unwrap();
    let reason = StopReason::NotATable { frame: missing, level: Level::L4 };
    let torn_down = refused(space.with_user_root(missing), reason);
    assert_eq!(torn_down, Err(Stopped { address: 0, reason, is_flushed: true }));
}

/// An aarch64 processor without a TLB.
struct NoTlb;

impl Flusher for NoTlb {
    type Format = aarch64::Format;

    fn flush(&mut self, _: Flush) {}

    fn publish(&mut self, _: VirtRange) {}
}

struct TableOwner<'a>(&'a Arena);

impl Owner<aarch64::Format> for TableOwner<'_> {
    fn unmapped(&mut self, _: aarch64::Run) {}

    fn free_table(&mut self, table: Pfn) {
        self.0.free(table);
    }

    fn new_table(&mut self) -> Option<Pfn> {
        self.0.table()
    }
}

#[test]
fn all_entries_of_a_root_that_translates_one_half_change_in_both_roots() {
    let arena = Arena::new(8);
    let [root, user_root] = [(); 2].map(|()| arena.table().unwrap());
    let space = aarch64::Space::new(root, Level::L4).with_user_root(user_root);
    let mut batch = aarch64::Batch::new();
    let mut tables = PageTables::new(Native::new(&arena, NoTlb), space, &mut batch);
    let mut owner = TableOwner(&arena);
    let first_entries = || [root, user_root].map(|table| arena.words(table)[256].load(Relaxed));
    // The upper half of what TTBR0 translates.
    let virt = range(1 << 47, PAGE_BYTES);
    let entry = aarch64::Entry::page(Pfn::ZERO, Attributes::KERNEL_DATA, Level::L1).unwrap();
    tables.map(aarch64::Run { virt, entry, level: Level::L1 }, &mut owner).unwrap();
    let [kernel, user] = first_entries();
    assert!(kernel == user && kernel != 0, "{kernel:#x}, {user:#x}");
    let unhook = range(1 << 47, ROOT_ENTRY_BYTES);
    tables.unmap_range(unhook, Unmap::default(), &mut owner).unwrap();
    assert_eq!(first_entries(), [0, 0]);
}
