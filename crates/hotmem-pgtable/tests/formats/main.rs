//! Runs random operations on page tables of each format. Compares them with a naive map, by a walk
//! that follows the manual of the processor, and checks which entries replace which.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;
mod deviations;
mod manual;
mod monitor;
mod oracle;
mod permissions;

use common::Arena;
use hotmem_addr::{Bytes, Pfn};
use hotmem_pgtable::{
    Aarch64, Attributes, Batch, Caching, Change, CoveredTables, Entry, Level, Native, Owner,
    PageTables, Riscv64, Run, Space, StopReason, Unmap, VirtRange, X86_64,
};
use manual::{Manual, Translation, walk};
use monitor::{Monitor, virt};
use oracle::{Extent, Oracle, PageAttributes, joined};
use permissions::Permissions;
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

/// An address space of a format, the naive map of it, and a processor that uses it.
struct Machine<'a, M: Manual> {
    arena: &'a Arena,
    space: Space<M>,
    oracle: Oracle,
}

/// Pages that an operation has unmapped.
struct Unmapped<'a, M: Manual> {
    arena: &'a Arena,
    runs: Vec<Run<M>>,
}

impl<M: Manual> Owner<M> for Unmapped<'_, M> {
    fn unmapped(&mut self, run: Run<M>) {
        self.runs.push(run);
    }

    fn free_table(&mut self, table: Pfn) {
        self.arena.free(table);
    }

    fn new_table(&mut self) -> Option<Pfn> {
        self.arena.table()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Map { place: Place, level: Level, frame: u64, pages: u64, attributes: Attributes },
    Unmap { place: Place, bytes: u64, tables: CoveredTables },
    Protect { place: Place, bytes: u64, permissions: Permissions },
    Move { places: Vec<(Place, u64)> },
    Use { place: Place, writes: bool },
}

/// An address: near the start, the middle or the end of the space, or near the edge of a table.
#[derive(Clone, Copy, Debug)]
struct Place {
    base: usize,
    offset: u64,
}

impl Place {
    /// Returns the offset into the span of the root.
    fn offset_in(self, span: u64) -> u64 {
        let bases = [0, (2 << 20) - 0x4000, (1 << 30) - (2 << 20), span / 2 - (4 << 20), span / 2];
        match bases.get(self.base) {
            Some(base) => base + self.offset,
            None => span - (8 << 20) + self.offset % (8 << 20),
        }
    }
}

fn place() -> impl Strategy<Value = Place> {
    let offset = prop_oneof![
        4 => (0u64..16).prop_map(|page| page << 12),
        2 => (0u64..1024).prop_map(|page| page << 12),
        1 => (0u64..4).prop_map(|large| large << 21),
    ];
    (0usize..6, offset).prop_map(|(base, offset)| Place { base, offset })
}

fn attributes() -> impl Strategy<Value = Attributes> {
    any::<[bool; 5]>().prop_map(|[writable, executable, user, global, used]| Attributes {
        writable,
        executable,
        user,
        global,
        used,
        caching: Caching::WriteBack,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let level = prop_oneof![5 => Just(Level::L1), 3 => Just(Level::L2), 1 => Just(Level::L3)];
    let pages = prop_oneof![3 => 1u64..4, 1 => 1u64..700];
    let map = (place(), level, 0u64..64, pages, attributes()).prop_map(
        |(place, level, frame, pages, attributes)| Step::Map {
            place,
            level,
            frame,
            pages,
            attributes,
        },
    );
    let bytes = || {
        prop_oneof![
            (1u64..24).prop_map(|pages| pages << 12),
            (1u64..1200).prop_map(|pages| pages << 12),
            (1u64..4).prop_map(|large| large << 21),
            Just(1 << 30),
        ]
    };
    let tables = prop::sample::select(vec![
        CoveredTables::Free,
        CoveredTables::Keep,
        CoveredTables::Cheapest,
    ]);
    prop_oneof![
        6 => map,
        2 => (place(), bytes(), tables).prop_map(|(place, bytes, tables)| Step::Unmap {
            place,
            bytes,
            tables,
        }),
        2 => (place(), bytes(), permissions::permissions()).prop_map(
            |(place, bytes, permissions)| Step::Protect { place, bytes, permissions },
        ),
        1 => prop::collection::vec((place(), 0u64..64), 1..8)
            .prop_map(|places| Step::Move { places }),
        3 => (place(), any::<bool>()).prop_map(|(place, writes)| Step::Use { place, writes }),
    ]
}

impl<'a, M: Manual> Machine<'a, M> {
    fn translation(&self, address: u64) -> Option<Translation> {
        let read = |phys: u64| {
            let table = self.arena.words(Pfn::containing(phys).unwrap());
            table[usize::try_from(phys / 8 % 512).unwrap()].load(Relaxed)
        };
        walk::<M>(&read, self.space.root.phys_addr(), self.space.root_level as u32, address)
    }

    /// Returns the address of a place, aligned to the size of an entry of this level.
    fn address(&self, place: Place, level: Level) -> u64 {
        let span = self.space.root_level.table_span().0;
        virt(self.space, place.offset_in(span) & !(level.entry_span().0 - 1))
    }

    /// Returns the range from an address on, cut at the end of the half of the address space.
    fn range(&self, start: u64, bytes: u64) -> VirtRange {
        let half = match M::SPANS_BOTH_HALVES {
            true => self.space.root_level.table_span().0 / 2,
            false => self.space.root_level.table_span().0,
        };
        let left = half - (start & (half - 1));
        VirtRange::new(start, Bytes(bytes.min(left))).unwrap()
    }

    /// Uses an address as a processor does.
    fn use_page(&mut self, address: u64, writes: bool) {
        let Some(found) = self.translation(address) else { return };
        let writes = writes && found.writable;
        let table = self.arena.words(Pfn::containing(found.entry).unwrap());
        let word = &table[usize::try_from(found.entry / 8 % 512).unwrap()];
        word.store(M::used(word.load(Relaxed), writes), Relaxed);
        let start = address & !(found.page_bytes - 1);
        self.oracle.change(start, start + (found.page_bytes - 1), |extent| {
            extent.attributes.accessed = true;
            extent.attributes.dirty |= writes;
        });
    }

    /// Returns the extent of a run, by the manual.
    fn extent(run: &Run<M>) -> Extent {
        let found = walk_entry::<M>(run.entry.bits(), run.level);
        Extent {
            virt: run.virt.start(),
            bytes: run.virt.bytes().0,
            phys: found.phys,
            attributes: PageAttributes::of(found),
        }
    }

    /// Checks that the processor finds what the oracle says, at the edges of each extent.
    fn check(&self) -> Result<(), TestCaseError> {
        for extent in &self.oracle.0 {
            let last = extent.virt + (extent.bytes - 1);
            for address in [extent.virt, last & !0xfff, extent.virt + ((extent.bytes / 2) & !0xfff)]
            {
                let found = self.translation(address);
                let expected = extent.phys + (address - extent.virt);
                prop_assert_eq!(found.map(|found| found.phys), Some(expected), "{:#x}", address);
                let attributes = found.map(PageAttributes::of);
                prop_assert_eq!(attributes, Some(extent.attributes), "{:#x}", address);
            }
            for outside in [extent.virt.wrapping_sub(4096), last.wrapping_add(1)] {
                let is_mapped = self.oracle.at(outside).is_some();
                let is_canonical = virt(self.space, self.offset(outside)) == outside;
                if is_canonical {
                    prop_assert_eq!(self.translation(outside).is_some(), is_mapped);
                }
            }
        }
        Ok(())
    }

    fn offset(&self, address: u64) -> u64 {
        address & (self.space.root_level.table_span().0 - 1)
    }
}

fn walk_entry<M: Manual>(bits: u64, level: Level) -> Translation {
    match M::meaning(bits, level as u32) {
        manual::Meaning::Page { phys } => Translation { phys, ..M::permissions(bits) },
        other => panic!("the owner received an entry that maps no page: {other:?}"),
    }
}

/// Returns the attributes that a page must have after it was mapped. Whether a read-only page counts
/// as written is left to the format.
fn expected(attributes: Attributes, dirty: bool) -> PageAttributes {
    let Attributes { writable, executable, user, global, used, .. } = attributes;
    let dirty = if writable { used } else { dirty };
    PageAttributes { writable, executable, user, global, is_memory: true, accessed: used, dirty }
}

fn run<M: Manual>(
    root_level: Level,
    upper_half: bool,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let arena = Arena::new(120);
    let space = Space::<M>::new(arena.table().unwrap(), root_level);
    let space = if upper_half { space.in_half_of(u64::MAX) } else { space };
    let monitor = Monitor::new(&arena, space);
    let mut machine = Machine { arena: &arena, space, oracle: Oracle::default() };
    let mut batch = Box::new(Batch::new());
    for step in steps {
        let mut owner = Unmapped { arena: &arena, runs: Vec::new() };
        let mut tables = PageTables::new(Native::new(&arena, &monitor), space, &mut batch);
        let mut removed = Vec::new();
        match step {
            Step::Map { place, level, frame, pages, attributes } => {
                let start = machine.address(*place, *level);
                let bytes = level.entry_span().0;
                let range = machine.range(start, bytes * pages);
                let first = Pfn::new(frame * level.entry_span().frames() + (1 << 30)).unwrap();
                let entry = Entry::page(first, *attributes, *level).unwrap();
                let mapped_bytes =
                    match tables.map(Run { virt: range, entry, level: *level }, &mut owner) {
                        Ok(_) => range.bytes().0,
                        Err(stopped) => {
                            prop_assert!(
                                matches!(stopped.reason, StopReason::Occupied(_)),
                                "{stopped:?}"
                            );
                            prop_assert!(
                                *level != Level::L1 || machine.oracle.at(stopped.address).is_some()
                            );
                            stopped.address.wrapping_sub(start)
                        }
                    };
                if mapped_bytes > 0 {
                    prop_assert!(!machine.oracle.overlaps(start, mapped_bytes));
                    let found = PageAttributes::of(walk_entry::<M>(entry.bits(), *level));
                    prop_assert_eq!(found, expected(*attributes, found.dirty));
                    let (phys, attributes) = (first.phys_addr(), found);
                    let extent = Extent { virt: start, bytes: mapped_bytes, phys, attributes };
                    machine.oracle.insert(extent);
                }
            }
            Step::Unmap { place, bytes, tables: covered } => {
                let range = machine.range(machine.address(*place, Level::L1), *bytes);
                let options = Unmap { tables: *covered, ..Unmap::default() };
                tables.unmap_range(range, options, &mut owner).unwrap();
                removed = machine.oracle.remove(range.start(), range.last());
            }
            Step::Protect { place, bytes, permissions } => {
                let range = machine.range(machine.address(*place, Level::L1), *bytes);
                let (set, clear) = permissions.flags::<M>();
                tables.protect(range, Change::new(set, clear).unwrap(), &mut owner).unwrap();
                machine.oracle.change(range.start(), range.last(), |extent| {
                    permissions.apply(&mut extent.attributes);
                });
            }
            Step::Move { places } => {
                let mut moved: Vec<(u64, u64, u64)> = Vec::new();
                for (place, frame) in places {
                    let address = machine.address(*place, Level::L1);
                    if let Some(found) = machine.translation(address) {
                        let start = address & !(found.page_bytes - 1);
                        if !moved.iter().any(|&(before, ..)| before == start) {
                            moved.push((start, found.page_bytes, (frame + 64) * found.page_bytes));
                        }
                    }
                }
                tables
                    .move_pages(moved.iter().map(|&(start, ..)| start), |pages| {
                        for (index, &(_, _, phys)) in moved.iter().enumerate() {
                            assert!(pages.place(index, Pfn::containing(phys).unwrap()));
                        }
                    })
                    .unwrap();
                for (start, bytes, phys) in moved {
                    machine.oracle.change(start, start + (bytes - 1), |extent| {
                        extent.phys = phys + (extent.virt - start);
                    });
                }
            }
            Step::Use { place, writes } => {
                let address = machine.address(*place, Level::L1);
                machine.use_page(address, *writes);
            }
        }
        let received = owner.runs.iter().map(Machine::<M>::extent);
        prop_assert_eq!(joined(received), joined(removed));
        let (violations, ..) = monitor.finish();
        prop_assert_eq!(violations, Vec::<String>::new(), "{:?}", step);
        machine.check()?;
    }
    let user_last = machine.range(virt(space, 0), !0xfff).last();
    let removed = machine.oracle.remove(virt(space, 0), user_last);
    let mut owner = Unmapped { arena: &arena, runs: Vec::new() };
    PageTables::new(Native::new(&arena, &monitor), space, &mut batch).teardown(&mut owner).unwrap();
    prop_assert_eq!(joined(owner.runs.iter().map(Machine::<M>::extent)), joined(removed));
    if machine.oracle.0.is_empty() {
        prop_assert_eq!(arena.table_count(), 0);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("HOTMEM_DEEP").is_some() {
        3000
    } else {
        64
    }))]

    #[test]
    fn x86_64_tables_behave_like_a_map(
        root in prop::sample::select(X86_64::ROOTS),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        run::<X86_64>(root, false, &steps)?;
    }

    #[test]
    fn aarch64_tables_behave_like_a_map_and_never_replace_a_live_entry(
        root in prop::sample::select(Aarch64::ROOTS),
        upper_half in any::<bool>(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        run::<Aarch64>(root, upper_half, &steps)?;
    }

    #[test]
    fn riscv64_tables_behave_like_a_map(
        root in prop::sample::select(Riscv64::ROOTS),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        run::<Riscv64>(root, false, &steps)?;
    }
}
