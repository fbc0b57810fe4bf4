//! Keeps marks of free memory that is known to be zero, because the host or the kernel has said so.
//!
//! The contents of all other free memory are those of `contents.rs`, which the marks do not concern: if
//! free memory has defined contents, nothing is marked.
//!
//! A wholly free pageblock has its mark in the section's word `zeroed`. A claim clears the mark and
//! returns it as [`Zeroed`] to the call that divides the pageblock, allocates it or puts it back. So a
//! step that does nothing with the value loses the mark, and never keeps a wrong one.
//!
//! A division of a pageblock that is zero marks all words of its bitmap, and sets the pageblock's bit in
//! the section's word `zero_words`. Each free clears the mark of its word, and allocations leave it. So
//! while a word has a mark, no frame of it was freed since the division, and each of them was zero when
//! it was allocated.
//!
//! A search for runs sets the same mark for another reason: it has found no two neighbouring free frames
//! (see `small/without_runs.rs`). It clears the bit in `zero_words` first, so that no reader of a mark
//! that it sets finds the bit set. Since the search may be interrupted in between, for so long that its
//! pageblock is divided anew, it is counted; while one is counted, no division sets the bit:
//!
//! - The search counts itself, and then reads and clears the bit.
//! - The division sets the bit, and then reads the count. If the count is not 0, it clears the bit.
//!
//! All are `SeqCst` accesses, so either the division sees the search, or the search clears the bit.

use super::request::Unit;
use super::{AllocError, AllocRequest, Allocation, CallContext, Contents, Frames};
use crate::addr::PfnRange;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::platform::Platform;
use crate::range_error::RangeError;
use crate::sync::{Ordering, mutant, sequential};
use crate::words::{Block, SectionRef, WordPtr, Zeroed, bitmap_words_of};

impl<P> Frames<P> {
    /// Keeps marks from now on of free memory that is known to be zero. Until this is called, no memory
    /// is marked, whatever the host and the kernel say.
    ///
    /// While free memory has [defined contents](Self::contents), nothing is marked either.
    ///
    /// Context: any.
    ///
    /// # Safety
    /// Whoever promises this instance that memory is zero tells the truth, because code may rely on
    /// zeroes for its own safety. So do not call this if the host is not trusted, and is believed in
    /// [`Reporter::reported_as`](crate::report::Reporter::reported_as),
    /// [`LentMemory::mark_zeroed`](crate::LentMemory::mark_zeroed) or
    /// [`Addition::zeroed`](crate::Addition::zeroed). Drivers pass such promises on: those of
    /// `hotmem-virtio` do it if a balloon negotiates the features for it, and by
    /// `HotplugMemory::with_zeroed_blocks` and `EngineMemory::assume_initialised_reports`.
    pub unsafe fn keep_zero_marks(&self) {
        // Relaxed: a call that does not see this yet only sets no mark.
        self.keeps_zero_marks.store(1, Ordering::Relaxed);
    }

    /// Returns whether [`keep_zero_marks`](Self::keep_zero_marks) was called, and the contents of free
    /// memory are undefined.
    #[must_use]
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
    #[inline(always)]
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

    /// Frees `range` as [`free_raw`](Self::free_raw) does, for a caller that knows that all of it is
    /// zero: because it has written zeroes, or because a host that has had the memory promises them. The
    /// mark is kept for each pageblock (2 MiB) that was allocated as a whole and is freed as a whole.
    /// Other frames are no longer known to be zero.
    ///
    /// Context: any. Cost: that of [`free_raw`](Self::free_raw), and 1 atomic read-modify-write for each
    /// section with a mark.
    ///
    /// # Safety
    /// The same as for [`free_raw`](Self::free_raw); and all frames of `range` are zero.
    ///
    /// # Errors
    /// Those of [`free_raw`](Self::free_raw).
    pub unsafe fn free_zeroed_raw(&self, range: PfnRange) -> Result<(), RangeError> {
        self.free_and_count(range, Frames::free_zeroed)
    }

    /// Frees `range`, which is zero. Callers inside the crate keep the promises of
    /// [`free_zeroed_raw`](Self::free_zeroed_raw).
    pub(crate) fn free_zeroed(&self, range: PfnRange) -> Result<(), RangeError> {
        if self.contents() != Contents::Undefined {
            return self.call().fill_and_free(range);
        }
        match range.frames() < PAGEBLOCK_FRAMES as u64 {
            true => self.free_range(range),
            false => self.call().free_by_pageblock(range, self.keeps_zero_marks()),
        }
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
    ///
    /// Frames that a fast path has taken are zero only if their word has a mark. The CPU remembers the
    /// word, so this is known without a look-up.
    #[inline(always)]
    pub(crate) fn alloc_range_with_mark(
        &self,
        request: AllocRequest,
    ) -> Result<(PfnRange, bool), AllocError> {
        let zone = request.zones()[0];
        let (start, may_be_zero) = match request.unrestricted_unit() {
            Some(Unit::Frame) => (self.alloc_frame(zone), self.last_word_has_mark()),
            Some(Unit::Run(shape)) => (self.alloc_run(zone, shape), self.last_word_has_mark()),
            Some(Unit::LongRun(shape)) => {
                (self.alloc_long_run(zone, shape), self.cpu_inlined().last_run.is_in_marked_word())
            }
            Some(Unit::Pageblock) => match self.alloc_pageblock(zone) {
                Some((start, is_zero)) => (Some(start), is_zero),
                None => (None, false),
            },
            None => (None, false),
        };
        let range = start.and_then(|start| PfnRange::with_len(start, request.frames));
        let Some(range) = range else { return self.alloc_slowly_with_mark(request) };
        Ok((range, may_be_zero && self.is_marked(range)))
    }

    /// Returns whether frames that the caller has just allocated are known to be zero. A whole pageblock
    /// is: its claim has returned its mark, or the caller would not ask.
    #[cold]
    #[inline(never)]
    fn is_marked(&self, range: PfnRange) -> bool {
        range.frames() >= PAGEBLOCK_FRAMES as u64 || self.has_zero_marks(range)
    }

    /// Returns whether the word from which this CPU has taken its last frames probably has a mark. A
    /// wrong "no" only loses what is known, and a wrong "yes" costs a look-up.
    #[inline(always)]
    fn last_word_has_mark(&self) -> bool {
        self.cpu_inlined().last_change.is_of_marked_word()
    }

    #[cold]
    #[inline(never)]
    fn alloc_slowly_with_mark(
        &self,
        request: AllocRequest,
    ) -> Result<(PfnRange, bool), AllocError> {
        request.check()?;
        let (range, may_be_zero) = match request.place {
            Some(start) => self.alloc_at(start, &request)?,
            None if request.is_small() => (self.alloc_range(request)?, true),
            None => return self.alloc_blocks(&request),
        };
        let mut parts = range.chunks(PAGEBLOCK_FRAMES as u64);
        Ok((range, may_be_zero && parts.all(|part| self.is_marked(part))))
    }

    /// Returns whether frames of one pageblock, which the caller has just allocated and not written to,
    /// are known to be zero.
    fn has_zero_marks(&self, range: PfnRange) -> bool {
        let Some((section, bit)) = self.words.section_words_at(range.start()) else { return false };
        let has_bit = || section.zero_words.load(Ordering::Acquire) >> bit & 1 != 0;
        if !has_bit() {
            return false;
        }
        #[allow(clippy::cast_possible_truncation, reason = "within a pageblock")]
        let first = (range.start().number() % PAGEBLOCK_FRAMES as u64) as usize;
        #[allow(clippy::cast_possible_truncation, reason = "at most a pageblock")]
        let mut words = bitmap_words_of(first..first + range.frames() as usize);
        let all_marked = words.all(|(index, _)| {
            section.bitmaps.lasting_word(bit, index).is_some_and(WordPtr::is_marked)
        });
        mutant!("who asks does not look again what the marks mean" => return all_marked);
        // Look again: a search that has set one of these marks has cleared the bit before.
        all_marked && has_bit()
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Records what marks in the words of a pageblock mean that the caller owns and is dividing: that
    /// free frames are zero, if `is_zero` and no search is marking words. Returns whether it is so.
    pub(super) fn set_zero_words(&self, block: Block<'_>, is_zero: bool) -> bool {
        let zero_words = &block.section().words().zero_words;
        if is_zero {
            zero_words.fetch_or(block.mask(), Ordering::SeqCst);
            sequential();
            mutant!("a division does not look for searches that mark words" => return true);
            if self.frames.marking_searches.load(Ordering::SeqCst) == 0 {
                return true;
            }
        }
        mutant!("a division believes the marks of an earlier division" => {
            return zero_words.load(Ordering::Relaxed) & block.mask() != 0;
        });
        if zero_words.load(Ordering::Relaxed) & block.mask() != 0 {
            zero_words.fetch_and(!block.mask(), Ordering::Relaxed);
        }
        false
    }

    /// Calls `mark`, which marks words of a pageblock as words without runs, while marks of this
    /// pageblock mean this.
    pub(crate) fn while_marking(&self, block: Block<'_>, mark: impl FnOnce() -> bool) -> bool {
        let zero_words = &block.section().words().zero_words;
        self.frames.marking_searches.fetch_add(1, Ordering::SeqCst);
        sequential();
        mutant!("a search marks words whose marks mean that frames are zero" => {
            let result = mark();
            self.frames.marking_searches.fetch_sub(1, Ordering::Release);
            return result;
        });
        if zero_words.load(Ordering::SeqCst) & block.mask() != 0 {
            zero_words.fetch_and(!block.mask(), Ordering::SeqCst);
        }
        let result = mark();
        // Release pairs with the load in `set_zero_words`: a division that does not see this search
        // sees its marks.
        self.frames.marking_searches.fetch_sub(1, Ordering::Release);
        result
    }

    /// Returns those of `blocks`, which the caller owns, that are zero: those for which `is_zero`
    /// returns true. Returns none if no marks are kept. Calls `is_zero` for each pageblock also then,
    /// because it may count them, and the kernel may begin to keep marks between two calls.
    pub(crate) fn zeroed_if(
        &self,
        section: SectionRef<'_>,
        blocks: u64,
        mut is_zero: impl FnMut(Block<'_>) -> bool,
    ) -> Zeroed {
        let zeroed = section.blocks(blocks).filter(|&block| is_zero(block));
        let zeroed = zeroed.fold(0, |zeroed, block| zeroed | block.mask());
        if self.frames.keeps_zero_marks() { Zeroed::known(zeroed) } else { Zeroed::NONE }
    }
}
