//! Holds the engine's record of one CPU: its hints, its cursors, a pointer to the word that it last
//! freed a frame into, the word that it allocated a run from, the word that it changed last, its
//! counts of hiding steps, and the number of frames that callers allocated on it.

use crate::sync::{
    AtomicU32, AtomicU64, Ordering, const_unless_loom, fence, sequential, untracked,
};
use crate::words::{Cursor, Grain, Hint, LastChange, LastFreed, LastRun, NO_HINT, Zone};

/// A CPU's record. It fills two cache lines, because some processors fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Cpu {
    /// For each grain, the hint of each zone.
    blocks: [[AtomicU64; 2]; 2],
    sections: [AtomicU64; 2],
    /// For each zone, the word that the next single frame comes from.
    cursors: [Cursor; 2],
    pub(super) last_freed: LastFreed,
    pub(super) last_run: LastRun,
    pub(super) last_change: LastChange,
    pub(super) hiding_steps_started: AtomicU32,
    pub(super) hiding_steps_ended: AtomicU32,
    /// The frames that callers allocated on this CPU, less those that they freed on it.
    pub(super) allocated: untracked::AtomicU64,
}

impl Cpu {
    const_unless_loom! {
        pub(crate) fn new() -> Cpu {
            Cpu {
                blocks: [
                    [AtomicU64::new(NO_HINT), AtomicU64::new(NO_HINT)],
                    [AtomicU64::new(NO_HINT), AtomicU64::new(NO_HINT)],
                ],
                sections: [AtomicU64::new(NO_HINT), AtomicU64::new(NO_HINT)],
                cursors: [Cursor::new(), Cursor::new()],
                last_freed: LastFreed::new(),
                last_run: LastRun::new(),
                last_change: LastChange::new(),
                hiding_steps_started: AtomicU32::new(0),
                hiding_steps_ended: AtomicU32::new(0),
                allocated: untracked::AtomicU64::new(0),
            }
        }
    }

    /// Returns whether the record is certainly listed. A record is listed before its CPU counts its
    /// first hiding step. While the count has wrapped to 0, this returns false.
    #[inline]
    pub(super) fn is_listed(&self) -> bool {
        // Acquire pairs with the Release of `start_hiding_step`, by another CPU that shares the
        // record.
        self.hiding_steps_started.load(Ordering::Acquire) != 0
    }

    /// Counts the start of a hiding step, before memory is hidden.
    #[inline]
    pub(super) fn start_hiding_step(&self) {
        // Release pairs with the Acquire in `is_listed`: whoever sees this count also sees that the
        // record is listed.
        self.hiding_steps_started.fetch_add(1, Ordering::Release);
        // Pairs with the fence in `Watch::saw_no_hiding_step`: a search that sees that memory is
        // missing also sees this count.
        fence(Ordering::Release);
    }

    /// Counts the end of a hiding step: searches can find all memory again.
    pub(super) fn end_hiding_step(&self) {
        // Release pairs with the Acquire in `Watch::start`: a search that sees this count sees the
        // memory where it was put.
        self.hiding_steps_ended.fetch_add(1, Ordering::Release);
    }

    /// Returns the hint of the pageblock that allocations of this grain use: single frames, or runs
    /// of up to 256 frames.
    pub(crate) fn block(&self, zone: Zone, grain: Grain) -> &AtomicU64 {
        &self.blocks[grain as usize][zone as usize]
    }

    /// Returns all hints of pageblocks.
    pub(crate) fn blocks(&self) -> [&AtomicU64; 4] {
        let [[a, b], [c, d]] = &self.blocks;
        [a, b, c, d]
    }

    /// Returns whether `hint` is the CPU's hint for single frames, in any zone. `SeqCst`: the
    /// caller has freed frames of the pageblock, or has opened its words.
    #[inline]
    pub(super) fn has_frame_hint(&self, hint: Hint) -> bool {
        sequential();
        let is_hint = |zone| self.block(zone, Grain::Frame).load(Ordering::SeqCst) == hint;
        is_hint(Zone::Kernel) || is_hint(Zone::Movable)
    }

    /// Returns whether `hint` is the CPU's hint, for any grain and zone. `SeqCst`: as in
    /// [`has_frame_hint`](Self::has_frame_hint).
    pub(super) fn has_hint(&self, hint: Hint) -> bool {
        sequential();
        self.blocks().iter().any(|block| block.load(Ordering::SeqCst) == hint)
    }

    /// Returns the cursor for single frames of a zone.
    pub(crate) fn cursor(&self, zone: Zone) -> &Cursor {
        &self.cursors[zone as usize]
    }

    /// Takes the first free frame of the word at the cursor of `zone`. Returns the frame's number.
    #[inline]
    pub(super) fn take_at_cursor(&self, zone: Zone) -> Option<u64> {
        self.cursor(zone).take(zone, &self.last_change)
    }

    /// Returns all cursors.
    pub(super) fn cursors(&self) -> impl Iterator<Item = &Cursor> {
        self.cursors.iter()
    }

    /// Returns the hint of the section that allocations of whole pageblocks use.
    pub(crate) fn section(&self, zone: Zone) -> &AtomicU64 {
        &self.sections[zone as usize]
    }
}
