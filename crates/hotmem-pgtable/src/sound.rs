//! Checks that tables are well-formed before they are unhooked, so that no error can occur after
//! that.

use crate::batch::{Slot, Slots};
use crate::entry::{Entry, Kind, Level};
use crate::error::{Stopped, Why};
use crate::mmu::{Mmu, entry_at};
use crate::range::{Span, virt};
use crate::space::Space;
use crate::walk::{Next, Place, Visit, walk, walk_table};
use hotmem_addr::Pfn;

/// Finds the first malformed entry of a space in `span`.
pub(crate) fn check<M: Mmu>(
    mmu: &mut M,
    space: Space,
    span: Span,
) -> Result<(), Stopped<M::Fault>> {
    walk(mmu, &mut Sound, space, span)
}

/// Returns whether the tables below an entry are well-formed.
pub(crate) fn is_sound<M: Mmu>(mmu: &mut M, slot: Slot, space: Space) -> bool {
    walk_below(mmu, &mut Sound, slot, space).is_ok()
}

/// Returns whether the tables below an entry are well-formed, and unhooking all of them together
/// costs less than unhooking or clearing each L1 table.
pub(crate) fn unhooking_pays<M: Mmu>(mmu: &mut M, slot: Slot, space: Space) -> bool {
    let Some(least) = mmu.unhooking_pays_from(1) else { return is_sound(mmu, slot, space) };
    let mut count = Count { least, tables: 0, entries: 0, in_table: 0, saved: 0 };
    let is_sound = walk_below(mmu, &mut count, slot, space).is_ok();
    let together = mmu.unhooking_pays_from(count.tables).unwrap_or(0);
    is_sound && count.entries >= together + count.saved
}

/// Finds a root entry in `span` that differs between the two roots, if there are two.
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
        mmu.table(frame).ok_or(Stopped::before(virt(span.start, levels), missing))
    };
    let (kernels, users) = (table(root)?, table(user_root)?);
    let mut start = shared.start;
    while start < shared.end {
        let number = levels.index(start);
        let (kernel, user) = (entry_at(kernels, number), entry_at(users, number));
        if kernel != user && kernel.kind(levels) != user.kind(levels) {
            let differ = Why::RootsDiffer { kernel, user };
            return Err(Stopped::before(virt(start, levels), differ));
        }
        start = (start | (bytes - 1)) + 1;
    }
    Ok(())
}

/// Visits an entry and everything below it.
fn walk_below<M: Mmu>(
    mmu: &mut M,
    visitor: &mut impl Visit<M>,
    slot: Slot,
    space: Space,
) -> Result<(), Stopped<M::Fault>> {
    match (visitor.visit(mmu, slot, true)?, Place::below(slot, space)) {
        (Next::Into(_), Some(place)) => walk_table(mmu, visitor, place, place.whole),
        _ => Ok(()),
    }
}

struct Sound;

/// Checks like [`Sound`], and counts the tables below an entry and the entries in use.
struct Count {
    /// The number of entries from which it pays to unhook a single L1 table.
    least: u64,
    tables: u64,
    entries: u64,
    /// Entries in use of the L1 table that is being walked.
    in_table: u64,
    /// The clears that unhooking each L1 table with enough entries would save.
    saved: u64,
}

impl<M: Mmu> Visit<M> for Count {
    fn lowest(&mut self, _: &mut M, slots: Slots<&[Entry]>) -> Result<(), Stopped<M::Fault>> {
        let entries = slots.entries.len() as u64;
        (self.entries, self.in_table) = (self.entries + entries, self.in_table + entries);
        Ok(())
    }

    fn visit(&mut self, mmu: &mut M, slot: Slot, covered: bool) -> Result<Next, Stopped<M::Fault>> {
        let next = Sound.visit(mmu, slot, covered)?;
        match slot.kind() {
            Kind::Table(table) => {
                self.tables += 1;
                Ok(Next::Into(table))
            }
            _ => {
                self.entries += 1;
                Ok(next)
            }
        }
    }

    fn leave(&mut self, _: Pfn) {
        self.saved += core::mem::take(&mut self.in_table).saturating_sub(self.least);
    }
}

impl<M: Mmu> Visit<M> for Sound {
    fn lowest(&mut self, _: &mut M, _: Slots<&[Entry]>) -> Result<(), Stopped<M::Fault>> {
        Ok(())
    }

    fn visit(&mut self, mmu: &mut M, slot: Slot, _: bool) -> Result<Next, Stopped<M::Fault>> {
        let refused = |why| Err(Stopped::before(slot.virt, why));
        match (slot.kind(), slot.level.below()) {
            (Kind::Malformed, _) => refused(Why::Malformed(slot.entry)),
            (Kind::Table(frame), Some(level)) if mmu.table(frame).is_none() => {
                refused(Why::NotATable { frame, level })
            }
            // Any contents of an L1 table are well-formed.
            (Kind::Table(frame), Some(level)) if level > Level::L1 => Ok(Next::Into(frame)),
            _ => Ok(Next::On),
        }
    }
}
