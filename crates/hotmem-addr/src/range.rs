//! Defines the type of ranges of frames.

use crate::bytes::Bytes;
use crate::geometry::{FRAME_SHIFT, FRAME_SIZE, PFN_LIMIT, PHYS_ADDR_BITS};
use crate::pfn::Pfn;
use core::fmt;
use core::ops::Range;

/// A half-open range of frames. It may be empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PfnRange {
    start: Pfn,
    end: Pfn,
}

/// The reason why a range of bytes is not a range of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddrError {
    /// The end of the range lies beyond the last physical address, which has 52 bits.
    BeyondPhysicalLimit {
        /// The first byte requested.
        start: u64,
        /// The number of bytes requested.
        len: Bytes,
    },
    /// The start or the length is not a multiple of the frame size.
    Unaligned {
        /// The first byte requested.
        start: u64,
        /// The number of bytes requested.
        len: Bytes,
    },
    /// The end lies below the start.
    Backwards {
        /// The first byte requested.
        start: u64,
        /// The first byte after the range.
        end: u64,
    },
}

/// Converts a range of physical addresses, the end excluded. The range must consist of whole frames.
impl TryFrom<Range<u64>> for PfnRange {
    type Error = AddrError;

    fn try_from(Range { start, end }: Range<u64>) -> Result<PfnRange, AddrError> {
        match end.checked_sub(start) {
            Some(len) => PfnRange::from_bytes(start, Bytes(len)),
            None => Err(AddrError::Backwards { start, end }),
        }
    }
}

impl PfnRange {
    /// A range of no frames.
    pub const EMPTY: PfnRange = PfnRange { start: Pfn(0), end: Pfn(0) };

    /// All possible frames.
    pub const ALL: PfnRange = PfnRange { start: Pfn::ZERO, end: Pfn::LIMIT };

    /// Returns the frames from `start` to `end`, `end` excluded, or `None` if `end` lies below
    /// `start`.
    #[must_use]
    #[inline]
    pub const fn new(start: Pfn, end: Pfn) -> Option<PfnRange> {
        if start.0 <= end.0 { Some(PfnRange { start, end }) } else { None }
    }

    /// Returns `frames` frames from `start` on, or `None` if the range would end beyond
    /// [`Pfn::LIMIT`].
    #[must_use]
    #[inline]
    pub const fn with_len(start: Pfn, frames: u64) -> Option<PfnRange> {
        match start.checked_add(frames) {
            Some(end) => Some(PfnRange { start, end }),
            None => None,
        }
    }

    /// Returns the frames of exactly these bytes.
    ///
    /// # Errors
    /// [`AddrError`] if the bytes are not whole frames, or if some of them lie beyond the last
    /// possible physical address.
    #[inline]
    pub const fn from_bytes(phys_addr: u64, len: Bytes) -> Result<PfnRange, AddrError> {
        let beyond = AddrError::BeyondPhysicalLimit { start: phys_addr, len };
        let Some(end) = phys_addr.checked_add(len.0) else { return Err(beyond) };
        if end > 1 << PHYS_ADDR_BITS {
            return Err(beyond);
        }
        if phys_addr & (FRAME_SIZE - 1) != 0 || len.0 & (FRAME_SIZE - 1) != 0 {
            return Err(AddrError::Unaligned { start: phys_addr, len });
        }
        Ok(PfnRange { start: Pfn(phys_addr >> FRAME_SHIFT), end: Pfn(end >> FRAME_SHIFT) })
    }

    /// Returns the first frame.
    #[must_use]
    #[inline]
    pub const fn start(self) -> Pfn {
        self.start
    }

    /// Returns the frame after the last frame of the range.
    #[must_use]
    #[inline]
    pub const fn end(self) -> Pfn {
        self.end
    }

    /// Returns the number of frames.
    #[must_use]
    #[inline]
    pub const fn frames(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Returns the number of bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.frames() << FRAME_SHIFT)
    }

    /// Returns whether the range has no frames.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Returns whether `pfn` lies in the range.
    #[must_use]
    #[inline]
    pub const fn contains(self, pfn: Pfn) -> bool {
        self.start.0 <= pfn.0 && pfn.0 < self.end.0
    }

    /// Returns whether all of `other` lies in this range. This is true of an empty `other` if its
    /// start is at least this range's start and at most its end.
    #[must_use]
    #[inline]
    pub const fn covers(self, other: PfnRange) -> bool {
        self.start.0 <= other.start.0 && other.end.0 <= self.end.0
    }

    /// Returns whether the two ranges have a frame in common.
    #[must_use]
    #[inline]
    pub const fn overlaps(self, other: PfnRange) -> bool {
        !self.intersection(other).is_empty()
    }

    /// Returns the frames that lie in both ranges.
    #[must_use]
    #[inline]
    pub const fn intersection(self, other: PfnRange) -> PfnRange {
        let start = if self.start.0 > other.start.0 { self.start } else { other.start };
        let end = if self.end.0 < other.end.0 { self.end } else { other.end };
        if start.0 < end.0 { PfnRange { start, end } } else { PfnRange { start, end: start } }
    }

    /// Returns the part of the range below `pfn`, and the part from `pfn` on.
    #[must_use]
    #[inline]
    pub const fn split_at(self, pfn: Pfn) -> (PfnRange, PfnRange) {
        let mid = if pfn.0 < self.start.0 {
            self.start
        } else if pfn.0 > self.end.0 {
            self.end
        } else {
            pfn
        };
        (PfnRange { start: self.start, end: mid }, PfnRange { start: mid, end: self.end })
    }

    /// Returns the largest part of the range that starts and ends at a multiple of `frames`, a power
    /// of two.
    #[must_use]
    #[inline]
    pub const fn align_inward(self, frames: u64) -> PfnRange {
        let start = self.start.align_up(frames);
        let end = self.end.align_down(frames);
        if start.0 < end.0 { PfnRange { start, end } } else { PfnRange { start, end: start } }
    }

    /// Returns the smallest range that contains this range, and starts and ends at a multiple of
    /// `frames`, a power of two.
    #[must_use]
    #[inline(never)]
    pub const fn align_outward(self, frames: u64) -> PfnRange {
        PfnRange { start: self.start.align_down(frames), end: self.end.align_up(frames) }
    }

    /// Returns whether the range starts and ends at a multiple of `frames`, a power of two.
    #[must_use]
    #[inline]
    pub const fn is_aligned(self, frames: u64) -> bool {
        (self.start.0 | self.end.0) & frames.wrapping_sub(1) == 0
    }

    /// Splits the range at multiples of `frames`, a power of two, and yields the parts in ascending
    /// order. If `frames` is not a power of two, or exceeds the number of possible frames, yields the
    /// whole range as one part.
    #[inline]
    pub fn chunks(self, frames: u64) -> impl DoubleEndedIterator<Item = PfnRange> + Clone {
        let is_usable = frames.is_power_of_two() && frames < PFN_LIMIT;
        Chunks { remaining: self, frames: if is_usable { frames } else { PFN_LIMIT } }
    }
}

/// Iterator over the parts of a range: see [`PfnRange::chunks`]. Its functions are not inlined,
/// because so many loops use them.
#[derive(Clone)]
struct Chunks {
    remaining: PfnRange,
    frames: u64,
}

impl Iterator for Chunks {
    type Item = PfnRange;

    #[inline(never)]
    fn next(&mut self) -> Option<PfnRange> {
        let PfnRange { start, .. } = self.remaining;
        let end = Pfn(start.align_down(self.frames).0 + self.frames);
        let (first, remaining) = self.remaining.split_at(end);
        self.remaining = remaining;
        (!first.is_empty()).then_some(first)
    }
}

impl DoubleEndedIterator for Chunks {
    #[inline(never)]
    fn next_back(&mut self) -> Option<PfnRange> {
        let last = Pfn(self.remaining.end.0.saturating_sub(1));
        let (remaining, last) = self.remaining.split_at(last.align_down(self.frames));
        self.remaining = remaining;
        (!last.is_empty()).then_some(last)
    }
}

impl fmt::Debug for PfnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}..{:#x}", self.start.0, self.end.0)
    }
}

/// Prints the physical addresses of the first and the last byte, as `/proc/iomem` and `lsmem` do.
impl fmt::Display for PfnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return write!(f, "{:#018x} (empty)", self.start.phys_addr());
        }
        write!(f, "{:#018x}-{:#018x}", self.start.phys_addr(), self.end.phys_addr() - 1)
    }
}

impl fmt::Display for AddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AddrError::BeyondPhysicalLimit { start, len } => write!(
                f,
                "{len} at {start:#x} lie beyond the {PHYS_ADDR_BITS} bits of a physical address"
            ),
            AddrError::Backwards { start, end } => {
                write!(f, "bytes from {start:#x} to {end:#x} end before they start")
            }
            AddrError::Unaligned { start, len } => {
                write!(f, "{len} at {start:#x} are not whole frames of {FRAME_SIZE} bytes")
            }
        }
    }
}

impl core::error::Error for AddrError {}

#[cfg(all(test, not(any(loom, hotmem_geometry = "small"))))]
mod tests {
    extern crate std;
    use super::*;

    fn range(start: u64, end: u64) -> PfnRange {
        PfnRange::new(Pfn(start), Pfn(end)).unwrap()
    }

    #[test]
    fn bytes_that_wrap_or_are_not_whole_frames_are_refused() {
        assert!(PfnRange::from_bytes(0x1000, Bytes(0x2000)).is_ok());
        for (start, len) in [(0x1001, 0x1000), (0x1000, 0x1001)] {
            let refused = PfnRange::from_bytes(start, Bytes(len));
            assert_eq!(refused, Err(AddrError::Unaligned { start, len: Bytes(len) }));
        }
        for (start, len) in [(u64::MAX - 0xfff, 0x1000), (1 << 52, 0x1000), (0, u64::MAX)] {
            let refused = PfnRange::from_bytes(start, Bytes(len));
            assert_eq!(refused, Err(AddrError::BeyondPhysicalLimit { start, len: Bytes(len) }));
        }
        assert!(PfnRange::from_bytes((1 << 52) - 0x1000, Bytes(0x1000)).is_ok());
    }

    #[test]
    fn a_range_of_addresses_is_converted_to_exactly_its_frames_or_refused() {
        assert_eq!(PfnRange::try_from(0x1000..0x4000), Ok(range(1, 4)));
        assert_eq!(PfnRange::try_from(0x1000..0x1000), Ok(range(1, 1)));
        let backwards = AddrError::Backwards { start: 0x2000, end: 0x1000 };
        #[allow(clippy::reversed_empty_ranges, reason = "the conversion must refuse it")]
        let refused = PfnRange::try_from(0x2000..0x1000);
        assert_eq!(refused, Err(backwards));
        let unaligned = AddrError::Unaligned { start: 0x1000, len: Bytes(0x1001) };
        assert_eq!(PfnRange::try_from(0x1000..0x2001), Err(unaligned));
        let beyond = AddrError::BeyondPhysicalLimit { start: 0, len: Bytes(u64::MAX) };
        assert_eq!(PfnRange::try_from(0..u64::MAX), Err(beyond));
    }

    #[test]
    fn ranges_are_intersected_aligned_and_split() {
        let a = range(10, 20);
        assert_eq!(a.intersection(range(15, 30)), range(15, 20));
        assert!(a.intersection(range(20, 30)).is_empty());
        assert!(!a.overlaps(range(20, 30)));
        assert_eq!(range(1, 1025).align_inward(512), range(512, 1024));
        assert!(range(1, 511).align_inward(512).is_empty());
        assert_eq!(range(1, 513).align_outward(512), range(0, 1024));
        assert_eq!(a.split_at(Pfn(5)), (range(10, 10), a));
        assert_eq!(a.split_at(Pfn(12)), (range(10, 12), range(12, 20)));
    }

    #[test]
    fn chunks_cover_exactly_the_range() {
        let whole = range(100, 1300);
        let parts: [_; 3] = core::array::from_fn(|i| whole.chunks(512).nth(i).unwrap());
        assert_eq!(parts, [range(100, 512), range(512, 1024), range(1024, 1300)]);
        assert_eq!(whole.chunks(512).count(), 3);
        assert_eq!(PfnRange::EMPTY.chunks(512).count(), 0);
        assert_eq!(range(100, 100).chunks(512).count(), 0);
    }

    #[test]
    fn alignments_beyond_the_limit_do_not_panic_or_split_a_range() {
        let whole = range(100, PFN_LIMIT - 1);
        for large in [PFN_LIMIT, 1 << 63, 0] {
            assert_eq!(whole.align_outward(large), range(0, PFN_LIMIT));
            assert!(whole.align_inward(large).is_empty());
            assert!(!whole.is_aligned(large) && PfnRange::EMPTY.is_aligned(large));
            assert_eq!(whole.chunks(large).collect::<std::vec::Vec<_>>(), [whole]);
            assert_eq!(Pfn::ZERO.align_up(large), Pfn::ZERO);
        }
        for no_power_of_two in [3, u64::MAX - 1, u64::MAX] {
            let _ = (whole.align_inward(no_power_of_two), whole.align_outward(no_power_of_two));
            assert_eq!(whole.chunks(no_power_of_two).next_back(), Some(whole));
        }
    }
}
