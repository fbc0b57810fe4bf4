//! Checks that tables are well-formed before they are unhooked, so that reading them after that
//! cannot fail.

use crate::entry::Entry;
use crate::error::{StopReason, Stopped, StoppedBy};
use crate::level::{Kind, Level};
use crate::located::{LocatedEntries, LocatedEntry};
use crate::mmu::{Mmu, entry_at};
use crate::range::OffsetRange;
use crate::space::Space;
use crate::walk::{Next, TableSpan, Visit, walk, walk_table};
use hotmem_addr::Pfn;

/// Checks that all entries of an address space in `span` are well-formed. The error names the first
/// one that is not.
pub(crate) fn check_well_formed<M: Mmu>(
    mmu: &mut M,
    space: Space<M::Format>,
    span: OffsetRange,
) -> Result<(), StoppedBy<M>> {
    walk(mmu, &mut WellFormed, space, span)
}

/// Returns whether the tables below an entry are well-formed.
pub(crate) fn is_well_formed<M: Mmu>(
    mmu: &mut M,
    located: LocatedEntry<M::Format>,
    space: Space<M::Format>,
) -> bool {
    walk_below(mmu, &mut WellFormed, located, space).is_ok()
}

/// Returns whether all tables below an entry should be unhooked together: they are well-formed, and
/// this costs less than to unhook or clear each L1 table by itself.
pub(crate) fn is_cheaper_to_unhook<M: Mmu>(
    mmu: &mut M,
    located: LocatedEntry<M::Format>,
    space: Space<M::Format>,
) -> bool {
    let Some(min_entries) = mmu.min_entries_to_unhook(1) else {
        return is_well_formed(mmu, located, space);
    };
    let mut counter =
        TableCounter { min_entries, tables: 0, entries: 0, table_entries: 0, saved_cost: 0 };
    let is_well_formed = walk_below(mmu, &mut counter, located, space).is_ok();
    let min_entries_together = mmu.min_entries_to_unhook(counter.tables).unwrap_or(0);
    is_well_formed && counter.entries >= min_entries_together + counter.saved_cost
}

/// Checks that the entries of the two roots in `span` are of the same kind and point to the same
/// tables, if the address space has two roots. The error names the first entries that do not agree.
pub(crate) fn check_roots<M: Mmu>(
    mmu: &M,
    space: Space<M::Format>,
    span: OffsetRange,
) -> Result<(), StoppedBy<M>> {
    let Space { root, user_root: Some(user_root), root_level, .. } = space else { return Ok(()) };
    let bytes = root_level.entry_span().0;
    let shared = span.intersection(OffsetRange { start: 0, end: space.user_bytes() });
    let table = |frame| {
        let not_a_table = StopReason::NotATable { frame, level: root_level };
        mmu.table(frame).ok_or(Stopped::new(space.address_at(span.start), not_a_table))
    };
    let (kernel_table, user_table) = (table(root)?, table(user_root)?);
    let mut start = shared.start;
    while start < shared.end {
        let index = root_level.index(start);
        let (kernel, user) = (entry_at(kernel_table, index), entry_at(user_table, index));
        if kernel != user && kernel.kind(root_level) != user.kind(root_level) {
            let differ = StopReason::RootsDiffer { kernel, user };
            return Err(Stopped::new(space.address_at(start), differ));
        }
        start = (start | (bytes - 1)) + 1;
    }
    Ok(())
}

/// Walks an entry and all tables below it.
fn walk_below<M: Mmu>(
    mmu: &mut M,
    visitor: &mut impl Visit<M>,
    located: LocatedEntry<M::Format>,
    space: Space<M::Format>,
) -> Result<(), StoppedBy<M>> {
    match (visitor.visit(mmu, located, true)?, TableSpan::below(located, space)) {
        (Next::Descend(_), Some(table_span)) => {
            walk_table(mmu, visitor, table_span, table_span.span)
        }
        _ => Ok(()),
    }
}

/// Checks that all entries above L1 are well-formed.
struct WellFormed;

/// Checks the tables below an entry as [`WellFormed`] does. Counts these tables and their entries
/// in use.
struct TableCounter {
    /// If an L1 table has at least this number of entries in use, it costs less to unhook the table
    /// by itself than to clear its entries.
    min_entries: u64,
    tables: u64,
    entries: u64,
    /// The number of entries in use of the L1 table that is being walked.
    table_entries: u64,
    /// What it saves, counted in cleared entries, to unhook by itself each L1 table with more than
    /// `min_entries` entries in use: its entries less `min_entries`, the cost of unhooking it.
    saved_cost: u64,
}

impl<M: Mmu> Visit<M> for TableCounter {
    fn visit_lowest(
        &mut self,
        _: &mut M,
        located: LocatedEntries<&[Entry<M::Format>]>,
    ) -> Result<(), StoppedBy<M>> {
        let entries = located.entries.len() as u64;
        (self.entries, self.table_entries) = (self.entries + entries, self.table_entries + entries);
        Ok(())
    }

    fn visit(
        &mut self,
        mmu: &mut M,
        located: LocatedEntry<M::Format>,
        covered: bool,
    ) -> Result<Next, StoppedBy<M>> {
        let next = WellFormed.visit(mmu, located, covered)?;
        match located.kind() {
            Kind::Table(table) => {
                self.tables += 1;
                Ok(Next::Descend(table))
            }
            _ => {
                self.entries += 1;
                Ok(next)
            }
        }
    }

    fn leave(&mut self, _: Pfn) {
        self.saved_cost +=
            core::mem::take(&mut self.table_entries).saturating_sub(self.min_entries);
    }
}

impl<M: Mmu> Visit<M> for WellFormed {
    fn visit_lowest(
        &mut self,
        _: &mut M,
        _: LocatedEntries<&[Entry<M::Format>]>,
    ) -> Result<(), StoppedBy<M>> {
        Ok(())
    }

    fn visit(
        &mut self,
        mmu: &mut M,
        located: LocatedEntry<M::Format>,
        _: bool,
    ) -> Result<Next, StoppedBy<M>> {
        let refused = |reason| Err(Stopped::new(located.virt, reason));
        match (located.kind(), located.level.below()) {
            (Kind::Malformed, _) => refused(StopReason::Malformed(located.entry)),
            (Kind::Table(frame), Some(level)) if mmu.table(frame).is_none() => {
                refused(StopReason::NotATable { frame, level })
            }
            // Any contents of an L1 table are well-formed.
            (Kind::Table(frame), Some(level)) if level > Level::L1 => Ok(Next::Descend(frame)),
            _ => Ok(Next::Continue),
        }
    }
}
