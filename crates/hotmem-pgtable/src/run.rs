//! Pages alike, one after another.

use crate::batch::Slot;
use crate::entry::{Entry, Flags, Level};
use crate::range::VirtRange;
use crate::space::Owner;
use hotmem::{Bytes, PfnRange};

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
}

/// Makes runs of slots that come in the order of addresses.
#[derive(Default)]
pub(crate) struct Runs {
    /// The slot that the run begins with, and its bytes so far; none if there is no run.
    first: Slot,
    bytes: u64,
}

impl Runs {
    #[inline]
    pub(crate) fn add(&mut self, slot: &Slot, owner: &mut impl Owner) {
        let Runs { first, bytes } = *self;
        let follows = first.virt.wrapping_add(bytes) == slot.virt
            && first.entry.bits().wrapping_add(bytes) == slot.entry.bits()
            && first.level == slot.level
            && first.entry.is_present();
        if !follows || bytes == 0 {
            self.finish(owner);
            self.first = *slot;
        }
        self.bytes += slot.level.entry_bytes().0;
    }

    pub(crate) fn finish(&mut self, owner: &mut impl Owner) {
        let Slot { virt, entry, level, .. } = self.first;
        let bytes = Bytes(core::mem::take(&mut self.bytes));
        if let Ok(virt) = VirtRange::new(virt, bytes) {
            owner.unmapped(Run { virt, entry, level });
        }
    }
}
