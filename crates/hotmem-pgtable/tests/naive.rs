//! Compares random operations on page tables with the same operations on a naive map without
//! tables.
#![cfg(not(loom))]

mod common;

use common::{Arena, MappedRange, NaiveTables, RecordingOwner, join_adjacent};
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::x86_64::{Batch, Change, Entry, Flags, Run, Space, StopReason, Stopped};
use hotmem_pgtable::{CoveredTables, Kind, Level, PageTables, Unmap, VirtRange, find_entry};
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Operation {
    Map { virt: u64, level: Level, entry: Entry, pages: u64 },
    Move { pages: Vec<(u64, Pfn)> },
    Unmap { start: u64, bytes: u64, options: Unmap },
    Protect { start: u64, bytes: u64, set: Flags, clear: Flags },
}

/// Yields addresses within a table, at the edges of each level, and at both ends of the address
/// space.
fn virt(root_level: Level) -> impl Strategy<Value = u64> {
    let highest_base = 0u64.wrapping_sub(2 << 30);
    let bases =
        vec![0, (2 << 20) - 0x8000, (1 << 30) - (4 << 20), (512 << 30) - (2 << 30), highest_base];
    let extra = (root_level == Level::L5).then_some((256 << 40) - (1 << 30));
    let bases: Vec<u64> = bases.into_iter().chain(extra).collect();
    let offset = prop_oneof![
        3 => (0u64..24).prop_map(|page| page << 12),
        2 => (0u64..1024).prop_map(|page| page << 12),
        1 => (0u64..12).prop_map(|large| large << 21),
        1 => (0u64..2).prop_map(|huge| huge << 30),
    ];
    (prop::sample::select(bases), offset).prop_map(|(base, offset)| base + offset)
}

fn flags() -> impl Strategy<Value = Flags> {
    let settable = [
        Flags::WRITABLE,
        Flags::USER,
        Flags::ACCESSED,
        Flags::DIRTY,
        Flags::GLOBAL,
        Flags::NO_EXECUTE,
    ];
    prop::sample::subsequence(settable.to_vec(), 0..=6)
        .prop_map(|flags| flags.into_iter().collect())
}

fn map(root_level: Level) -> impl Strategy<Value = Operation> {
    let level = prop_oneof![6 => Just(Level::L1), 2 => Just(Level::L2), 1 => Just(Level::L3)];
    let pages = prop_oneof![2 => Just(1), 1 => 1u64..4, 1 => 1u64..1300];
    let mapping = (level, 0u64..64, flags(), 0..8, pages);
    (virt(root_level), mapping).prop_map(|(virt, (level, frame, flags, kind, pages))| {
        let bytes = level.entry_span().0;
        let virt = virt & !(bytes - 1);
        let frame = Pfn::containing(((virt & 0xff_ffff_f000) + frame * bytes) & !(bytes - 1));
        let large = if level == Level::L1 { Flags::empty() } else { Flags::LARGE };
        let entry = match kind {
            // The entry is not present, and holds data of the kernel.
            0 => Entry::from_bits(0xabc_d000 | 0x62),
            _ => Entry::new(frame.unwrap(), Flags::PRESENT | flags | large),
        };
        Operation::Map { virt, level, entry, pages }
    })
}

fn step(root_level: Level) -> impl Strategy<Value = Operation> {
    let bytes = || {
        prop_oneof![
            (1u64..40).prop_map(|pages| pages << 12),
            (1u64..2048).prop_map(|pages| pages << 12),
            (1u64..6).prop_map(|large| large << 21),
            Just(1 << 30),
            Just(600 << 30),
        ]
    };
    let range = || {
        (virt(root_level), bytes()).prop_map(move |(start, bytes)| {
            let half = root_level.table_span().0 / 2;
            let max = if start < 1 << 63 { half - start } else { 0u64.wrapping_sub(start) };
            (start, bytes.min(max))
        })
    };
    let tables = prop::sample::select(vec![
        CoveredTables::Free,
        CoveredTables::Keep,
        CoveredTables::Cheapest,
    ]);
    let options = (tables, any::<bool>(), any::<bool>()).prop_map(
        |(tables, ignore_accessed_and_dirty, is_dying)| Unmap {
            tables,
            ignore_accessed_and_dirty,
            is_dying,
        },
    );
    let pages = prop::collection::vec(
        (virt(root_level), (0u64..1 << 30).prop_filter_map("frames", Pfn::new)),
        1..600,
    )
    .prop_map(|pages| Operation::Move { pages });
    let change = (flags(), flags())
        .prop_map(|(set, clear)| (set - Flags::ACCESSED_DIRTY, clear - Flags::ACCESSED_DIRTY));
    prop_oneof![
        8 => map(root_level),
        1 => pages,
        2 => (range(), options).prop_map(|((start, bytes), options)| {
            Operation::Unmap { start, bytes, options }
        }),
        1 => (range(), change).prop_map(|((start, bytes), (set, clear))| {
            Operation::Protect { start, bytes, set, clear }
        }),
    ]
}

fn steps() -> impl Strategy<Value = (Level, Vec<Operation>)> {
    prop_oneof![Just(Level::L4), Just(Level::L5)].prop_flat_map(|root_level| {
        (Just(root_level), prop::collection::vec(step(root_level), 1..80))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("HOTMEM_DEEP").is_some() {
        5000
    } else {
        200
    }))]
    #[test]
    fn page_tables_behave_like_a_map_without_tables((root_level, steps) in steps(), two_roots in any::<bool>()) {
        let arena = Arena::new(400);
        let space = Space::new(arena.table().unwrap(), root_level);
        let user_root = two_roots.then(|| arena.table().unwrap());
        let space = Space { user_root, ..space };
        let mut naive = NaiveTables::default();
        let mut batch = Box::new(Batch::new());
        for step in steps {
            arena.flushes.borrow_mut().clear();
            let mut owner = RecordingOwner::new(&arena);
            let mut tables = PageTables::new(arena.native(), space, &mut batch);
            match step {
                Operation::Map { virt, level, entry, .. } if !entry.is_present() => {
                    if arena.put_entry(space, virt, level, entry) {
                        naive.insert(MappedRange::new(virt, level, entry));
                    }
                }
                Operation::Map { virt, level, entry, pages } => {
                    let bytes = level.entry_span().0;
                    let pages = pages.min((0u64.wrapping_sub(virt) >> 1).max(bytes) / bytes);
                    let range = VirtRange::new(virt, Bytes(bytes * pages)).unwrap();
                    let mapped = tables.map(Run { virt: range, entry, level }, &mut owner);
                    let mapped_bytes = match mapped {
                        Ok(written) => {
                            prop_assert!(written.0 >= 8 * pages);
                            bytes * pages
                        }
                        Err(Stopped { address: at, reason, is_flushed }) => {
                            prop_assert!(matches!(reason, StopReason::Occupied(_)) && is_flushed, "{reason:?}");
                            // A page of 4 KiB is refused only if the address is mapped. A large page
                            // is also refused if an empty table exists for the address.
                            prop_assert!(level != Level::L1 || naive.is_mapped(at));
                            at - virt
                        }
                    };
                    prop_assert!(mapped_bytes == 0 || !naive.overlaps(virt, mapped_bytes));
                    if mapped_bytes > 0 {
                        naive.insert(MappedRange { bytes: mapped_bytes, ..MappedRange::new(virt, level, entry) });
                    }
                    prop_assert!(arena.flushes.borrow().is_empty());
                }
                Operation::Move { pages } => {
                    let native = arena.native();
                    let mut seen_pages = BTreeSet::new();
                    let located: Vec<_> = pages
                        .into_iter()
                        .filter_map(|(virt, to)| Some((find_entry(&native, space, virt).ok()?, to)))
                        .filter(|(located, _)| located.kind() == Kind::Page && seen_pages.insert(located.virt))
                        .map(|(located, to)| (located, to.align_down(located.level.entry_span().frames())))
                        .collect();
                    let pages = located.iter().map(|(located, _)| located.virt + 8);
                    let moved = tables.move_pages(pages, |moving| {
                        let moved = moving.len();
                        prop_assert_eq!(moved, located.len().min(512));
                        for (index, (located, to)) in located.iter().enumerate().take(moved) {
                            prop_assert_eq!(moving.page(index), Some(*located));
                            let hidden = find_entry(&native, space, located.virt).unwrap();
                            prop_assert_eq!(hidden.kind(), Kind::Empty);
                            // Every third page gets no new frame, and keeps its frame.
                            if index % 3 != 0 {
                                prop_assert!(moving.place(index, *to));
                                naive.relocate(located.virt, located.level, *to);
                            }
                        }
                        prop_assert!(!moving.place(moved, Pfn::ZERO));
                        Ok(moved)
                    });
                    let moved = moved.unwrap()?;
                    let flushes = arena.flushes.borrow().len();
                    // If the pages span the whole address space, which cannot be a range, the pages
                    // are flushed one by one.
                    let has_first_page = located.iter().any(|(located, _)| located.virt == 0);
                    prop_assert!(flushes == moved.min(1) || has_first_page && flushes == moved);
                }
                Operation::Unmap { start, bytes, options } => {
                    let range = VirtRange::new(start, Bytes(bytes)).unwrap();
                    let mut after = naive.clone();
                    let tables_before = arena.table_count();
                    let unmapped = tables.unmap_range(range, options, &mut owner);
                    let flushes = arena.flushes.borrow().len();
                    // Each large page that is split takes one more flush.
                    let max_flushes = 2 + owner.entries() / 512 + owner.requested_tables;
                    prop_assert!(flushes <= max_flushes, "{flushes} flushes");
                    if let Some(removed) = after.unmap(start, range.last()) {
                        prop_assert_eq!(unmapped, Ok(()));
                        prop_assert_eq!(join_adjacent(&owner.mappings()), join_adjacent(&removed));
                        prop_assert_eq!(flushes == 0, removed.is_empty() && arena.table_count() == tables_before);
                        naive = after;
                    } else {
                        // The range starts or ends within an entry with data of the kernel. The
                        // operation has done the part below the address at which it stopped.
                        let stopped = unmapped.unwrap_err();
                        let below = range.split_at(stopped.address).0;
                        let removed = below.map(|below| naive.unmap(below.start(), below.last()));
                        let removed = removed.flatten().unwrap_or_default();
                        prop_assert_eq!(join_adjacent(&owner.mappings()), join_adjacent(&removed));
                    }
                }
                Operation::Protect { start, bytes, set, clear } => {
                    let range = VirtRange::new(start, Bytes(bytes)).unwrap();
                    let change = Change::new(set, clear).unwrap();
                    tables.protect(range, change, &mut owner).unwrap();
                    naive.protect(start, range.last(), set, clear);
                    prop_assert!(arena.flushes.borrow().len() <= 1 + owner.requested_tables);
                }
            }
            prop_assert_eq!(join_adjacent(&arena.mappings(space)), join_adjacent(&naive.0));
            prop_assert!(arena.is_shared(space));
        }
        let lower_half = naive.unmap(0, (1 << 56) - 1);
        let mut owner = RecordingOwner::new(&arena);
        arena.flushes.borrow_mut().clear();
        let roots = 1 + usize::from(two_roots);
        PageTables::new(arena.native(), space, &mut batch).teardown(&mut owner).unwrap();
        prop_assert!(owner.freed_tables >= roots);
        prop_assert_eq!(arena.flushes.borrow().len(), 1);
        prop_assert_eq!(join_adjacent(&owner.mappings()), join_adjacent(&lower_half.unwrap()));
    }
}
