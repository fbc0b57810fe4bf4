//! Allocates frames for page tables and descriptors, and takes them back.

use crate::addr::{Pfn, PfnRange};
use crate::frames::{AllocError, AllocRequest, CallContext};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::words::Zone;

impl<'f, P: Platform> CallContext<'f, P> {
    /// Lists the frames in the table reserve.
    #[cfg(not(loom))]
    pub(in crate::frames) fn table_reserve_metadata(
        &self,
    ) -> impl Iterator<Item = crate::frames::Metadata> + use<'f, P> {
        let frames =
            self.frames.table_reserve.frames().filter_map(|frame| PfnRange::with_len(frame, 1));
        frames.map(|frames| crate::frames::Metadata { frames, describes: PfnRange::EMPTY })
    }

    /// Sets the number of frames in a full table reserve. Boot only.
    #[cfg(not(loom))]
    pub(crate) fn set_table_reserve(&self, frames: u64) {
        self.frames.table_reserve.set_size(frames);
    }

    /// Allocates a run of `len` frames. If `in_boot_memory`, it comes from boot memory if boot
    /// memory has such a run.
    pub(crate) fn allocate_for_tables(
        &self,
        len: u64,
        in_boot_memory: bool,
    ) -> Result<PfnRange, AllocError> {
        let request = AllocRequest::frames(len);
        if in_boot_memory && let Ok(run) = self.frames.alloc_anywhere(request.in_boot_memory()) {
            return Ok(run);
        }
        self.frames.alloc_anywhere(request)
    }

    /// Returns whether `frames` frames are free in kernel memory or in the table reserve, in any
    /// number of runs.
    pub(crate) fn has_memory_for_tables(&self, frames: u64) -> bool {
        let reserved_frames = self.frames.table_reserve.frames().count() as u64;
        self.ensure_free(&[Zone::Kernel], frames.saturating_sub(reserved_frames)).is_ok()
    }

    /// Takes a frame out of the table reserve.
    pub(crate) fn take_from_table_reserve(&self) -> Option<Pfn> {
        self.frames.table_reserve.take()
    }

    /// Takes back a frame that the mapping passes to the engine: into the table reserve if a frame
    /// is missing there, otherwise frees it.
    ///
    /// # Errors
    /// Those of [`free_range`](crate::Frames::free_range), also for a frame in the reserve.
    pub(crate) fn take_back_table(&self, frame: PfnRange) -> Result<(), RangeError> {
        self.check_allocated(frame)?;
        if self.frames.table_reserve.frames().any(|reserved| frame.contains(reserved)) {
            return Err(RangeErrorKind::NotAllocated.at(frame));
        }
        self.frames.count_freed(frame.frames());
        self.free_tables(frame);
        Ok(())
    }

    /// Puts the first frames of `run` into the table reserve, as many as are missing there, and
    /// frees the others. The caller owns `run`.
    pub(crate) fn free_tables(&self, run: PfnRange) {
        let rest = self.fill_table_reserve_from(run);
        if !rest.is_empty() {
            // The caller owns these frames, so freeing them cannot fail.
            self.fill_and_free(rest).or_record_violation();
        }
    }

    /// Puts the first frames of `memory` into the table reserve, as many as are missing there, up
    /// to a poisoned frame. Returns the rest of `memory`. The caller owns `memory`, which is kernel
    /// memory.
    pub(crate) fn fill_table_reserve_from(&self, memory: PfnRange) -> PfnRange {
        let mut rest = memory;
        for frame in memory.chunks(1) {
            let is_poisoned = self.poisoned_in(frame).next().is_some();
            if is_poisoned || self.frames.table_reserve.count_missing() == 0 {
                break;
            }
            self.note_metadata(frame);
            if !self.frames.table_reserve.put(frame.start()) {
                break;
            }
            rest = rest.split_at(frame.end()).1;
        }
        rest
    }

    /// Replaces the frames of the table reserve that lie in `range`, which is isolated, as far as
    /// other kernel memory is free.
    #[cfg(not(loom))]
    pub(super) fn move_table_reserve_out_of(&self, range: PfnRange) {
        for frame in self.frames.table_reserve.frames().filter(|&frame| range.contains(frame)) {
            let Ok(other) = self.allocate_for_tables(1, true) else { break };
            self.note_metadata(other);
            let is_replaced = self.frames.table_reserve.replace(frame, other.start());
            let unused = if is_replaced { PfnRange::with_len(frame, 1) } else { Some(other) };
            self.fill_and_free(unused.unwrap_or(other)).or_record_violation();
        }
    }

    /// Fills the table reserve from free kernel memory, as far as there is enough.
    #[cfg(not(loom))]
    pub(super) fn fill_table_reserve(&self) {
        for _ in 0..self.frames.table_reserve.count_missing() {
            let Ok(frame) = self.allocate_for_tables(1, true) else { break };
            self.free_tables(frame);
        }
    }
}
