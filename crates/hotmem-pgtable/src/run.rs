//! Pages alike, one after another.

use crate::batch::Slots;
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
pub(crate) struct Runs {
    /// The run so far; none if it has no bytes.
    virt: u64,
    bytes: u64,
    entry: Entry,
    level: Level,
}

impl Default for Runs {
    fn default() -> Runs {
        Runs { virt: 0, bytes: 0, entry: Entry::EMPTY, level: Level::L1 }
    }
}

impl Runs {
    #[inline]
    pub(crate) fn add(&mut self, slots: Slots<&[Entry]>, owner: &mut impl Owner) {
        let Slots { mut virt, level, entries, .. } = slots;
        let page = level.entry_bytes().0;
        let mut goes_on =
            self.bytes != 0 && self.virt.wrapping_add(self.bytes) == virt && self.level == level;
        for &entry in entries {
            let next = self.entry.bits().wrapping_add(self.bytes);
            if !(goes_on && next == entry.bits() && entry.is_present()) {
                self.finish(owner);
                *self = Runs { virt, bytes: 0, entry, level };
            }
            self.bytes += page;
            virt = virt.wrapping_add(page);
            goes_on = true;
        }
    }

    pub(crate) fn finish(&mut self, owner: &mut impl Owner) {
        let Runs { virt, entry, level, .. } = *self;
        let bytes = Bytes(core::mem::take(&mut self.bytes));
        if let Ok(virt) = VirtRange::new(virt, bytes) {
            owner.unmapped(Run { virt, entry, level });
        }
    }
}
