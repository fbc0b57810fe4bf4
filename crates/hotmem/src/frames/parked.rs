//! Lists the memory that is isolated for requests that wait, so that an allocation which finds no
//! memory can take it back.
//!
//! A request *parks* its isolated memory before it waits: it puts the memory's range into a place of
//! the list. Whoever takes the range out of its place has the memory again. The request does so when
//! it goes on. An allocation that would fail does so first, releases the memory, and searches again
//! (*recall*). Then the request finds that its memory is gone, and begins with it again.
//!
//! A place is a single word, so a compare-exchange decides who takes the range.

use crate::addr::{Pfn, PfnRange};
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::sync::{AtomicU64, Ordering, array_of, const_unless_loom};

/// The largest number of ranges that are parked at one time.
const PLACES: usize = if cfg!(loom) { 1 } else { 8 };

/// The list of parked ranges.
pub(crate) struct ParkedRanges {
    /// The number of the range's first pageblock in the upper half, and the number of its pageblocks
    /// in the lower half; 0 if nothing is parked here.
    places: [AtomicU64; PLACES],
}

/// Returns the word for a range of whole pageblocks. Returns `None` if the range does not fit.
fn word_of(range: PfnRange) -> Option<u64> {
    let pageblocks = |frames: u64| u32::try_from(frames / PAGEBLOCK_FRAMES as u64).ok();
    let (first, len) = (pageblocks(range.start().number())?, pageblocks(range.frames())?);
    (len != 0).then_some(u64::from(first) << 32 | u64::from(len))
}

/// Returns the range of a word, if there is one.
fn range_of(word: u64) -> Option<PfnRange> {
    let first = Pfn::new((word >> 32) * PAGEBLOCK_FRAMES as u64)?;
    PfnRange::with_len(first, (word & u64::from(u32::MAX)) * PAGEBLOCK_FRAMES as u64)
        .filter(|range| !range.is_empty())
}

impl ParkedRanges {
    const_unless_loom! {
        pub(super) fn none() -> ParkedRanges {
            ParkedRanges { places: array_of![AtomicU64::new(0); PLACES] }
        }
    }

    /// Iterates over the parked ranges. Acquire pairs with the Release in `take`: whoever finds that
    /// a range is gone sees the hiding step of the CPU that has taken it.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = PfnRange> {
        self.places.iter().filter_map(|place| range_of(place.load(Ordering::Acquire)))
    }

    /// Parks a range, which the caller has isolated. Returns false if the list is full.
    pub(crate) fn put(&self, range: PfnRange) -> bool {
        word_of(range).is_some_and(|word| {
            self.places.iter().any(|place| {
                // Release pairs with the Acquire in `take`: whoever takes the range sees all steps
                // of its isolation.
                place.load(Ordering::Relaxed) == 0
                    && place.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed).is_ok()
            })
        })
    }

    /// Takes a range out of the list. Returns false if it is not parked any more. If it returns true,
    /// the isolated memory belongs to the caller.
    pub(crate) fn take(&self, range: PfnRange) -> bool {
        word_of(range).is_some_and(|word| {
            self.places.iter().any(|place| {
                place.load(Ordering::Relaxed) == word
                    && place.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
        })
    }
}
