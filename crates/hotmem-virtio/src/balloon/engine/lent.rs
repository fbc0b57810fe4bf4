//! Allocates the memory that is given to the host.

use super::EngineMemory;
use crate::balloon::message::Message;
use crate::balloon::range_set::RangeSet;
use crate::hull::hull;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{AllocError, AllocRequest, Allocation, Pfn, PfnRange, Platform};

/// The free memory above `min_free`, divided by this number, may be given to the host before free
/// memory is counted again. Counting reads every section.
const CREDIT_DIVISOR: u64 = 8;
/// The number of attempts to find memory that is not pinned.
const MAX_TRIES: usize = 64;

impl<'f, P: Platform, const MAX_RANGES: usize> EngineMemory<'f, P, MAX_RANGES> {
    /// Returns whether this many frames may be given to the host.
    pub(super) fn may_spare(&mut self, frames: u64) -> bool {
        if self.frames_before_recount < frames {
            let frames_above_min = self.frames.counts().free.saturating_sub(self.min_free);
            // At least one range may be given to the host if `min_free` frames stay free.
            self.frames_before_recount =
                (frames_above_min / CREDIT_DIVISOR).max(frames_above_min.min(frames));
        }
        self.frames_before_recount >= frames
    }

    /// Allocates memory to give to the host, outside `excluded` if free memory lies outside it.
    fn alloc_outside(
        &self,
        excluded: PfnRange,
        frames: u64,
    ) -> Result<Allocation<'f, P>, AllocError> {
        let limit = Pfn::new(Message::FRAME_LIMIT).unwrap_or(Pfn::LIMIT);
        let request = AllocRequest::frames(frames);
        if !excluded.is_empty() {
            let above = self.alloc(request.within(excluded.end()..limit));
            let outside = above.or_else(|_| self.alloc(request.within(..excluded.start())));
            if outside.is_ok() {
                return outside;
            }
        }
        self.alloc(request.within(..limit))
    }

    /// Allocates movable memory if there is some. While memory is being removed, it allocates kernel
    /// memory first, because movable memory may be removed next.
    fn alloc(&self, request: AllocRequest) -> Result<Allocation<'f, P>, AllocError> {
        if !self.range_to_remove.is_empty()
            && let Ok(allocation) = self.frames.alloc(request)
        {
            return Ok(allocation);
        }
        self.frames.alloc(request.movable())
    }

    /// Allocates a run of `min_frames` to `max_frames` frames that is free and not pinned; halves
    /// the size until there is one. Marks it as [given to the host](hotmem::Frames::lend).
    pub(super) fn alloc_lent(&mut self, max_frames: u64, min_frames: u64) -> Option<PfnRange> {
        let mut pinned = RangeSet::<MAX_RANGES>::new();
        // A pageblock of a pinned range may have many small free runs. So each attempt excludes the
        // range from the first to the last pageblock in which pinned memory was found.
        let mut excluded = PfnRange::EMPTY;
        let mut frames = max_frames;
        let mut found = None;
        for _ in 0..MAX_TRIES {
            if frames < min_frames || frames == 0 {
                break;
            }
            match self.alloc_outside(excluded, frames).map(Allocation::into_raw) {
                Ok(range) if self.frames.lend(range).is_ok() => {
                    found = Some(range);
                    break;
                }
                Ok(range) if pinned.insert(range).is_err() => {
                    self.free(range);
                    break;
                }
                Ok(range) => {
                    excluded = hull(excluded, range.align_outward(PAGEBLOCK_FRAMES as u64));
                }
                Err(_) => frames /= 2,
            }
        }
        while let Some(range) = pinned.pop() {
            self.free(range);
        }
        found
    }
}
