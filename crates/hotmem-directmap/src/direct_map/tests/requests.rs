//! Requests on one direct map that are in flight at the same time, as the engine makes them.

use super::range;
use crate::arena::{Arena, Processor};
use crate::direct_map::{DirectMap, LARGE_FRAMES, tables_needed};
use crate::{Area, Caching};
use hotmem_addr::{Bytes, Pfn, PfnRange};
use hotmem_pgtable::{Aarch64, Flusher, Format, Riscv64, X86_64};

/// A pool of frames for tables, and requests that are in flight on one direct map, as the engine
/// makes them.
struct Machine<'a, F: Flusher> {
    map: DirectMap<&'a Arena, F>,
    free_frames: Vec<Pfn>,
    additions: Vec<(PfnRange, Vec<Pfn>)>,
    removals: Vec<PfnRange>,
    mapped: Vec<PfnRange>,
}

impl<F: Flusher + Copy> Machine<'_, F> {
    fn is_unused(&self, range: PfnRange) -> bool {
        let additions = self.additions.iter().map(|(range, _)| range);
        let mut used = additions.chain(&self.removals).chain(&self.mapped);
        used.all(|used| used.intersection(range).is_empty())
    }

    /// Prepares an addition: sets frames aside for its tables.
    fn prepare_add(&mut self, range: PfnRange) {
        let needed = usize::try_from(tables_needed(range)).unwrap();
        let frames = self.free_frames.split_off(self.free_frames.len() - needed);
        self.additions.push((range, frames));
    }

    fn end_add(&mut self, nth: usize, is_committed: bool) {
        let (range, mut frames) = self.additions.swap_remove(nth);
        if is_committed {
            self.map.map(range, Caching::WriteBack, || frames.pop()).unwrap();
            self.mapped.push(range);
        }
        self.free_frames.extend(frames);
    }

    fn prepare_remove(&mut self, nth: usize) {
        let range = self.mapped.swap_remove(nth);
        self.map.unmap(range).unwrap();
        self.removals.push(range);
    }

    fn end_remove(&mut self, nth: usize, is_committed: bool) {
        let range = self.removals.swap_remove(nth);
        if is_committed {
            let Machine { map, free_frames, .. } = self;
            map.release_tables(range, |frame| free_frames.push(frame));
        } else {
            self.map.map(range, Caching::WriteBack, || None).unwrap();
            self.mapped.push(range);
        }
    }
}

/// Requests of several devices are in flight, and end in any order. None lacks a frame that it was
/// promised, and nothing is left of them.
fn end_in_any_order<F: Format>(area: Area, border: Bytes, huge_pages: bool) {
    const FRAMES: usize = 1000;
    let mut random = 1_u64;
    let mut random = |below: usize| {
        // A linear congruential generator (Knuth, MMIX).
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % below
    };
    let arena = Arena::new(FRAMES);
    let processor = Processor::<F>::new(&arena);
    let mut machine = Machine {
        map: DirectMap::new(&arena, arena.root(), area, huge_pages, processor),
        free_frames: std::iter::from_fn(|| arena.frame()).collect(),
        additions: vec![],
        removals: vec![],
        mapped: vec![],
    };
    let all_frames = machine.free_frames.len();
    for _ in 0..20_000 {
        match random(7) {
            0 if machine.additions.len() < 8 => {
                // Memory of up to 2.5 GiB around the border.
                let start =
                    Bytes(border.0 - Bytes::gib(2).0 + Bytes::mib(256).0 * random(16) as u64);
                let requested = range(start, Bytes::mib([2, 256, 1024, 2560][random(4)]));
                if machine.is_unused(requested) {
                    machine.prepare_add(requested);
                }
            }
            1 | 2 if !machine.additions.is_empty() => {
                let nth = random(machine.additions.len());
                machine.end_add(nth, random(4) != 0);
            }
            3 if !machine.mapped.is_empty() => {
                let nth = random(machine.mapped.len());
                machine.prepare_remove(nth);
            }
            4 if !machine.removals.is_empty() => {
                let removal = machine.removals.swap_remove(random(machine.removals.len()));
                let pages = usize::try_from(removal.frames() / LARGE_FRAMES).unwrap();
                let below = LARGE_FRAMES * random(pages) as u64;
                let (below, above) = removal.split_at(removal.start().checked_add(below).unwrap());
                let parts = [below, above].into_iter().filter(|part| !part.is_empty());
                machine.removals.extend(parts);
            }
            _ if !machine.removals.is_empty() => {
                let nth = random(machine.removals.len());
                machine.end_remove(nth, random(2) == 0);
            }
            _ => {}
        }
        for &mapped in &machine.mapped {
            let last = Pfn::new(mapped.end().number() - 1).unwrap();
            assert!(machine.map.is_mapped(mapped.start()) && machine.map.is_mapped(last));
        }
    }
    while !machine.additions.is_empty() {
        machine.end_add(0, false);
    }
    while !machine.mapped.is_empty() {
        machine.prepare_remove(0);
    }
    while !machine.removals.is_empty() {
        machine.end_remove(0, true);
    }
    assert!(arena.is_empty());
    assert_eq!(machine.free_frames.len(), all_frames);
}

/// 512 GiB: the span of an entry of the root.
const BORDER: Bytes = Bytes::gib(512);

fn four_levels() -> Area {
    Area::new(super::BASE, super::BYTES).unwrap()
}

#[test]
fn requests_in_flight_end_in_any_order_on_x86_64() {
    end_in_any_order::<X86_64>(four_levels(), BORDER, false);
    end_in_any_order::<X86_64>(four_levels(), BORDER, true);
}

#[test]
fn requests_in_flight_end_in_any_order_on_aarch64() {
    end_in_any_order::<Aarch64>(four_levels(), BORDER, true);
}

#[test]
fn requests_in_flight_end_in_any_order_on_riscv64() {
    end_in_any_order::<Riscv64>(four_levels(), BORDER, true);
    let half = Bytes::gib(256);
    let three_levels = Area::of_three_levels(half.0.wrapping_neg(), half).unwrap();
    end_in_any_order::<Riscv64>(three_levels, Bytes::gib(128), true);
}
