//! Holds the word reserve: frames kept for words, so that memory can be added when no kernel memory
//! is free.
//!
//! The reserve has one run of frames for a piece of each kind. Together, these pieces are enough
//! for an addition for which all pieces are missing. Frames for words come from free kernel memory,
//! and from the reserve only if no kernel memory is free. The reserve is filled at boot, after each
//! addition from free kernel memory, and from kernel memory that comes online, before other code
//! can allocate that memory. Only the control path fills the reserve and takes from it.

use crate::addr::{Pfn, PfnRange};
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::mapping::MAX_TABLE_RESERVE;
use crate::sync::{Ordering, untracked::AtomicU64};
use crate::words::PIECE_FRAMES;

/// The runs in the reserve.
pub(in crate::frames) struct WordReserve {
    /// For each kind of piece, the number of the first frame of its run + 1, or 0 if the run is
    /// missing. All accesses are Relaxed: no other data depends on the number.
    runs: [AtomicU64; PIECE_FRAMES.len()],
}

impl WordReserve {
    pub(crate) const fn empty() -> WordReserve {
        WordReserve { runs: [const { AtomicU64::new(0) }; PIECE_FRAMES.len()] }
    }

    /// Lists the places for runs, each with the length of its run, and with the run unless it is
    /// missing.
    fn slots(&self) -> impl Iterator<Item = (&AtomicU64, u64, Option<PfnRange>)> {
        self.runs.iter().zip(PIECE_FRAMES).map(|(slot, len)| {
            let start = slot.load(Ordering::Relaxed).checked_sub(1).and_then(Pfn::new);
            (slot, len, start.and_then(|start| PfnRange::with_len(start, len)))
        })
    }

    /// Lists the places that are not empty, each with its run.
    pub(super) fn filled_slots(&self) -> impl Iterator<Item = (&AtomicU64, PfnRange)> {
        self.slots().filter_map(|(slot, _, run)| Some((slot, run?)))
    }

    /// Lists the runs in the reserve.
    pub(super) fn filled_runs(&self) -> impl Iterator<Item = PfnRange> {
        self.filled_slots().map(|(_, run)| run)
    }

    /// Lists the places whose runs are missing, each with the length of its run.
    #[inline(never)]
    pub(super) fn empty_slots(&self) -> impl Iterator<Item = (&AtomicU64, u64)> {
        self.slots().filter(|(_, _, run)| run.is_none()).map(|(slot, len, _)| (slot, len))
    }

    /// Takes a run of length `len` out of the reserve. If there are several, takes the one in the
    /// last place.
    pub(crate) fn take(&self, len: u64) -> Option<PfnRange> {
        let filled = self.slots().filter(|(_, slot_len, run)| *slot_len == len && run.is_some());
        let (slot, _, run) = filled.last()?;
        slot.store(0, Ordering::Relaxed);
        run
    }

    /// Puts a run into the reserve, if a run of this length is missing. Returns whether it did.
    pub(crate) fn store(&self, run: PfnRange) -> bool {
        let empty_slot = self.empty_slots().find(|&(_, len)| len == run.frames());
        empty_slot.inspect(|(slot, _)| store_run(slot, run.start())).is_some()
    }
}

/// Stores a run in its place.
pub(super) fn store_run(slot: &AtomicU64, run: Pfn) {
    slot.store(run.number() + 1, Ordering::Relaxed);
}

/// The number of frames in a full reserve. A pageblock has enough frames for this reserve, for the
/// table reserve and for a frame of bitmaps.
pub(crate) const WORD_RESERVE: u64 = {
    let (mut kind, mut frames) = (0, 0);
    while kind < PIECE_FRAMES.len() {
        frames += PIECE_FRAMES[kind];
        kind += 1;
    }
    frames
};
const _: () = assert!(WORD_RESERVE + MAX_TABLE_RESERVE as u64 + 1 < PAGEBLOCK_FRAMES as u64);
