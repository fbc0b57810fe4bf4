//! Stores which frames are poisoned, in a table that grows by a frame (511 entries) when it is full.

#[cfg(not(loom))]
use super::pages::PoisonPages;
use crate::addr::{Pfn, PfnRange};
use crate::sync::{AtomicU64, AtomicUsize, Ordering, array_of, const_unless_loom};

/// The number of entries in the instance itself.
const INLINE_ENTRIES: usize = if cfg!(loom) { 2 } else { 256 };

/// The state of a poisoned frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poisoned {
    /// The frame has no owner, and is never allocated again.
    Quarantined,
    /// The frame is in use. When it is freed, it is quarantined.
    InUse,
}

/// The table of poisoned frames.
pub(in crate::frames) struct PoisonTable {
    entries: [AtomicU64; INLINE_ENTRIES],
    /// The number of entries, from the first, that have ever listed a frame.
    entries_used: AtomicUsize,
    #[cfg(not(loom))]
    pages: PoisonPages,
}

/// An entry that names no frame.
pub(in crate::frames) const NONE: u64 = 0;
/// The flag of an entry whose frame is quarantined.
const QUARANTINED: u64 = 1;

/// Returns the entry for a frame that is in use.
fn entry(frame: Pfn) -> u64 {
    (frame.number() + 1) << 1
}

impl PoisonTable {
    const_unless_loom! {
        pub(crate) fn new() -> PoisonTable {
            PoisonTable {
                entries: array_of![AtomicU64::new(NONE); INLINE_ENTRIES],
                entries_used: AtomicUsize::new(0),
                #[cfg(not(loom))]
                pages: PoisonPages::none(),
            }
        }
    }

    /// Returns the entries that may list a frame. Acquire, here and in `frames`, pairs with the
    /// Release in `insert`.
    fn used_entries(&self) -> impl Iterator<Item = &AtomicU64> {
        let used = self.entries_used.load(Ordering::Acquire).min(INLINE_ENTRIES);
        let inline = self.entries[..used].iter();
        #[cfg(not(loom))]
        let inline = inline.chain(self.pages.entries());
        inline
    }

    /// Returns the pages of the table.
    #[cfg(not(loom))]
    pub(super) fn pages(&self) -> &PoisonPages {
        &self.pages
    }

    /// Returns all poisoned frames.
    pub(crate) fn frames(&self) -> impl Iterator<Item = (Pfn, Poisoned)> {
        self.used_entries().filter_map(|entry| {
            let entry = entry.load(Ordering::Acquire);
            let frame = Pfn::new((entry >> 1).checked_sub(1)?)?;
            Some((
                frame,
                if entry & QUARANTINED == 0 { Poisoned::InUse } else { Poisoned::Quarantined },
            ))
        })
    }

    /// Returns the state of a frame, if it is poisoned.
    pub(super) fn state_of(&self, frame: Pfn) -> Option<Poisoned> {
        self.frames().find(|&(poisoned, _)| poisoned == frame).map(|(_, state)| state)
    }

    /// Inserts a frame as in use. Returns false if the table is full. Control path only.
    pub(crate) fn insert(&self, frame: Pfn) -> bool {
        let is_unused = |e: &AtomicU64| e.load(Ordering::Relaxed) == NONE;
        if let Some(at) = self.entries.iter().position(is_unused) {
            self.entries[at].store(entry(frame), Ordering::Release);
            self.entries_used.fetch_max(at + 1, Ordering::AcqRel);
            return true;
        }
        #[cfg(not(loom))]
        if let Some(unused) = self.pages.entries().find(|&e| is_unused(e)) {
            unused.store(entry(frame), Ordering::Release);
            return true;
        }
        false
    }

    /// Changes the entry of a frame to `new_entry`, if the entry says that the frame is in use.
    /// Returns whether it did.
    pub(crate) fn change(&self, frame: Pfn, new_entry: u64) -> bool {
        self.used_entries().any(|e| {
            let in_use = entry(frame);
            e.compare_exchange(in_use, new_entry, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Records that a frame is quarantined, if the table says that it is in use.
    pub(super) fn quarantine(&self, frame: Pfn) -> bool {
        self.change(frame, entry(frame) | QUARANTINED)
    }

    /// Removes the frames of `range`. Control path only.
    pub(crate) fn remove(&self, range: PfnRange) {
        for e in self.used_entries() {
            let frame = (e.load(Ordering::Acquire) >> 1).checked_sub(1).and_then(Pfn::new);
            if frame.is_some_and(|frame| range.contains(frame)) {
                e.store(NONE, Ordering::Release);
            }
        }
    }
}
