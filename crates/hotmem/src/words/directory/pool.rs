//! Memory for pieces and frame bitmaps: areas of kernel memory, taken from the allocator for good.
//!
//! An area is up to a pageblock of neighbouring frames. Its first frame says which of the others are
//! free, so that frames are taken and given back lock-free, from any context. Areas are added, never
//! removed.

use crate::addr::{Pfn, PfnRange};
use crate::geometry::mask;
use crate::sync::{AtomicPtr, AtomicU64, Ordering, const_unless_loom};

/// Frames of one area.
const AREA_FRAMES: usize = 512;
const AREA_WORDS: usize = AREA_FRAMES / 64;

/// All areas, the last one first.
pub(crate) struct Pool {
    first: AtomicPtr<Area>,
}

/// The head of an area, in its first frame.
#[repr(C)]
pub(crate) struct Area {
    next: AtomicPtr<Area>,
    /// First frame and number of frames, the head's included. Set before the area is added.
    start: crate::sync::settled::AtomicU64,
    frames: crate::sync::settled::AtomicU64,
    /// A set bit is a free frame.
    free: [AtomicU64; AREA_WORDS],
}

impl Area {
    #[cfg(loom)]
    pub(crate) fn zeroed() -> Area {
        Area {
            next: AtomicPtr::new(core::ptr::null_mut()),
            start: crate::sync::settled::AtomicU64::new(0),
            frames: crate::sync::settled::AtomicU64::new(0),
            free: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Its frames, the head's included.
    pub(crate) fn range(&self) -> PfnRange {
        let start = Pfn::new(self.start.load(Ordering::Relaxed)).unwrap_or(Pfn::ZERO);
        PfnRange::with_len(start, self.frames.load(Ordering::Relaxed)).unwrap_or(PfnRange::EMPTY)
    }

    /// Takes `frames` neighbouring frames, which lie in one word.
    fn take(&self, frames: usize) -> Option<Pfn> {
        for (i, word) in self.free.iter().enumerate() {
            let mut now = word.load(Ordering::Relaxed);
            loop {
                let runs = runs_of(now, frames);
                if runs == 0 {
                    break;
                }
                let at = runs.trailing_zeros() as usize;
                let rest = now & !(mask(frames) << at);
                // Acquire pairs with the Release in `give`: the new holder comes after the old one.
                match word.compare_exchange_weak(now, rest, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return self.range().start().checked_add((i * 64 + at) as u64),
                    Err(seen) => now = seen,
                }
            }
        }
        None
    }
}

impl Pool {
    const_unless_loom! {
        /// No areas.
        pub(crate) fn new() -> Pool {
            Pool { first: AtomicPtr::new(core::ptr::null_mut()) }
        }
    }

    /// Adds an area of `range`, at most 512 frames, whose first frame has its head at `head`.
    ///
    /// Context: any, lock-free.
    ///
    /// # Safety
    /// `head` points to an area of zero bytes that stays for as long as the pool, and the frames of
    /// `range` belong to the pool for as long.
    pub(crate) unsafe fn add(&self, head: *mut Area, range: PfnRange) {
        // SAFETY: by the caller's promise; an area consists of atomics.
        let area = unsafe { &*head };
        area.start.store(range.start().number(), Ordering::Relaxed);
        area.frames.store(range.frames(), Ordering::Relaxed);
        for (i, word) in area.free.iter().enumerate() {
            let frames = usize::try_from(range.frames()).unwrap_or(0).saturating_sub(i * 64);
            let head = u64::from(i == 0);
            word.store(mask(frames.min(64)) & !head, Ordering::Relaxed);
        }
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            area.next.store(first, Ordering::Relaxed);
            let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
            // Release: whoever finds the area finds it made.
            match self.first.compare_exchange_weak(first, head, release, relaxed) {
                Ok(_) => return,
                Err(seen) => first = seen,
            }
        }
    }

    /// All areas, the last one first.
    pub(crate) fn areas(&self) -> impl Iterator<Item = &Area> {
        // Acquire pairs with the Release in `add`.
        // SAFETY: by the promise to `add`, areas stay for as long as the pool.
        let mut next = unsafe { self.first.load(Ordering::Acquire).as_ref() };
        core::iter::from_fn(move || {
            let area = next?;
            // SAFETY: as above. Acquire: the areas before it were added by others, and the first
            // load synchronises with all of them, as each was added by a read-modify-write.
            next = unsafe { area.next.load(Ordering::Acquire).as_ref() };
            Some(area)
        })
    }

    /// Takes `frames` neighbouring frames, at most 64, if there are so many.
    ///
    /// Context: any, lock-free. Cost: O(areas).
    pub(crate) fn take(&self, frames: usize) -> Option<Pfn> {
        self.areas().find_map(|area| area.take(frames))
    }

    /// Gives back what [`take`](Self::take) has given. Says whether the pool has it.
    ///
    /// Context: any, lock-free. Cost: O(areas).
    pub(crate) fn give(&self, first: Pfn, frames: usize) -> bool {
        let Some(area) = self.areas().find(|area| area.range().contains(first)) else {
            return false;
        };
        let Ok(at) = usize::try_from(first.number() - area.range().start().number()) else {
            return false;
        };
        // Release pairs with the Acquire in `take`.
        area.free[at / 64].fetch_or(mask(frames) << (at % 64), Ordering::Release);
        true
    }

    /// Whether a frame belongs to the pool, free or not.
    pub(crate) fn has(&self, range: PfnRange) -> bool {
        self.areas().any(|area| area.range().overlaps(range))
    }

    /// Frames that are free, and all frames.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let free = |area: &Area| {
            area.free.iter().map(|w| u64::from(w.load(Ordering::Relaxed).count_ones())).sum::<u64>()
        };
        self.areas()
            .fold((0, 0), |(frames, all), area| (frames + free(area), all + area.range().frames()))
    }
}

/// The bits at which a run of `n` set bits starts.
fn runs_of(word: u64, n: usize) -> u64 {
    (1..n).fold(word, |runs, i| runs & word >> i)
}
