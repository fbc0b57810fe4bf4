//! Pages alike, one after another.

use crate::batch::Slot;
use crate::entry::{Entry, Flags, Level};
use crate::range::VirtRange;
use crate::space::Owner;
use hotmem::PfnRange;

/// Pages that were unmapped: one after another in addresses and frames, and alike in flags,
/// Accessed and Dirty included. What the kernel had noted in entries that are not present comes
/// one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The addresses that mapped them.
    pub virt: VirtRange,
    /// The first one's entry, with its final bits.
    pub entry: Entry,
    /// The level of their tables.
    pub level: Level,
}

impl Run {
    /// The frames, if there are any behind it.
    #[must_use]
    pub fn frames(&self) -> Option<PfnRange> {
        PfnRange::with_len(self.entry.frame(self.level)?, self.virt.bytes().frames())
    }

    /// Whether any of it may have been written since Dirty was last cleared.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.entry.is_present() && self.entry.flags().contains(Flags::DIRTY)
    }

    /// Whether any of it may have been used since Accessed was last cleared.
    #[must_use]
    pub fn is_accessed(&self) -> bool {
        self.entry.is_present() && self.entry.flags().contains(Flags::ACCESSED)
    }

    fn of(slot: &Slot) -> Option<Run> {
        let virt = VirtRange::new(slot.virt, slot.level.entry_bytes()).ok()?;
        Some(Run { virt, entry: slot.entry, level: slot.level })
    }

    /// Both as one, if `next` goes on where this ends.
    fn joined(&self, next: &Run) -> Option<Run> {
        let follows = self.level == next.level
            && self.entry.is_present()
            && self.virt.last().wrapping_add(1) == next.virt.start()
            && self.entry.bits().checked_add(self.virt.bytes().0) == Some(next.entry.bits());
        let bytes = self.virt.bytes() + next.virt.bytes();
        let virt = VirtRange::new(self.virt.start(), bytes).ok().filter(|_| follows)?;
        Some(Run { virt, ..*self })
    }
}

/// Makes runs of slots that come in the order of addresses.
#[derive(Default)]
pub(crate) struct Runs {
    last: Option<Run>,
}

impl Runs {
    pub(crate) fn add(&mut self, slot: &Slot, owner: &mut impl Owner) {
        let Some(next) = Run::of(slot) else { return };
        match self.last.map(|last| last.joined(&next).ok_or(last)) {
            Some(Ok(joined)) => self.last = Some(joined),
            other => {
                if let Some(Err(last)) = other {
                    owner.unmapped(last);
                }
                self.last = Some(next);
            }
        }
    }

    pub(crate) fn finish(&mut self, owner: &mut impl Owner) {
        if let Some(last) = self.last.take() {
            owner.unmapped(last);
        }
    }
}
