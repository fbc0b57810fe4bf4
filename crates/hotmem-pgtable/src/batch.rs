//! Entries that are changed together.

use crate::entry::{Entry, EntryAddr, Kind, Level};
use hotmem::Pfn;

/// Entries in a batch; fewer under loom, whose stacks are small.
const CAPACITY: usize = if cfg!(loom) { 4 } else { 512 };

/// An entry to be changed, and what it held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The lowest address that it maps.
    pub virt: u64,
    /// Where it is.
    pub at: EntryAddr,
    /// What it was when it was read; after a get-and-clear, with its final bits.
    pub entry: Entry,
    /// The level of its table.
    pub level: Level,
}

/// Room for the entries of a batch: 16 KiB, which the caller keeps where it has room.
pub struct Batch {
    slots: [Slot; CAPACITY],
    len: usize,
}

impl Slot {
    const NONE: Slot =
        Slot { virt: 0, at: EntryAddr::new(Pfn::ZERO, 0), entry: Entry::EMPTY, level: Level::L1 };

    /// What its entry is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.entry.kind(self.level)
    }
}

impl Default for Slot {
    fn default() -> Slot {
        Slot::NONE
    }
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub const fn new() -> Batch {
        Batch { slots: [Slot::NONE; CAPACITY], len: 0 }
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        self.slots.get(..self.len).unwrap_or_default()
    }

    pub(crate) fn slots_mut(&mut self) -> &mut [Slot] {
        self.slots.get_mut(..self.len).unwrap_or_default()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == CAPACITY
    }

    /// Adds a slot; there must be room.
    pub(crate) fn push(&mut self, slot: Slot) {
        if let Some(free) = self.slots.get_mut(self.len) {
            *free = slot;
            self.len += 1;
        }
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

impl core::fmt::Debug for Batch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.slots()).finish()
    }
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}
