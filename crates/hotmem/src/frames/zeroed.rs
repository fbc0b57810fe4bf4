//! Keeps marks of free memory that is known to be zero, because the host or the kernel has said so.
//!
//! The contents of all other free memory are those of `contents.rs`, which the marks do not concern: if
//! free memory has defined contents, nothing is marked.
//!
//! A wholly free pageblock has its mark in the section's word `zeroed`. A claim clears the mark and
//! returns it as [`Zeroed`] to the call that divides the pageblock, allocates it or puts it back. So a
//! step that does nothing with the value loses the mark, and never keeps a wrong one.

use super::{AllocError, AllocRequest, Allocation, CallContext, Contents, Frames};
use crate::addr::PfnRange;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Block, SectionRef, Zeroed};

impl<P> Frames<P> {
    /// Keeps marks from now on of free memory that is known to be zero. Until this is called, no memory
    /// is marked, whatever the host and the kernel say. Do not call it if the host is not trusted.
    ///
    /// While free memory has [defined contents](Self::contents), nothing is marked either.
    ///
    /// Context: any.
    pub fn keep_zero_marks(&self) {
        // Relaxed: a call that does not see this yet only sets no mark.
        self.keeps_zero_marks.store(1, Ordering::Relaxed);
    }

    /// Returns whether [`keep_zero_marks`](Self::keep_zero_marks) was called, and the contents of free
    /// memory are undefined.
    pub fn keeps_zero_marks(&self) -> bool {
        self.keeps_zero_marks.load(Ordering::Relaxed) != 0 && self.contents() == Contents::Undefined
    }
}

impl<P: Platform> Frames<P> {
    /// Allocates as [`alloc`](Self::alloc) does, and says what the frames contain:
    /// [`Contents::Filled(0)`](Contents::Filled) if all of them are [known to be
    /// zero](Self::keep_zero_marks), otherwise [the contents of free memory](Self::contents). The
    /// question does not change which frames are allocated.
    ///
    /// Context: any. Cost: that of [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then.
    pub fn alloc_with_contents(
        &self,
        request: AllocRequest,
    ) -> Result<(Allocation<'_, P>, Contents), AllocError> {
        let (range, is_zero) = self.alloc_range_with_mark(request)?;
        let contents = if is_zero { Contents::Filled(0) } else { self.contents() };
        Ok((self.give(range), contents))
    }

    /// Allocates frames that are zero: as [`alloc`](Self::alloc) does, and then writes zeroes to them
    /// through the direct map, unless they are known to be zero.
    ///
    /// Context: any. Cost: that of [`alloc`](Self::alloc), and a write of all frames that are not
    /// known to be zero.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then.
    pub fn alloc_zeroed(&self, request: AllocRequest) -> Result<Allocation<'_, P>, AllocError> {
        let (allocation, contents) = self.alloc_with_contents(request)?;
        if contents != Contents::Filled(0) {
            self.zero(allocation.range());
        }
        Ok(allocation)
    }

    /// Writes zeroes to `range`, which is mapped, and which the caller owns.
    fn zero(&self, range: PfnRange) {
        #[cfg(not(loom))]
        for frame in range.chunks(1) {
            let start: *mut u8 = self.direct_map().pointer(frame.start());
            // SAFETY: the frame is mapped, and the caller owns it.
            unsafe { start.write_bytes(0, 1 << crate::geometry::FRAME_SHIFT) };
        }
        let _ = range; // under loom, frames have no contents
    }

    /// Allocates `request`. Also returns whether all frames are known to be zero.
    pub(crate) fn alloc_range_with_mark(
        &self,
        request: AllocRequest,
    ) -> Result<(PfnRange, bool), AllocError> {
        let is_of_pageblocks = request.place.is_none() && !request.is_small();
        if is_of_pageblocks && request.check().is_ok() {
            return self.alloc_blocks(&request);
        }
        Ok((self.alloc_range(request)?, false))
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Returns those of `blocks`, which the caller owns, that are zero: those for which `is_zero`
    /// returns true. Returns none if no marks are kept.
    pub(crate) fn zeroed_if(
        &self,
        section: SectionRef<'_>,
        blocks: u64,
        mut is_zero: impl FnMut(Block<'_>) -> bool,
    ) -> Zeroed {
        if !self.frames.keeps_zero_marks() {
            return Zeroed::NONE;
        }
        let zeroed = section.blocks(blocks).filter(|&block| is_zero(block));
        Zeroed::known(zeroed.fold(0, |zeroed, block| zeroed | block.mask()))
    }
}
