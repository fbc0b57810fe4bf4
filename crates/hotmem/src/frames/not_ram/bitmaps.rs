//! Stores bitmaps of the frames of boot memory that are no RAM.

use crate::addr::{Pfn, PfnRange};
use crate::geometry::{FRAME_SIZE, SECTION_FRAMES, count_ones};
use crate::sync::Ordering;
use crate::sync::untracked::{AtomicPtr, AtomicU64, AtomicUsize};
use crate::words::DirectMap;
use crate::words::words_of_run;
use core::ops::Range;

/// The number of frames in a word of these bitmaps.
const WORD_BITS: usize = if SECTION_FRAMES < 64 { SECTION_FRAMES } else { 64 };

/// A bitmap for each section that had frames at boot that are no RAM, the lowest section first.
pub(in crate::frames) struct NotRamBitmaps {
    sections: AtomicPtr<SectionMap>,
    count: AtomicUsize,
}

/// The recorded frames of one section. The all-zero value is valid.
#[repr(C)]
struct SectionMap {
    /// The number of the section's first frame.
    start: AtomicU64,
    frames: [AtomicU64; SECTION_FRAMES / WORD_BITS],
}

impl NotRamBitmaps {
    pub(in crate::frames) const fn none() -> NotRamBitmaps {
        NotRamBitmaps {
            sections: AtomicPtr::new(core::ptr::null_mut()),
            count: AtomicUsize::new(0),
        }
    }

    fn sections(&self) -> &[SectionMap] {
        // Acquire pairs with the Release in `install`.
        let count = self.count.load(Ordering::Acquire);
        if count == 0 {
            return &[];
        }
        // SAFETY: `install` has initialized `count` bitmaps at this pointer, and they stay valid.
        unsafe { core::slice::from_raw_parts(self.sections.load(Ordering::Relaxed), count) }
    }

    /// Returns the frames that hold the bitmaps, and the memory that the bitmaps describe.
    pub(crate) fn memory(&self, direct_map: DirectMap) -> Option<(PfnRange, PfnRange)> {
        let sections = self.sections();
        let first = Pfn::new(sections.first()?.start.load(Ordering::Relaxed))?;
        let last_section = Pfn::new(sections.last()?.start.load(Ordering::Relaxed))?;
        let start = direct_map.frame_at(self.sections.load(Ordering::Relaxed).cast())?;
        let frames = (size_of_val(sections) as u64).div_ceil(FRAME_SIZE);
        let describes = PfnRange::new(first, last_section.checked_add(SECTION_FRAMES as u64)?)?;
        Some((PfnRange::with_len(start, frames)?, describes))
    }

    /// Installs a bitmap for each of these sections at `memory`. The sections come in ascending
    /// order. Boot only, single-threaded.
    ///
    /// # Safety
    /// The same as for [`Frames::install_not_ram`](crate::frames::Frames::install_not_ram).
    #[cfg(not(loom))]
    pub(crate) unsafe fn install(
        &self,
        sections: &mut dyn Iterator<Item = PfnRange>,
        memory: *mut u8,
    ) {
        let maps: *mut SectionMap = memory.cast();
        let mut count = 0;
        for section in sections {
            // SAFETY: the caller promises that `memory` has space for a bitmap of each section.
            unsafe {
                let map = maps.add(count);
                map.write_bytes(0, 1);
                (*map).start.store(section.start().number(), Ordering::Relaxed);
            }
            count += 1;
        }
        self.sections.store(maps, Ordering::Relaxed);
        self.count.store(count, Ordering::Release);
    }

    /// Sets the bits of `range`, which lies in sections with a bitmap.
    #[cfg(not(loom))]
    pub(crate) fn set(&self, range: PfnRange) {
        self.access(range, |word, bits| word.fetch_or(bits, Ordering::Relaxed));
    }

    /// Counts the frames of `range` that are recorded.
    pub(crate) fn count(&self, range: PfnRange) -> u64 {
        self.access(range, |word, bits| word.load(Ordering::Relaxed) & bits)
    }

    /// Returns the first run of recorded frames of `range`. Cost: O(frames) of the sections of
    /// `range` that have a bitmap.
    pub(super) fn first_run(&self, range: PfnRange) -> Option<PfnRange> {
        let with_bitmaps = range
            .chunks(SECTION_FRAMES as u64)
            .filter(|part| self.has_section(part.start().align_down(SECTION_FRAMES as u64)));
        let mut frames = with_bitmaps.flat_map(|part| part.chunks(1));
        let first = frames.find(|&frame| self.count(frame) != 0)?;
        let more = frames.take_while(|&frame| self.count(frame) != 0);
        PfnRange::new(first.start(), more.last().unwrap_or(first).end())
    }

    /// Calls `access` for each word of the bitmaps of `range`, with the bits of the frames of
    /// `range`. Returns the number of bits that are set in all results. Skips sections without a bitmap.
    fn access(&self, range: PfnRange, access: fn(&AtomicU64, u64) -> u64) -> u64 {
        let mut ones = 0;
        for section_range in range.chunks(SECTION_FRAMES as u64) {
            let start = section_range.start().align_down(SECTION_FRAMES as u64);
            let Some(map) = self.section(start) else { continue };
            for (word, bits) in words_of_run::<WORD_BITS>(offsets(start, section_range)) {
                ones += map.frames.get(word).map_or(0, |word| count_ones(access(word, bits)));
            }
        }
        ones
    }

    /// Returns whether the section at `start` has a bitmap.
    pub(super) fn has_section(&self, start: Pfn) -> bool {
        self.section(start).is_some()
    }

    /// Returns the bitmap of the section at `start`, if it has one.
    fn section(&self, start: Pfn) -> Option<&SectionMap> {
        let sections = self.sections();
        let found =
            sections.binary_search_by_key(&start.number(), |map| map.start.load(Ordering::Relaxed));
        sections.get(found.ok()?)
    }
}

/// Returns the number of frames that the bitmaps of this many sections need.
#[cfg(not(loom))]
pub(crate) const fn bitmap_frames(sections: u64) -> u64 {
    (sections * size_of::<SectionMap>() as u64).div_ceil(FRAME_SIZE)
}

/// Returns the frames of `range` as offsets from `start`.
#[allow(clippy::cast_possible_truncation, reason = "within a section")]
fn offsets(start: Pfn, range: PfnRange) -> Range<usize> {
    let offset = |pfn: Pfn| (pfn.number() - start.number()) as usize;
    offset(range.start())..offset(range.end())
}
