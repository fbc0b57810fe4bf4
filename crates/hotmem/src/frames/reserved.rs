//! Which frames of boot memory are still reserved: in use by nobody whom the allocator knows.
//!
//! To the allocator a reserved frame is like one that is allocated. A bitmap tells them apart, so
//! that what a zone manages is counted exactly; only sections that had reserved memory at boot have
//! one. Nothing but the control path reads or writes it.

use super::free::words_of;
use super::{Frames, FreeError, FreeErrorKind, Metadata};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_WORD_BITS, FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::platform::{DirectMap, Platform};
use crate::sync::Ordering;
use crate::sync::settled::{AtomicPtr, AtomicU64, AtomicUsize};
use crate::words::Block;
use core::ops::Range;

/// The bitmaps of all sections that had reserved memory at boot, lowest section first.
pub(super) struct Reserved {
    sections: AtomicPtr<SectionMap>,
    count: AtomicUsize,
}

/// The reserved frames of one section. All zero is a valid one.
#[repr(C)]
struct SectionMap {
    /// Number of the section's first frame.
    start: AtomicU64,
    frames: [AtomicU64; SECTION_FRAMES / BITMAP_WORD_BITS],
}

impl Reserved {
    pub(super) const fn none() -> Reserved {
        Reserved { sections: AtomicPtr::new(core::ptr::null_mut()), count: AtomicUsize::new(0) }
    }

    fn sections(&self) -> &[SectionMap] {
        // Acquire pairs with `install`.
        let count = self.count.load(Ordering::Acquire);
        if count == 0 {
            return &[];
        }
        // SAFETY: `install` was given so many bitmaps at this pointer, for good.
        unsafe { core::slice::from_raw_parts(self.sections.load(Ordering::Relaxed), count) }
    }

    /// The frames that hold the bitmaps.
    pub(super) fn metadata(&self, direct_map: DirectMap) -> Option<Metadata> {
        let sections = self.sections();
        let first = Pfn::new(sections.first()?.start.load(Ordering::Relaxed))?;
        let last = Pfn::new(sections.last()?.start.load(Ordering::Relaxed))?;
        let start = direct_map.frame_at(self.sections.load(Ordering::Relaxed).cast())?;
        let frames = (size_of_val(sections) as u64).div_ceil(FRAME_SIZE);
        let describes = PfnRange::new(first, last.checked_add(SECTION_FRAMES as u64)?)?;
        Some(Metadata { frames: PfnRange::with_len(start, frames)?, describes })
    }

    /// The words of `range` that have a bitmap, each with its bits.
    fn words(&self, range: PfnRange) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let sections = self.sections();
        range.sections().flat_map(move |piece| {
            let start = piece.start().align_down(SECTION_FRAMES as u64);
            let found = sections
                .binary_search_by_key(&start.number(), |map| map.start.load(Ordering::Relaxed));
            let map = found.ok().and_then(|at| sections.get(at));
            map.into_iter().flat_map(move |map| {
                words_of(offsets(start, piece)).map(|(word, bits)| (&map.frames[word], bits))
            })
        })
    }

    /// How many frames of `range` are reserved.
    fn count(&self, range: PfnRange) -> u64 {
        let bits = self.words(range).map(|(word, bits)| word.load(Ordering::Relaxed) & bits);
        bits.map(|bits| u64::from(bits.count_ones())).sum()
    }

    /// Frames of `range` are reserved no more: how many were.
    fn clear(&self, range: PfnRange) -> u64 {
        let cleared =
            self.words(range).map(|(word, bits)| word.fetch_and(!bits, Ordering::Relaxed) & bits);
        cleared.map(|bits| u64::from(bits.count_ones())).sum()
    }
}

/// Frames that the bitmaps of so many sections take.
#[cfg(not(loom))]
pub(crate) const fn bitmap_frames(sections: u64) -> u64 {
    (sections * size_of::<SectionMap>() as u64).div_ceil(FRAME_SIZE)
}

/// A part of the section that begins at `start`, in frames from there.
#[allow(clippy::cast_possible_truncation, reason = "within a section")]
fn offsets(start: Pfn, piece: PfnRange) -> Range<usize> {
    let offset = |pfn: Pfn| (pfn.number() - start.number()) as usize;
    offset(piece.start())..offset(piece.end())
}

impl<P: Platform> Frames<P> {
    /// Boot only, single-threaded: the bitmaps of these sections, which are named in ascending
    /// order, lie at `memory`.
    ///
    /// # Safety
    /// `memory` is aligned to 8 bytes, has room for a bitmap of each section, and belongs to this
    /// machine for good.
    #[cfg(not(loom))]
    pub(crate) unsafe fn install_reserved(
        &self,
        sections: impl Iterator<Item = PfnRange>,
        memory: *mut u8,
    ) {
        let maps: *mut SectionMap = memory.cast();
        let mut count = 0;
        for section in sections {
            // SAFETY: there is room for one more, by the caller's promise.
            unsafe {
                let map = maps.add(count);
                map.write_bytes(0, 1);
                (*map).start.store(section.start().number(), Ordering::Relaxed);
            }
            count += 1;
        }
        self.reserved.sections.store(maps, Ordering::Relaxed);
        self.reserved.count.store(count, Ordering::Release);
    }

    /// Boot only: `range`, which lies in sections with a bitmap, is reserved. How many frames of it
    /// were not before.
    #[cfg(not(loom))]
    pub(crate) fn reserve(&self, range: PfnRange) -> u64 {
        let words = self.reserved.words(range);
        let set = words.map(|(word, bits)| bits & !word.fetch_or(bits, Ordering::Relaxed));
        set.map(|bits| u64::from(bits.count_ones())).sum()
    }

    /// Frames of `range` are reserved no more, though they may be in use: how many were.
    pub(crate) fn unreserve(&self, range: PfnRange) -> u64 {
        self.reserved.clear(range)
    }

    /// Frees `range`, all of which is reserved and in use. `freed` hears of each part that was.
    pub(crate) fn free_reserved(
        &self,
        range: PfnRange,
        mut freed: impl FnMut(PfnRange),
    ) -> Result<(), FreeError> {
        if range.is_empty() {
            return Err(FreeError { range, kind: FreeErrorKind::Empty });
        }
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            let refused = |kind| Err(FreeError { range: piece, kind });
            if self.reserved.count(piece) != piece.frames() {
                return refused(FreeErrorKind::NotReserved);
            }
            if !self.words.block_of(piece.start()).is_some_and(|block| self.is_used(&block, piece))
            {
                return refused(FreeErrorKind::NotAllocated);
            }
        }
        for piece in range.chunks(PAGEBLOCK_FRAMES as u64) {
            // Each part is freed as a whole or not at all, whoever else frees the same meanwhile.
            let whole = piece.frames() == PAGEBLOCK_FRAMES as u64;
            let part = if whole { PAGEBLOCK_FRAMES } else { BITMAP_WORD_BITS };
            for part in piece.chunks(part as u64) {
                self.free_filled(part)?;
                self.reserved.clear(part);
                freed(part);
            }
        }
        Ok(())
    }

    fn is_used(&self, block: &Block<'_>, piece: PfnRange) -> bool {
        self.is_allocated(block, offsets(block.start(), piece), piece)
    }
}
