//! Checks that tables are well-formed before they are unhooked, so that reading them after that
//! cannot fail.

use crate::batch::{Slot, Slots};
use crate::entry::{Entry, Kind, Level};
use crate::error::{Stopped, Why};
use crate::mmu::{Mmu, entry_at};
use crate::range::{Span, address_at};
use crate::space::Space;
use crate::walk::{Next, TableSpan, Visit, walk, walk_table};
use hotmem_addr::Pfn;

/// Checks that all entries of an address space in `span` are well-formed. The error names the first
/// one that is not.
pub(crate) fn check<M: Mmu>(
    mmu: &mut M,
    space: Space,
    span: Span,
) -> Result<(), Stopped<M::Fault>> {
    walk(mmu, &mut WellFormed, space, span)
}

/// Returns whether the tables below an entry are well-formed.
pub(crate) fn is_well_formed<M: Mmu>(mmu: &mut M, slot: Slot, space: Space) -> bool {
    walk_below(mmu, &mut WellFormed, slot, space).is_ok()
}

/// Returns whether the tables below an entry are well-formed, and it costs less to unhook all of
/// them together than to unhook or clear each L1 table by itself.
pub(crate) fn unhooking_pays<M: Mmu>(mmu: &mut M, slot: Slot, space: Space) -> bool {
    let Some(min_entries) = mmu.min_entries_to_unhook(1) else {
        return is_well_formed(mmu, slot, space);
    };
    let mut count = Count { min_entries, tables: 0, entries: 0, table_entries: 0, saved_clears: 0 };
    let is_well_formed = walk_below(mmu, &mut count, slot, space).is_ok();
    let min_together = mmu.min_entries_to_unhook(count.tables).unwrap_or(0);
    is_well_formed && count.entries >= min_together + count.saved_clears
}

/// Checks that the entries of the two roots in `span` are of the same kind and point to the same
/// tables, if the address space has two roots. The error names the first entries that do not agree.
pub(crate) fn check_roots<M: Mmu>(
    mmu: &M,
    space: Space,
    span: Span,
) -> Result<(), Stopped<M::Fault>> {
    let Space { root, user_root: Some(user_root), levels } = space else { return Ok(()) };
    let bytes = levels.entry_bytes().0;
    let shared = span.intersection(Span { start: 0, end: levels.table_bytes().0 / 2 });
    let table = |frame| {
        let missing = Why::NotATable { frame, level: levels };
        mmu.table(frame).ok_or(Stopped::new(address_at(span.start, levels), missing))
    };
    let (kernels, users) = (table(root)?, table(user_root)?);
    let mut start = shared.start;
    while start < shared.end {
        let number = levels.index(start);
        let (kernel, user) = (entry_at(kernels, number), entry_at(users, number));
        if kernel != user && kernel.kind(levels) != user.kind(levels) {
            let differ = Why::RootsDiffer { kernel, user };
            return Err(Stopped::new(address_at(start, levels), differ));
        }
        start = (start | (bytes - 1)) + 1;
    }
    Ok(())
}

/// Walks an entry and all tables below it.
fn walk_below<M: Mmu>(
    mmu: &mut M,
    visitor: &mut impl Visit<M>,
    slot: Slot,
    space: Space,
) -> Result<(), Stopped<M::Fault>> {
    match (visitor.visit(mmu, slot, true)?, TableSpan::below(slot, space)) {
        (Next::Descend(_), Some(place)) => walk_table(mmu, visitor, place, place.span),
        _ => Ok(()),
    }
}

/// Checks that all entries above L1 are well-formed.
struct WellFormed;

/// Checks tables as [`WellFormed`] does, and counts the tables below an entry and their entries in
/// use.
struct Count {
    /// The number of entries in use from which on it costs less to unhook a single L1 table than to
    /// clear its entries.
    min_entries: u64,
    tables: u64,
    entries: u64,
    /// The number of entries in use of the L1 table that is being walked.
    table_entries: u64,
    /// The number of clears that are saved_clears if each L1 table with enough entries is unhooked
    /// by itself.
    saved_clears: u64,
}

impl<M: Mmu> Visit<M> for Count {
    fn visit_lowest(&mut self, _: &mut M, slots: Slots<&[Entry]>) -> Result<(), Stopped<M::Fault>> {
        let entries = slots.entries.len() as u64;
        (self.entries, self.table_entries) = (self.entries + entries, self.table_entries + entries);
        Ok(())
    }

    fn visit(&mut self, mmu: &mut M, slot: Slot, covered: bool) -> Result<Next, Stopped<M::Fault>> {
        let next = WellFormed.visit(mmu, slot, covered)?;
        match slot.kind() {
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
        self.saved_clears +=
            core::mem::take(&mut self.table_entries).saturating_sub(self.min_entries);
    }
}

impl<M: Mmu> Visit<M> for WellFormed {
    fn visit_lowest(&mut self, _: &mut M, _: Slots<&[Entry]>) -> Result<(), Stopped<M::Fault>> {
        Ok(())
    }

    fn visit(&mut self, mmu: &mut M, slot: Slot, _: bool) -> Result<Next, Stopped<M::Fault>> {
        let refused = |why| Err(Stopped::new(slot.virt, why));
        match (slot.kind(), slot.level.below()) {
            (Kind::Malformed, _) => refused(Why::Malformed(slot.entry)),
            (Kind::Table(frame), Some(level)) if mmu.table(frame).is_none() => {
                refused(Why::NotATable { frame, level })
            }
            // Any contents of an L1 table are well-formed.
            (Kind::Table(frame), Some(level)) if level > Level::L1 => Ok(Next::Descend(frame)),
            _ => Ok(Next::Continue),
        }
    }
}
