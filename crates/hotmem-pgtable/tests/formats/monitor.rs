//! Watches the entries of an address space, and reports what a processor must not see: a valid entry
//! that replaces another one that a TLB may still cache, and a new entry that was not published.

use crate::common::Arena;
use crate::manual::{Manual, Meaning};
use hotmem_pgtable::{Flush, Flusher, Space, VirtRange};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// The physical address of an entry.
type Slot = u64;

/// A valid entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    bits: u64,
    virt: u64,
    level: u32,
}

/// The state that the tables and the TLBs may have.
pub(crate) struct Monitor<'a, M: Manual> {
    arena: &'a Arena,
    space: Space<M>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The entries that a TLB or a page walk may use, and that were valid at the last look.
    cached: BTreeMap<Slot, Seen>,
    /// The entries that became valid and were not published yet.
    unpublished: BTreeMap<Slot, Seen>,
    violations: Vec<String>,
    flushes: usize,
    publishes: usize,
}

impl<'a, M: Manual> Monitor<'a, M> {
    pub(crate) fn new(arena: &'a Arena, space: Space<M>) -> Self {
        Monitor { arena, space, state: RefCell::default() }
    }

    /// Looks at the tables after an operation. Returns the violations since the last call, and how
    /// often the operation has flushed and published.
    pub(crate) fn finish(&self) -> (Vec<String>, usize, usize) {
        self.look();
        let mut state = self.state.borrow_mut();
        let State { unpublished, violations, flushes, publishes, .. } = &mut *state;
        let found = std::mem::take(unpublished);
        violations.extend(found.values().map(|seen| format!("not published: {seen:?}")));
        let counts = (std::mem::take(flushes), std::mem::take(publishes));
        (std::mem::take(violations), counts.0, counts.1)
    }

    /// Compares the valid entries with those that may be cached, and returns the valid ones.
    fn look(&self) -> BTreeMap<Slot, Seen> {
        let mut now = BTreeMap::new();
        let level = self.space.root_level as u32;
        self.add_entries(self.space.root.phys_addr(), level, 0, &mut now);
        let mut state = self.state.borrow_mut();
        let State { cached, unpublished, violations, .. } = &mut *state;
        unpublished.retain(|slot, _| now.contains_key(slot));
        for (&slot, &seen) in &now {
            match cached.insert(slot, seen) {
                None => {
                    unpublished.insert(slot, seen);
                }
                Some(old) if old.bits != seen.bits => {
                    if old.level != seen.level || M::needs_break(old.bits, seen.bits, seen.level) {
                        violations.push(format!("{old:x?} became {seen:x?} without a flush"));
                    }
                }
                Some(_) => {}
            }
        }
        now
    }

    fn add_entries(&self, table: u64, level: u32, base: u64, now: &mut BTreeMap<Slot, Seen>) {
        let Some(frame) = hotmem_addr::Pfn::containing(table) else { return };
        let Some(words) = self.arena.table_at(frame) else { return };
        for (index, word) in (0..).zip(words) {
            let bits = word.load(Relaxed);
            let span = 1 << (12 + 9 * (level - 1));
            let offset = base + index * span;
            let seen = Seen { bits, virt: virt(self.space, offset), level };
            match M::meaning(bits, level) {
                Meaning::Absent => continue,
                Meaning::Table(below) => self.add_entries(below, level - 1, offset, now),
                Meaning::Page { .. } => {}
            }
            now.insert(table + index * 8, seen);
        }
    }
}

/// Returns the address of an offset: by the highest bit, or by the half of the root.
pub(crate) fn virt<M: Manual>(space: Space<M>, offset: u64) -> u64 {
    let bytes = space.root_level.table_span().0;
    let is_upper =
        if M::SPANS_BOTH_HALVES { offset >= bytes / 2 } else { space.half == M::half_of(u64::MAX) };
    if is_upper { offset.wrapping_sub(bytes) } else { offset }
}

fn overlaps(range: VirtRange, seen: Seen) -> bool {
    let last = seen.virt + ((1u64 << (12 + 9 * (seen.level - 1))) - 1);
    range.start() <= last && seen.virt <= range.last()
}

impl<M: Manual> Flusher for &Monitor<'_, M> {
    type Format = M;

    /// Forgets the entries that are no longer valid. Those that pointed to tables are forgotten only
    /// if the flush reaches the caches of page walks.
    fn flush(&mut self, flush: Flush) {
        let now = self.look();
        let mut state = self.state.borrow_mut();
        state.cached.retain(|slot, seen| {
            let is_table = matches!(M::meaning(seen.bits, seen.level), Meaning::Table(_));
            let is_flushed = overlaps(flush.range, *seen) && (flush.tables || !is_table);
            now.contains_key(slot) || !is_flushed
        });
        state.flushes += 1;
    }

    fn publish(&mut self, range: VirtRange) {
        self.look();
        let mut state = self.state.borrow_mut();
        state.unpublished.retain(|_, seen| !overlaps(range, *seen));
        state.publishes += 1;
    }
}
