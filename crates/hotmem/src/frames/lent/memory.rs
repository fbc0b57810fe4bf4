//! Lends memory to the host, for a balloon or as a hint, and records which frames are lent.
//!
//! The engine knows of a pageblock only that some of its frames are lent: a mark of its block state,
//! which keeps the pageblock from being pinned (see `frames/lent/pins.rs`). Which frames these are, the
//! lender records in a [`FrameSet`], because a pageblock may have frames in a balloon beside frames in
//! use. The lender ends the mark when its last frame of the pageblock comes back.

use super::frame_set::{End, FrameSet};
use crate::addr::{Pfn, PfnRange};
use crate::frames::{AllocError, AllocRequest, Frames};
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use core::fmt;

/// Frames that were allocated and lent to the host. Any number of ranges can be lent: they are
/// recorded in bitmaps, which take one frame for each 128 MiB in which a frame is lent, and one for
/// each 64 GiB in which the host promises zeroes.
///
/// If it is dropped, the frames stay allocated, because the host may still access them.
pub struct LentMemory<'f, P: Platform> {
    frames: &'f Frames<P>,
    lent: FrameSet,
    /// The pageblocks that were lent as wholes and that the host promises to be zero: their
    /// numbers, in units of pageblocks. So a node has the marks of 64 GiB.
    zeroed: FrameSet,
    /// Where the last allocation beside pinned memory was found.
    search_from: Pfn,
}

impl<'f, P: Platform> LentMemory<'f, P> {
    /// Makes a lender that has lent nothing.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>) -> LentMemory<'f, P> {
        LentMemory {
            frames,
            lent: FrameSet::new(),
            zeroed: FrameSet::new(),
            search_from: Pfn::ZERO,
        }
    }

    /// Returns the number of frames that are lent.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.lent.frames()
    }

    /// Allocates frames that are neither [pinned](crate::Hotplug::pin) nor in a range of `avoid`,
    /// and marks them as lent, so that they cannot be pinned. From then on, the host may have them.
    ///
    /// Context: any. Cost: that of [`Frames::alloc`], a read of the pins, 1 read-modify-write for
    /// each pageblock (16 more if it is divided and no frame of it was lent before), and O(frames /
    /// 64) accesses of the record. If the allocator returns memory that is pinned or to be avoided,
    /// also a bounded allocation for each range between these, and O(pins) reads for each.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then. `OutOfMemory` also if all suitable memory is pinned
    /// or to be avoided, or if no frame is free for the record.
    pub fn allocate(
        &mut self,
        request: AllocRequest,
        avoid: &[PfnRange],
    ) -> Result<PfnRange, AllocError> {
        match self.try_allocate(request, avoid)? {
            Ok(range) => Ok(range),
            Err(refused) if request.place.is_some() => Err(AllocError::NotFree(refused)),
            Err(_) => self.allocate_between(request, avoid),
        }
    }

    /// Returns the highest run of lent frames within `within`: at most `max_frames` of them, in one
    /// section (128 MiB).
    ///
    /// Cost: O(128 MiB units between the end of `within` and the run) and at most 512 reads in its
    /// own. So a caller that walks downward, from each run to the next, reads each word once.
    #[must_use]
    pub fn highest_in(&self, within: PfnRange, max_frames: u64) -> Option<PfnRange> {
        let run = self.lent.run_in(self.frames, within, End::Highest)?;
        let skipped = run.frames().saturating_sub(max_frames);
        Some(run.split_at(run.start().checked_add(skipped)?).1).filter(|run| !run.is_empty())
    }

    /// Returns the lowest run of lent frames within `within`: at most `max_frames` of them, in one
    /// section. Cost: as for [`highest_in`](Self::highest_in), from the start of `within` on.
    #[must_use]
    pub fn lowest_in(&self, within: PfnRange, max_frames: u64) -> Option<PfnRange> {
        let run = self.lent.run_in(self.frames, within, End::Lowest)?;
        let end = run.start().checked_add(max_frames.min(run.frames()))?;
        Some(run.split_at(end).0).filter(|run| !run.is_empty())
    }

    /// Counts the frames of `range` that are lent. Cost: O(frames of `range` / 64).
    #[must_use]
    pub fn frames_in(&self, range: PfnRange) -> u64 {
        self.lent.frames_in(self.frames, range)
    }

    /// Records that the host promises all frames of `range` to be zero when they come back. The
    /// record is kept for each pageblock (2 MiB) of which all frames are lent and in `range`, if
    /// [marks are kept](Frames::keep_zero_marks) and a frame is free for the record. A false promise
    /// breaks that of `keep_zero_marks`.
    ///
    /// Cost: for each pageblock, O(frames / 64) accesses of the record.
    ///
    /// # Errors
    /// [`RangeError`] if a frame is not lent; nothing has changed then.
    pub fn mark_zeroed(&mut self, range: PfnRange) -> Result<(), RangeError> {
        self.check_lent(range)?;
        if !self.frames.keeps_zero_marks() {
            return Ok(());
        }
        for part in range.chunks(PAGEBLOCK_FRAMES as u64) {
            if let Some(number) = block_number(part)
                && self.zeroed.frames_in(self.frames, number) == 0
                && self.zeroed.insert(self.frames, number).is_err()
            {
                break; // No frame is free: these pageblocks are not known to be zero.
            }
        }
        Ok(())
    }

    /// Frees frames that the host has returned, or that it was not given after all. Fills them with
    /// the [contents](crate::Contents) of free memory first. Believes no promise that the memory is
    /// zero.
    ///
    /// Context: any. Cost: that of [`Frames::fill_and_free_raw`], and O(frames / 64) accesses of the
    /// record.
    ///
    /// # Errors
    /// [`RangeError`] if a frame is not lent; nothing has changed then.
    pub fn free(&mut self, range: PfnRange) -> Result<(), RangeError> {
        self.free_as(range, false)
    }

    /// Does the same as [`free`](Self::free), and believes what [`mark_zeroed`](Self::mark_zeroed)
    /// has recorded: such a pageblock is known to be zero, if it comes back as a whole.
    ///
    /// # Errors
    /// [`RangeError`] if a frame is not lent; nothing has changed then.
    pub fn free_as_promised(&mut self, range: PfnRange) -> Result<(), RangeError> {
        self.free_as(range, true)
    }

    fn free_as(&mut self, range: PfnRange, believes: bool) -> Result<(), RangeError> {
        self.check_lent(range)?;
        self.lent.remove(self.frames, range);
        // By pageblock, because a run may lie in two regions.
        for part in range.chunks(PAGEBLOCK_FRAMES as u64) {
            let is_zero = self.take_zeroed(part) && believes;
            if self.is_first(part, 0) {
                self.frames.call().end_lending(part);
            }
            // The record has said that the frames are allocated.
            let freed = match is_zero {
                true => self.frames.free_zeroed(part),
                false => self.frames.call().fill_and_free(part),
            };
            freed.or_record_violation();
            self.frames.count_freed(part.frames());
        }
        Ok(())
    }

    fn check_lent(&self, range: PfnRange) -> Result<(), RangeError> {
        if range.is_empty() {
            return Err(RangeErrorKind::Empty.at(range));
        }
        if self.frames_in(range) != range.frames() {
            return Err(RangeErrorKind::NotLent.at(range));
        }
        Ok(())
    }

    /// Forgets that the pageblock of `part` is zero. Returns whether `part`, which is freed now, is
    /// a pageblock that was recorded as zero.
    fn take_zeroed(&mut self, part: PfnRange) -> bool {
        let whole = part.align_outward(PAGEBLOCK_FRAMES as u64);
        let recorded =
            block_number(whole).filter(|&number| self.zeroed.frames_in(self.frames, number) > 0);
        if let Some(number) = recorded {
            self.zeroed.remove(self.frames, number);
        }
        recorded.is_some() && part == whole
    }

    /// Moves a frame of the record that lies in `used` elsewhere, for
    /// [`Hooks::migrate`](crate::Hooks::migrate). Returns whether there was one. Cost: O(lent memory
    /// / 128 MiB).
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: no frame is free to move it to.
    pub fn move_record(&mut self, used: PfnRange) -> Result<bool, AllocError> {
        let moved = match self.lent.move_node(self.frames, used) {
            Ok(false) => self.zeroed.move_node(self.frames, used),
            moved => moved,
        };
        moved.map_err(|_| AllocError::OutOfMemory)
    }

    /// Allocates `request` and lends it. Returns the allocated range as the inner error if it must
    /// not be lent; it is free again.
    fn try_allocate(
        &mut self,
        request: AllocRequest,
        avoid: &[PfnRange],
    ) -> Result<Result<PfnRange, PfnRange>, AllocError> {
        let allocation = self.frames.alloc(request)?;
        let range = allocation.range();
        if avoid.iter().any(|avoided| avoided.overlaps(range)) {
            return Ok(Err(range));
        }
        self.lent.insert(self.frames, range).map_err(|_| AllocError::OutOfMemory)?;
        let is_first = |part: PfnRange| self.is_first(part, part.frames());
        if self.frames.call().lend(range, is_first).is_err() {
            self.lent.remove(self.frames, range);
            return Ok(Err(range));
        }
        Ok(Ok(allocation.into_raw()))
    }

    /// Returns whether no frames are lent in the pageblock of `part` beside `frames` of them.
    fn is_first(&self, part: PfnRange, frames: u64) -> bool {
        self.frames_in(part.align_outward(PAGEBLOCK_FRAMES as u64)) == frames
    }

    /// Searches each range between pinned memory and memory to be avoided, from the one in which the
    /// last search ended.
    fn allocate_between(
        &mut self,
        request: AllocRequest,
        avoid: &[PfnRange],
    ) -> Result<PfnRange, AllocError> {
        let (low, high) = (request.lower_bound, request.upper_bound);
        let middle = self.search_from.clamp(low, high);
        let mut error = AllocError::OutOfMemory;
        for (start, end) in [(middle, high), (low, middle)] {
            let mut from = start;
            while let Some(gap) = self.gap_from(from, end, avoid) {
                match self.try_allocate(request.within(gap.start()..gap.end()), avoid) {
                    Ok(Ok(range)) => {
                        self.search_from = gap.start();
                        return Ok(range);
                    }
                    // Another call has pinned memory meanwhile.
                    Ok(Err(_)) => error = AllocError::Busy,
                    Err(AllocError::Busy) => error = AllocError::Busy,
                    Err(_) => {}
                }
                from = gap.end();
            }
        }
        Err(error)
    }

    /// Returns the first range from `from` to below `end` that is neither pinned nor in `avoid`.
    fn gap_from(&self, from: Pfn, end: Pfn, avoid: &[PfnRange]) -> Option<PfnRange> {
        let closed = || self.frames.call().pinned_ranges().chain(avoid.iter().copied());
        let mut start = from;
        while let Some(range) = closed().find(|range| range.contains(start)) {
            start = range.end();
        }
        let above = closed().map(PfnRange::start).filter(|&pfn| pfn > start);
        PfnRange::new(start, above.min().map_or(end, |pfn| pfn.min(end)))
            .filter(|gap| !gap.is_empty())
    }
}

/// Returns the number of a pageblock, as a range of one, if `part` is a whole pageblock.
fn block_number(part: PfnRange) -> Option<PfnRange> {
    let is_whole = part.frames() == PAGEBLOCK_FRAMES as u64;
    let number = Pfn::new(part.start().number() / PAGEBLOCK_FRAMES as u64).filter(|_| is_whole)?;
    PfnRange::with_len(number, 1)
}

impl<P: Platform> fmt::Debug for LentMemory<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentMemory").field("frames", &self.frames()).finish_non_exhaustive()
    }
}
