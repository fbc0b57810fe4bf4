//! Compares the directory with a naive oracle. The sections lie anywhere in the address space, and
//! their nodes change.

extern crate std;

use super::pieces::DirectoryPiece;
use super::{
    Directory, MAX_NODES, NodeIndex, NodeNumbers, PieceSupply, Ranges, SECTIONS, SectionId,
};
use crate::addr::{Pfn, PfnRange};
use crate::sync::Ordering;
use crate::words::{Class, ReadCount, Zone};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Provides the pieces of a directory from the heap, and frees them when it is dropped.
#[derive(Default)]
struct Heap(Vec<(*mut u8, Layout)>);

impl PieceSupply for Heap {
    fn new_piece<T: DirectoryPiece>(&mut self) -> Option<NonNull<T>> {
        let layout = Layout::new::<T>();
        // SAFETY: no type of a piece has size 0.
        let memory = unsafe { alloc_zeroed(layout) };
        self.0.push((memory, layout));
        NonNull::new(memory.cast())
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        for (memory, layout) in self.0.drain(..) {
            // SAFETY: `new_piece` has allocated `memory` with this layout.
            unsafe { dealloc(memory, layout) };
        }
    }
}

fn id(n: usize) -> SectionId {
    SectionId::new(n as u64).unwrap()
}

fn node(n: usize) -> NodeIndex {
    NodeIndex::new(n).unwrap()
}

const ONLINE: Class = Class::online(Zone::Kernel);

/// A directory, and the oracle: for each section with words, its node and whether it is online.
struct CheckedDirectory {
    directory: Box<Directory>,
    heap: Heap,
    sections: BTreeMap<SectionId, (usize, bool)>,
}

impl CheckedDirectory {
    fn new() -> CheckedDirectory {
        CheckedDirectory {
            directory: Box::new(Directory::new()),
            heap: Heap::default(),
            sections: BTreeMap::new(),
        }
    }

    /// Moves a section to node `n`, unless the section is online.
    fn assign(&mut self, section: usize, n: usize) {
        let section = id(section);
        if self.sections.get(&section).is_some_and(|&(_, online)| online) {
            return;
        }
        self.directory.install(section, node(n), &mut self.heap).unwrap();
        self.directory.set_node(section, node(n));
        self.sections.insert(section, (n, false));
    }

    fn online(&mut self, section: SectionId) {
        self.sections.get_mut(&section).unwrap().1 = true;
        self.directory.section(section).unwrap().online.store(1, Ordering::Release);
        self.directory.set_path(ONLINE, section);
    }

    fn offline(&mut self, section: SectionId) {
        self.sections.get_mut(&section).unwrap().1 = false;
        self.directory.section(section).unwrap().online.store(0, Ordering::Release);
    }

    fn is_empty(&self, section: SectionId) -> bool {
        self.directory.section(section).unwrap().online.load(Ordering::Acquire) == 0
    }

    /// Finds the next section as a searcher does: clears the bits of sections that it finds empty.
    fn next(&self, n: usize, from: SectionId) -> Option<SectionId> {
        let mut from = from;
        loop {
            let found = self.directory.paths(node(n), ONLINE).next(from)?;
            if !self.is_empty(found) {
                return Some(found);
            }
            self.directory.clear_section_bit(ONLINE, found);
            from = SectionId::new(found.number() + 1)?;
        }
    }

    fn prev(&self, n: usize, from: SectionId) -> Option<SectionId> {
        let mut from = from;
        loop {
            let found = self
                .directory
                .paths(node(n), ONLINE)
                .prev_counting_reads(from, &mut ReadCount::default())?;
            if !self.is_empty(found) {
                return Some(found);
            }
            self.directory.clear_section_bit(ONLINE, found);
            from = SectionId::new(found.number().checked_sub(1)?)?;
        }
    }

    /// Checks the searches from a section for the sections of node `n`.
    fn check_searches(&self, n: usize, from: SectionId) {
        let is_match = |&(_, &(other, online)): &(&SectionId, &(usize, bool))| online && other == n;
        let next = self.sections.range(from..).find(is_match).map(|(&section, _)| section);
        let prev = self.sections.range(..=from).rev().find(is_match).map(|(&section, _)| section);
        let next_read_only = self.directory.paths(node(n), ONLINE).read_only().next(from);
        assert!(next_read_only.is_some() || next.is_none());
        assert_eq!((self.next(n, from), self.prev(n, from)), (next, prev), "{n} {from:?}");
    }

    fn check_all(&self) {
        for (&section, &(n, online)) in &self.sections {
            assert!(
                !online || self.directory.leads_to(ONLINE, section),
                "no path leads to {section:?}, which is online"
            );
            assert_eq!(self.directory.node(section), Some(node(n)));
        }
        let any = self.sections.values().any(|&(_, online)| online);
        assert!(!any || !self.directory.looks_empty(ONLINE));
    }
}

/// Returns the number of a random section, usually near an edge of a chunk, a leaf or the address
/// space.
fn random_section_number(rng: &mut fastrand::Rng) -> usize {
    let edges = [0, 4, 64, 4 * 512, 64 * 512, 64 * 512 * 3, SECTIONS / 2, SECTIONS - 1];
    let edge = edges[rng.usize(0..edges.len())];
    match rng.u32(0..10) {
        0 => rng.usize(0..SECTIONS),
        _ => edge.saturating_add(rng.usize(0..8)).saturating_sub(4).min(SECTIONS - 1),
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and Miri runs the other tests of this file")]
fn searches_agree_with_an_oracle_while_nodes_change() {
    let steps = if cfg!(miri) { 12 } else { 6000 };
    for (seed, nodes) in [(1, 1), (2, 2), (3, 4), (4, 9), (5, MAX_NODES)] {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut checked = CheckedDirectory::new();
        for _ in 0..steps {
            let n = rng.usize(0..nodes);
            let section = random_section_number(&mut rng);
            match rng.u32(0..8) {
                0..3 => checked.assign(section, n),
                3..5 => {
                    if let Some((&section, _)) = checked.sections.range(id(section)..).next() {
                        checked.online(section);
                    }
                }
                5 => {
                    if let Some((&section, _)) = checked.sections.range(id(section)..).next() {
                        checked.offline(section);
                    }
                }
                _ => checked.check_searches(n, id(section)),
            }
        }
        checked.check_all();
    }
}

#[test]
fn all_sections_with_words_are_found_in_both_directions() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut checked = CheckedDirectory::new();
    for _ in 0..if cfg!(miri) { 1 } else { 60 } {
        let section = random_section_number(&mut rng);
        checked.assign(section, 0);
    }
    // Miri needs a minute for all sections, so it searches those around the one with words.
    let (start, end) = match checked.sections.keys().next() {
        Some(section) if cfg!(miri) => (section.number() - 4, section.number() + 4),
        _ => (0, SECTIONS as u64),
    };
    let id_of = |found: Option<(_, SectionId)>| found.map(|(_, id)| id);
    let next = |from| id_of(checked.directory.next_section(from, end));
    let prev = |end| id_of(checked.directory.prev_section(start, end));
    let up: Vec<_> = core::iter::successors(next(start), |last| next(last.number() + 1)).collect();
    let mut down: Vec<_> = core::iter::successors(prev(end), |last| prev(last.number())).collect();
    down.reverse();
    assert_eq!(up, down);
    assert!(checked.sections.keys().all(|section| up.binary_search(section).is_ok()));
    assert!(up.iter().all(|&section| checked.directory.section(section).is_some()));
}

#[test]
fn node_numbers_are_those_of_the_platform() {
    let numbers = NodeNumbers::new();
    let node_numbers = [0, 1, 256, 512, u32::MAX, 255, 511, 0];
    let indices: Vec<_> = node_numbers
        .iter()
        .map(|&n| numbers.index_of(n).or_else(|| numbers.insert(n)).unwrap())
        .collect();
    for (&n, &index) in node_numbers.iter().zip(&indices) {
        assert_eq!((numbers.index_of(n), numbers.number_of(index)), (Some(index), Some(n)));
    }
    assert_eq!(numbers.all().count(), node_numbers.len() - 1);
    assert_eq!(numbers.index_of(2), None);
    let more: Vec<_> = (1000..).map_while(|n| numbers.insert(n)).collect();
    assert_eq!(numbers.all().count(), MAX_NODES);
    more.iter().rev().for_each(|&index| numbers.forget(index));
    assert_eq!(numbers.all().count(), node_numbers.len() - 1);
    assert_eq!(numbers.index_of(1000), None);
    assert!(
        node_numbers.iter().zip(&indices).all(|(&n, &index)| numbers.index_of(n) == Some(index))
    );
}

#[cfg(not(hotmem_geometry = "small"))]
#[test]
fn a_search_reads_a_few_words_however_many_nodes_alternate() {
    // The sections of a range of 2 TiB are assigned to the nodes in turn.
    let count = if cfg!(miri) { 20 } else { 16384 };
    for nodes in [1, 4, 32, MAX_NODES].into_iter().filter(|nodes| 2 * nodes < count) {
        let mut checked = CheckedDirectory::new();
        for section in 0..count {
            checked.assign(section, section % nodes);
            checked.online(id(section));
        }
        for n in 0..nodes.min(5) {
            let mut words = ReadCount::default();
            let paths = checked.directory.paths(node(n), ONLINE);
            let found = paths.next_counting_reads(id(count / 2 - nodes / 2), &mut words).unwrap();
            assert_eq!(found.number() % nodes as u64, n as u64);
            paths.prev_counting_reads(id(SECTIONS - 1), &mut words).unwrap();
            let words = words.words();
            assert!(words < 60, "{words} words with {nodes} nodes");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and Miri runs the other tests of this file")]
fn any_number_of_ranges_can_be_announced_and_withdrawn() {
    let (list, mut heap) = (Ranges::new(), Heap::default());
    let mut rng = fastrand::Rng::with_seed(3);
    let mut oracle = BTreeMap::new();
    let range = |n: u64| PfnRange::with_len(Pfn::new(n * 1024).unwrap(), 512).unwrap();
    for _ in 0..if cfg!(miri) { 40 } else { 3000 } {
        let n = rng.u64(0..400);
        match oracle.get(&n) {
            None => {
                assert_eq!(list.overlapping(range(n)), None);
                let node = rng.u32(..);
                let index = list.insert(range(n), node, n == 3, &mut heap).unwrap();
                assert!(oracle.values().all(|&(other, _)| other != index));
                oracle.insert(n, (index, node));
            }
            Some(&(index, _)) => {
                assert_eq!(list.overlapping(range(n)), Some(range(n)));
                list.withdraw(index);
                oracle.remove(&n);
            }
        }
        let n = rng.u64(0..400);
        let found = list.containing(range(n).start()).map(|(index, entry, range)| {
            assert_eq!((range.start().number(), entry.is_boot()), (n * 1024, n == 3));
            (index, entry.node())
        });
        assert_eq!(found, oracle.get(&n).copied());
        assert!(list.containing(Pfn::new(n * 1024 + 512).unwrap()).is_none());
        assert_eq!(list.iter().count(), oracle.len());
    }
    assert!(heap.0.len() <= 7, "{} frames", heap.0.len());
}
