//! Walks page tables from the top down, in the order of addresses. Empty cache lines are skipped
//! whole.

use crate::batch::{Slot, Slots};
use crate::entry::{ENTRIES, Entry, EntryAddr, Kind, LINE, Level};
use crate::error::{Stopped, Why};
use crate::mmu::{Mmu, entry_at, occupied, occupied_line};
use crate::range::{Span, VirtRange, virt};
use crate::space::Space;
use hotmem_addr::Pfn;

/// The action of a walk at entries in use.
pub(crate) trait Visit<M: Mmu> {
    /// Visits entries of an L1 table.
    fn lowest(&mut self, mmu: &mut M, slots: Slots<&[Entry]>) -> Result<(), Stopped<M::Fault>>;

    /// Visits an entry above L1. `covered` says whether the walk covers the entry's whole span.
    fn visit(&mut self, mmu: &mut M, slot: Slot, covered: bool) -> Result<Next, Stopped<M::Fault>>;

    /// Called after all entries of a table were visited.
    fn leave(&mut self, table: Pfn) {
        let _ = table;
    }
}

/// Where a walk continues after an entry.
pub(crate) enum Next {
    /// To the next entry.
    On,
    /// Into this table, which is below the entry.
    Into(Pfn),
}

/// Walks the page tables of `space` in `span`.
pub(crate) fn walk<M: Mmu>(
    mmu: &mut M,
    visitor: &mut impl Visit<M>,
    space: Space,
    span: Span,
) -> Result<(), Stopped<M::Fault>> {
    let whole = Span { start: 0, end: space.levels.table_bytes().0 };
    walk_table(mmu, visitor, Place { table: space.root, level: space.levels, whole, space }, span)
}

/// A table and its span.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) table: Pfn,
    pub(crate) level: Level,
    pub(crate) whole: Span,
    pub(crate) space: Space,
}

impl Place {
    /// Returns the table that an entry points to.
    pub(crate) fn below(slot: Slot, space: Space) -> Option<Place> {
        let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) else {
            return None;
        };
        let bytes = slot.level.entry_bytes().0;
        let start = slot.virt & (space.levels.table_bytes().0 - 1) & !(bytes - 1);
        Some(Place { table, level, whole: Span { start, end: start + bytes }, space })
    }

    /// Returns the numbers of the first and the last entry in the span.
    fn indices(self, span: Span) -> (usize, usize) {
        let bytes = self.level.entry_bytes().0;
        let index = |offset| {
            usize::try_from((offset - self.whole.start) / bytes).map_or(ENTRIES - 1, |i: usize| i)
        };
        (index(span.start), index(span.end - 1))
    }
}

/// Walks one table and those below it; `span` lies within the table's span.
pub(crate) fn walk_table<M: Mmu>(
    mmu: &mut M,
    visitor: &mut impl Visit<M>,
    place: Place,
    span: Span,
) -> Result<(), Stopped<M::Fault>> {
    let Place { table, level, space, .. } = place;
    let not_there = Why::NotATable { frame: table, level };
    let missing = Stopped::before(virt(span.start, space.levels), not_there);
    let (first, last) = place.indices(span);
    let Some(below_level) = level.below() else {
        return walk_lowest(mmu, visitor, place, first, last).ok_or(missing)?;
    };
    let bytes = level.entry_bytes().0;
    let mut next = first / LINE;
    while let Some((line, entries)) =
        occupied_line(mmu.table(table).ok_or(missing)?, next, last / LINE)
    {
        next = line + 1;
        let number = line * LINE;
        for (index, entry) in (number..).zip(entries) {
            if entry.is_empty() || index < first || index > last {
                continue;
            }
            let start = place.whole.start + index as u64 * bytes;
            let whole = Span { start, end: start + bytes };
            let lowest = virt(start.max(span.start), space.levels);
            let slot = Slot { virt: lowest, at: EntryAddr::new(table, index), entry, level };
            let Next::Into(table) = visitor.visit(mmu, slot, span.covers(whole))? else { continue };
            let level = below_level;
            let below = Place { table, level, whole, space };
            walk_table(mmu, visitor, below, span.intersection(whole))?;
            visitor.leave(table);
        }
    }
    Ok(())
}

/// The number of entries of an L1 table that are read together.
const BLOCK: usize = 8 * LINE;

/// Walks a part of an L1 table. Returns `None` if the kernel has no table there.
fn walk_lowest<M: Mmu>(
    mmu: &mut M,
    visitor: &mut impl Visit<M>,
    place: Place,
    first: usize,
    last: usize,
) -> Option<Result<(), Stopped<M::Fault>>> {
    let Place { table, level, whole, space } = place;
    let (mut entries, mut next) = ([Entry::EMPTY; BLOCK], first);
    while let Some((number, count)) = occupied(mmu.table(table)?, next, last, &mut entries) {
        next = number + count;
        let virt = virt(whole.start + number as u64 * level.entry_bytes().0, space.levels);
        let (at, entries) = (EntryAddr::new(table, number), entries.get(..count)?);
        let visited = visitor.lowest(mmu, Slots { virt, at, level, entries });
        if visited.is_err() {
            return Some(visited);
        }
    }
    Some(Ok(()))
}

/// Returns the last entry on the page walk for `address`: the entry of a page, or the entry that is
/// not present where the walk ends.
///
/// # Errors
/// [`Stopped`] if the address is not canonical, or the walk reaches a frame that is not a table.
pub fn slot_at<M: Mmu>(mmu: &M, space: Space, address: u64) -> Result<Slot, Stopped<M::Fault>> {
    slot_from(mmu, space, address, Level::L1)
}

/// Returns the last entry on the page walk for `address` that lies on level `lowest` or above.
///
/// # Errors
/// As for [`slot_at`].
pub fn slot_from<M: Mmu>(
    mmu: &M,
    space: Space,
    address: u64,
    lowest: Level,
) -> Result<Slot, Stopped<M::Fault>> {
    let page = VirtRange::page(address);
    let refused = |why| Stopped::before(page.start(), why);
    let offset = Span::of(page, space.levels).ok_or(refused(Why::NotCanonical(page)))?.start;
    let (mut table, mut level) = (space.root, space.levels);
    loop {
        let at = EntryAddr::new(table, level.index(offset));
        let not_there = refused(Why::NotATable { frame: table, level });
        let entry = entry_at(mmu.table(table).ok_or(not_there)?, at.index());
        match (entry.kind(level), level.below()) {
            (Kind::Table(below), Some(lower)) if lower >= lowest => (table, level) = (below, lower),
            _ => {
                let start = offset & !(level.entry_bytes().0 - 1);
                return Ok(Slot { virt: virt(start, space.levels), at, entry, level });
            }
        }
    }
}

/// A frame that should hold a table but is not a table of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTable(pub Pfn);

/// Calls `each` for a table and all tables below it, children first, for machines that must act on
/// every table.
///
/// # Errors
/// The first error of `each`, or [`NoTable`] for the first frame above L1 that is not a table of
/// the kernel's.
pub fn each_table<M: Mmu, E: From<NoTable>>(
    mmu: &mut M,
    table: Pfn,
    level: Level,
    each: &mut impl FnMut(&mut M, Pfn, Level) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(below) = level.below() {
        let mut next = 0;
        loop {
            let words = mmu.table(table).ok_or(NoTable(table))?;
            let occupied = occupied_line(words, next, ENTRIES / LINE - 1);
            let Some((line, entries)) = occupied else { break };
            next = line + 1;
            for entry in entries {
                if let Kind::Table(table) = entry.kind(level) {
                    each_table(mmu, table, below, each)?;
                }
            }
        }
    }
    each(mmu, table, level)
}
