//! Holds the table reserve: single frames kept for page tables and descriptors, so that memory can
//! be added when no kernel memory is free.
//!
//! The mapping says at boot how many frames the reserve has. Frames for tables come from free
//! kernel memory, and from the reserve only if there is not enough. Each frame that a request for
//! tables gives back goes to the reserve first, if a frame is missing there. Otherwise the reserve
//! is filled when the word reserve is filled.
//!
//! A prepared addition may be dropped on any thread, so frames are put into the reserve by a
//! compare-exchange and taken out by an exchange.

use crate::addr::Pfn;
use crate::mapping::MAX_TABLE_RESERVE;
use crate::sync::{AtomicU64, Ordering, array_of, const_unless_loom, untracked};

/// The frames in the reserve.
pub(crate) struct TableReserve {
    /// The number of frames in a full reserve; set at boot.
    size: untracked::AtomicU64,
    /// The number of each frame + 1, or 0 where a frame is missing. Only the first `size` places
    /// are used.
    places: [AtomicU64; MAX_TABLE_RESERVE],
}

impl TableReserve {
    const_unless_loom! {
        pub(crate) fn empty() -> TableReserve {
            TableReserve {
                size: untracked::AtomicU64::new(0),
                places: array_of![AtomicU64::new(0); MAX_TABLE_RESERVE],
            }
        }
    }

    /// Sets the number of frames in a full reserve, at most [`MAX_TABLE_RESERVE`]. Boot only.
    pub(crate) fn set_size(&self, frames: u64) {
        // Relaxed: no other thread uses the instance yet.
        self.size.store(frames, Ordering::Relaxed);
    }

    fn places(&self) -> impl Iterator<Item = &AtomicU64> {
        let size = self.size.load(Ordering::Relaxed);
        self.places.iter().take(usize::try_from(size).unwrap_or(MAX_TABLE_RESERVE))
    }

    /// Lists the frames in the reserve: a snapshot.
    pub(crate) fn frames(&self) -> impl Iterator<Item = Pfn> {
        let frame = |place: &AtomicU64| place.load(Ordering::Relaxed).checked_sub(1);
        self.places().filter_map(frame).filter_map(Pfn::new)
    }

    /// Counts the frames that are missing: a snapshot.
    pub(crate) fn count_missing(&self) -> u64 {
        self.places().filter(|place| place.load(Ordering::Relaxed) == 0).count() as u64
    }

    /// Takes a frame out of the reserve.
    pub(crate) fn take(&self) -> Option<Pfn> {
        let is_filled = |place: &&AtomicU64| place.load(Ordering::Relaxed) != 0;
        self.places().filter(is_filled).find_map(|place| {
            // Acquire pairs with the Release of `put`: who takes the frame writes to it after the
            // accesses of who put it here.
            Pfn::new(place.swap(0, Ordering::Acquire).checked_sub(1)?)
        })
    }

    /// Replaces `frame`, which is in the reserve, by `other`. Returns whether it did: false if
    /// `frame` is not in the reserve any more.
    #[cfg(not(loom))]
    pub(crate) fn replace(&self, frame: Pfn, other: Pfn) -> bool {
        let (before, after) = (frame.number() + 1, other.number() + 1);
        self.places().any(|place| {
            // AcqRel: as in `take` and `put`.
            place.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Puts a frame into the reserve, if one is missing. Returns whether it did.
    pub(crate) fn put(&self, frame: Pfn) -> bool {
        let filled = frame.number() + 1;
        self.places().any(|place| {
            // Release pairs with the Acquire of `take`.
            place.load(Ordering::Relaxed) == 0
                && place.compare_exchange(0, filled, Ordering::Release, Ordering::Relaxed).is_ok()
        })
    }
}
