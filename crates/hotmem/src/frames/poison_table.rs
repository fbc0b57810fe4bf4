//! The table of poisoned frames.

use crate::addr::{Pfn, PfnRange};
use crate::sync::{AtomicU64, AtomicUsize, Ordering, array_of, const_unless_loom};

/// Most frames that can be poisoned at one time.
pub const MAX_POISONED: usize = if cfg!(loom) { 2 } else { 256 };

/// What has become of a poisoned frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poisoned {
    /// Nobody has it and nobody can get it.
    Out,
    /// Somebody has it; it goes out when it is freed.
    InUse,
}

/// Which frames are poisoned.
pub(super) struct Table {
    entries: [AtomicU64; MAX_POISONED],
    /// Entries below this have been used.
    used: AtomicUsize,
}

/// An entry that names no frame.
pub(super) const NONE: u64 = 0;
/// Set in an entry whose frame is out.
const OUT: u64 = 1;

/// The entry of a frame that is not out.
fn entry(frame: Pfn) -> u64 {
    (frame.number() + 1) << 1
}

impl Table {
    const_unless_loom! {
        pub(super) fn new() -> Table {
            Table {
                entries: array_of![AtomicU64::new(NONE); MAX_POISONED],
                used: AtomicUsize::new(0),
            }
        }
    }

    /// Those that have been used. Acquire, here and below, pairs with the Release in `insert`.
    fn used(&self) -> &[AtomicU64] {
        &self.entries[..self.used.load(Ordering::Acquire).min(MAX_POISONED)]
    }

    /// All poisoned frames.
    pub(super) fn frames(&self) -> impl Iterator<Item = (Pfn, Poisoned)> {
        self.used().iter().filter_map(|entry| {
            let entry = entry.load(Ordering::Acquire);
            let frame = Pfn::new((entry >> 1).checked_sub(1)?)?;
            Some((frame, if entry & OUT == 0 { Poisoned::InUse } else { Poisoned::Out }))
        })
    }

    pub(super) fn state_of(&self, frame: Pfn) -> Option<Poisoned> {
        self.frames().find(|&(poisoned, _)| poisoned == frame).map(|(_, state)| state)
    }

    /// The control path only. False if there is no room.
    pub(super) fn insert(&self, frame: Pfn) -> bool {
        let unused = self.entries.iter().position(|e| e.load(Ordering::Relaxed) == NONE);
        let Some(at) = unused else { return false };
        self.entries[at].store(entry(frame), Ordering::Release);
        self.used.fetch_max(at + 1, Ordering::AcqRel);
        true
    }

    /// From [`Poisoned::InUse`] to `next`. False if it was not that.
    pub(super) fn change(&self, frame: Pfn, next: u64) -> bool {
        self.used().iter().any(|e| {
            let in_use = entry(frame);
            e.compare_exchange(in_use, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    pub(super) fn take_out(&self, frame: Pfn) -> bool {
        self.change(frame, entry(frame) | OUT)
    }

    /// The control path only.
    pub(super) fn remove(&self, range: PfnRange) {
        for e in self.used() {
            let frame = (e.load(Ordering::Acquire) >> 1).checked_sub(1).and_then(Pfn::new);
            if frame.is_some_and(|frame| range.contains(frame)) {
                e.store(NONE, Ordering::Release);
            }
        }
    }
}
