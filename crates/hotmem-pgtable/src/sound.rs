//! Whether tables can be read to their ends: looked at before they go, for what has gone must not
//! turn out to be unreadable.

use crate::batch::{Slot, Slots};
use crate::entry::{Entry, Kind, Level};
use crate::error::{Stopped, Why};
use crate::mmu::Mmu;
use crate::range::Span;
use crate::space::Space;
use crate::walk::{Next, Place, Visit, walk, walk_table};

/// Finds what is wrong of what a space maps in `span`.
pub(crate) fn check<M: Mmu>(
    mmu: &mut M,
    space: Space,
    span: Span,
) -> Result<(), Stopped<M::Fault>> {
    walk(mmu, &mut Sound, space, span)
}

/// Whether nothing is wrong below an entry.
pub(crate) fn is_sound<M: Mmu>(mmu: &mut M, slot: Slot, space: Space) -> bool {
    match Sound.visit(mmu, slot, true) {
        Ok(Next::On) => true,
        Ok(Next::Into(_)) => Place::below(slot, space)
            .is_some_and(|place| walk_table(mmu, &mut Sound, place, place.whole).is_ok()),
        Err(_) => false,
    }
}

struct Sound;

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
            // Whatever a lowest table holds can be read.
            (Kind::Table(frame), Some(level)) if level > Level::L1 => Ok(Next::Into(frame)),
            _ => Ok(Next::On),
        }
    }
}
