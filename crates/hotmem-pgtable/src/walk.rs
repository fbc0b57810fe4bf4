//! Walks page tables from the root down, in the order of addresses. A cache line without entries in
//! use is skipped as a whole.

use crate::entry::{Entry, EntryAddr};
use crate::error::{StopReason, Stopped, StoppedBy};
use crate::format::Format;
use crate::level::{ENTRIES, Kind, LINE_ENTRIES, Level};
use crate::located::{LocatedEntries, LocatedEntry};
use crate::mmu::{Mmu, entry_at, occupied_line, read_occupied};
use crate::range::{OffsetRange, VirtRange};
use crate::space::Space;
use hotmem_addr::Pfn;

/// What a walk does at entries in use.
pub(crate) trait Visit<M: Mmu> {
    /// Visits consecutive entries of an L1 table.
    fn visit_lowest(
        &mut self,
        mmu: &mut M,
        located: LocatedEntries<&[Entry<M::Format>]>,
    ) -> Result<(), StoppedBy<M>>;

    /// Visits an entry above L1. `covered` says whether the walk covers the entry's whole span.
    fn visit(
        &mut self,
        mmu: &mut M,
        located: LocatedEntry<M::Format>,
        covered: bool,
    ) -> Result<Next, StoppedBy<M>>;

    /// Leaves a table below the root, after all its entries were visited.
    fn leave(&mut self, table: Pfn) {
        let _ = table;
    }
}

/// Where a walk continues after it has visited an entry.
pub(crate) enum Next {
    /// To the next entry.
    Continue,
    /// Into this table, which the entry points to.
    Descend(Pfn),
}

/// Walks the page tables of `space`, limited to `span`.
pub(crate) fn walk<M: Mmu>(
    mmu: &mut M,
    visitor: &mut impl Visit<M>,
    space: Space<M::Format>,
    span: OffsetRange,
) -> Result<(), StoppedBy<M>> {
    let full_range = OffsetRange { start: 0, end: space.root_level.table_span().0 };
    walk_table(
        mmu,
        visitor,
        TableSpan { table: space.root, level: space.root_level, span: full_range, space },
        span,
    )
}

/// A table of an address space, and the span that the table maps.
#[derive(Clone, Copy)]
pub(crate) struct TableSpan<F: Format> {
    pub(crate) table: Pfn,
    pub(crate) level: Level,
    pub(crate) span: OffsetRange,
    pub(crate) space: Space<F>,
}

impl<F: Format> TableSpan<F> {
    /// Returns the table that an entry points to, or `None` if the entry does not point to a table.
    pub(crate) fn below(located: LocatedEntry<F>, space: Space<F>) -> Option<TableSpan<F>> {
        let (Kind::Table(table), Some(level)) = (located.kind(), located.level.below()) else {
            return None;
        };
        let bytes = located.level.entry_span().0;
        let start = located.virt & (space.root_level.table_span().0 - 1) & !(bytes - 1);
        Some(TableSpan { table, level, span: OffsetRange { start, end: start + bytes }, space })
    }

    /// Returns the indices of the first and of the last entry in `span`.
    fn indices(self, span: OffsetRange) -> (usize, usize) {
        let bytes = self.level.entry_span().0;
        let index =
            |offset| usize::try_from((offset - self.span.start) / bytes).unwrap_or(ENTRIES - 1);
        (index(span.start), index(span.end - 1))
    }
}

/// Walks a table and the tables below it, limited to `span`, which lies within the table's span.
pub(crate) fn walk_table<M: Mmu>(
    mmu: &mut M,
    visitor: &mut impl Visit<M>,
    place: TableSpan<M::Format>,
    span: OffsetRange,
) -> Result<(), StoppedBy<M>> {
    let TableSpan { table, level, space, .. } = place;
    let no_table = StopReason::NotATable { frame: table, level };
    let not_a_table = Stopped::new(space.address_at(span.start), no_table);
    let (first, last) = place.indices(span);
    let Some(below_level) = level.below() else {
        return walk_lowest(mmu, visitor, place, first, last).ok_or(not_a_table)?;
    };
    let bytes = level.entry_span().0;
    let mut next = first / LINE_ENTRIES;
    while let Some((line, entries)) =
        occupied_line(mmu.table(table).ok_or(not_a_table)?, next, last / LINE_ENTRIES)
    {
        next = line + 1;
        let number = line * LINE_ENTRIES;
        for (index, entry) in (number..).zip(entries) {
            if entry.is_empty() || index < first || index > last {
                continue;
            }
            let start = place.span.start + index as u64 * bytes;
            let full_range = OffsetRange { start, end: start + bytes };
            let lowest = space.address_at(start.max(span.start));
            let located =
                LocatedEntry { virt: lowest, addr: EntryAddr::new(table, index), entry, level };
            let Next::Descend(table) = visitor.visit(mmu, located, span.covers(full_range))? else {
                continue;
            };
            let level = below_level;
            let below = TableSpan { table, level, span: full_range, space };
            walk_table(mmu, visitor, below, span.intersection(full_range))?;
            visitor.leave(table);
        }
    }
    Ok(())
}

/// The number of entries of an L1 table that are read together.
const BLOCK_ENTRIES: usize = 8 * LINE_ENTRIES;

/// Walks the entries from index `first` to index `last` of an L1 table. Returns `None` if the
/// kernel has no table in the frame.
fn walk_lowest<M: Mmu>(
    mmu: &mut M,
    visitor: &mut impl Visit<M>,
    place: TableSpan<M::Format>,
    first: usize,
    last: usize,
) -> Option<Result<(), StoppedBy<M>>> {
    let TableSpan { table, level, span: table_span, space } = place;
    let (mut entries, mut next) = ([Entry::EMPTY; BLOCK_ENTRIES], first);
    while let Some((number, count)) = read_occupied(mmu.table(table)?, next, last, &mut entries) {
        next = number + count;
        let virt = space.address_at(table_span.start + number as u64 * level.entry_span().0);
        let (addr, entries) = (EntryAddr::new(table, number), entries.get(..count)?);
        let visited =
            visitor.visit_lowest(mmu, LocatedEntries { virt, first_addr: addr, level, entries });
        if visited.is_err() {
            return Some(visited);
        }
    }
    Some(Ok(()))
}

/// Returns the last entry on the page walk for `address`: the entry of a page, or an entry that is
/// not present.
///
/// # Errors
/// [`Stopped`] if the address is not canonical, or if the walk reaches a frame in which the kernel
/// has no table.
pub fn find_entry<M: Mmu>(
    mmu: &M,
    space: Space<M::Format>,
    address: u64,
) -> Result<LocatedEntry<M::Format>, StoppedBy<M>> {
    find_entry_from(mmu, space, address, Level::L1)
}

/// Returns the last entry on the page walk for `address` that lies on level `lowest` or above.
///
/// # Errors
/// The same as for [`find_entry`].
pub fn find_entry_from<M: Mmu>(
    mmu: &M,
    space: Space<M::Format>,
    address: u64,
    lowest: Level,
) -> Result<LocatedEntry<M::Format>, StoppedBy<M>> {
    let page = VirtRange::page(address);
    let refused = |reason| Stopped::new(page.start(), reason);
    let offset = OffsetRange::of(page, space).ok_or(refused(StopReason::NotCanonical(page)))?.start;
    let (mut table, mut level) = (space.root, space.root_level);
    loop {
        let addr = EntryAddr::new(table, level.index(offset));
        let no_table = refused(StopReason::NotATable { frame: table, level });
        let entry = entry_at(mmu.table(table).ok_or(no_table)?, addr.index());
        match (entry.kind(level), level.below()) {
            (Kind::Table(below), Some(lower)) if lower >= lowest => (table, level) = (below, lower),
            _ => {
                let start = offset & !(level.entry_span().0 - 1);
                return Ok(LocatedEntry { virt: space.address_at(start), addr, entry, level });
            }
        }
    }
}

/// The error for a frame that an entry points to, but in which the kernel has no table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTable(pub Pfn);

/// Calls `each` for a table and all tables below it, for an MMU that must act on every table. A table
/// comes after the tables below it.
///
/// # Errors
/// The first error of `each`, or [`NoTable`] for the first frame that should hold a table above L1
/// but in which the kernel has no table.
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
            let occupied = occupied_line::<M::Format>(words, next, ENTRIES / LINE_ENTRIES - 1);
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
