//! Addresses and sizes as types: frame numbers, ranges of them, and bytes.
//!
//! Every value is checked where it is made, so that nothing further down can wrap: a [`Pfn`] is
//! below [`PFN_LIMIT`] or equal to it where it ends a range, and a [`PfnRange`] never ends before
//! it starts. Arithmetic that could leave these bounds returns an `Option`.

use crate::geometry::{
    FRAME_SHIFT, FRAME_SIZE, PAGEBLOCK_FRAMES, PFN_LIMIT, PHYS_ADDR_BITS, SECTION_FRAMES,
};
use core::fmt;

/// A physical frame number: a physical address divided by the frame size (4 KiB).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Pfn(u64);

/// A half-open range of frames. It may be empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PfnRange {
    start: Pfn,
    end: Pfn,
}

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Bytes(pub u64);

/// Why bytes could not be made into frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddrError {
    /// The address or its end lies at or above the 52 bits that a physical address can have.
    BeyondPhysicalLimit {
        /// First byte of what was asked for.
        start: u64,
        /// Bytes asked for.
        len: Bytes,
    },
    /// The start or the length is no multiple of the frame size.
    Unaligned {
        /// First byte of what was asked for.
        start: u64,
        /// Bytes asked for.
        len: Bytes,
    },
}

impl Pfn {
    /// Frame 0.
    pub const ZERO: Pfn = Pfn(0);
    /// One past the last frame that can exist.
    pub const LIMIT: Pfn = Pfn(PFN_LIMIT);

    /// The frame with this number, or `None` above [`Pfn::LIMIT`].
    #[must_use]
    pub const fn new(number: u64) -> Option<Pfn> {
        if number <= PFN_LIMIT { Some(Pfn(number)) } else { None }
    }

    /// The frame that holds the byte at this physical address.
    #[must_use]
    pub const fn containing(phys_addr: u64) -> Option<Pfn> {
        Pfn::new(phys_addr >> FRAME_SHIFT)
    }

    /// The frame's number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The physical address of the frame's first byte.
    #[must_use]
    pub const fn phys_addr(self) -> u64 {
        self.0 << FRAME_SHIFT
    }

    /// The frame `frames` further up.
    #[must_use]
    pub const fn checked_add(self, frames: u64) -> Option<Pfn> {
        match self.0.checked_add(frames) {
            Some(number) => Pfn::new(number),
            None => None,
        }
    }

    /// Rounds down to a multiple of `frames` (a power of two).
    #[must_use]
    pub const fn align_down(self, frames: u64) -> Pfn {
        Pfn(self.0 & !(frames - 1))
    }

    /// Rounds up to a multiple of `frames` (a power of two), at most [`Pfn::LIMIT`].
    #[must_use]
    pub const fn align_up(self, frames: u64) -> Pfn {
        // PFN_LIMIT is 2^40, so this cannot wrap for any power of two that fits a PFN.
        let up = (self.0 + (frames - 1)) & !(frames - 1);
        if up > PFN_LIMIT { Pfn::LIMIT } else { Pfn(up) }
    }

    /// Whether the frame number is a multiple of `frames` (a power of two).
    #[must_use]
    pub const fn is_aligned(self, frames: u64) -> bool {
        self.0 & (frames - 1) == 0
    }
}

impl PfnRange {
    /// A range of no frames.
    pub const EMPTY: PfnRange = PfnRange { start: Pfn(0), end: Pfn(0) };

    /// The frames from `start` up to, not including, `end`; `None` if it would end before it
    /// starts.
    #[must_use]
    pub const fn new(start: Pfn, end: Pfn) -> Option<PfnRange> {
        if start.0 <= end.0 { Some(PfnRange { start, end }) } else { None }
    }

    /// `frames` frames from `start`; `None` if they would pass [`Pfn::LIMIT`].
    #[must_use]
    pub const fn with_len(start: Pfn, frames: u64) -> Option<PfnRange> {
        match start.checked_add(frames) {
            Some(end) => Some(PfnRange { start, end }),
            None => None,
        }
    }

    /// Exactly these bytes.
    ///
    /// # Errors
    /// [`AddrError`] if they are no whole frames or lie beyond the physical limit.
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

    /// The first frame.
    #[must_use]
    pub const fn start(self) -> Pfn {
        self.start
    }

    /// One past the last frame.
    #[must_use]
    pub const fn end(self) -> Pfn {
        self.end
    }

    /// How many frames.
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// How many bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.frames() << FRAME_SHIFT)
    }

    /// Whether there is no frame in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Whether `pfn` lies in it.
    #[must_use]
    pub const fn contains(self, pfn: Pfn) -> bool {
        self.start.0 <= pfn.0 && pfn.0 < self.end.0
    }

    /// Whether all of `other` lies in it. An empty range lies in any range that it touches.
    #[must_use]
    pub const fn covers(self, other: PfnRange) -> bool {
        self.start.0 <= other.start.0 && other.end.0 <= self.end.0
    }

    /// Whether the two have a frame in common.
    #[must_use]
    pub const fn overlaps(self, other: PfnRange) -> bool {
        !self.intersection(other).is_empty()
    }

    /// The frames that both have.
    #[must_use]
    pub const fn intersection(self, other: PfnRange) -> PfnRange {
        let start = if self.start.0 > other.start.0 { self.start } else { other.start };
        let end = if self.end.0 < other.end.0 { self.end } else { other.end };
        if start.0 < end.0 { PfnRange { start, end } } else { PfnRange { start, end: start } }
    }

    /// The part below `pfn` and the part from `pfn` up.
    #[must_use]
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

    /// The largest part that starts and ends on a multiple of `frames` (a power of two).
    #[must_use]
    pub const fn align_inward(self, frames: u64) -> PfnRange {
        let start = self.start.align_up(frames);
        let end = self.end.align_down(frames);
        if start.0 < end.0 { PfnRange { start, end } } else { PfnRange { start, end: start } }
    }

    /// The smallest range around it that starts and ends on a multiple of `frames`.
    #[must_use]
    pub const fn align_outward(self, frames: u64) -> PfnRange {
        PfnRange { start: self.start.align_down(frames), end: self.end.align_up(frames) }
    }

    /// Whether it starts and ends on a multiple of `frames` (a power of two).
    #[must_use]
    pub const fn is_aligned(self, frames: u64) -> bool {
        self.start.is_aligned(frames) && self.end.is_aligned(frames)
    }

    /// Whether it consists of whole pageblocks (2 MiB).
    #[must_use]
    pub const fn is_pageblock_aligned(self) -> bool {
        self.is_aligned(PAGEBLOCK_FRAMES as u64)
    }

    /// Cut at multiples of `frames` (a power of two), from the bottom up.
    pub fn chunks(self, frames: u64) -> impl DoubleEndedIterator<Item = PfnRange> + Clone {
        let outer = self.align_outward(frames);
        let count = if self.is_empty() { 0 } else { outer.frames() / frames };
        (0..count).map(move |i| {
            let start = Pfn(outer.start.0 + i * frames);
            self.intersection(PfnRange { start, end: Pfn(start.0 + frames) })
        })
    }

    /// Cut at section boundaries (128 MiB), from the bottom up.
    pub fn sections(self) -> impl DoubleEndedIterator<Item = PfnRange> + Clone {
        self.chunks(SECTION_FRAMES as u64)
    }
}

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// `n` KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// `n` GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// `n` TiB.
    #[must_use]
    pub const fn tib(n: u64) -> Bytes {
        Bytes(n << 40)
    }

    /// Whole frames in it, rounded down.
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.0 >> FRAME_SHIFT
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}", self.0)
    }
}

impl fmt::Display for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.phys_addr())
    }
}

impl fmt::Debug for PfnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}..{:#x}", self.start.0, self.end.0)
    }
}

/// As physical addresses, the end inclusive as in `/proc/iomem` and `lsmem`.
impl fmt::Display for PfnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return write!(f, "{:#018x} (empty)", self.start.phys_addr());
        }
        write!(f, "{:#018x}-{:#018x}", self.start.phys_addr(), self.end.phys_addr() - 1)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// In the largest binary unit that leaves no rest: `64GiB`, `2MiB`, `4097B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, unit) in units {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl core::ops::Add for Bytes {
    type Output = Bytes;
    /// Saturates: no machine holds 2^64 bytes.
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl core::ops::Sub for Bytes {
    type Output = Bytes;
    /// Saturates at zero.
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for AddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AddrError::BeyondPhysicalLimit { start, len } => write!(
                f,
                "{len} at {start:#x} lie beyond the {PHYS_ADDR_BITS} bits of a physical address"
            ),
            AddrError::Unaligned { start, len } => {
                write!(f, "{len} at {start:#x} are no whole frames of {FRAME_SIZE} bytes")
            }
        }
    }
}

impl core::error::Error for AddrError {}

#[cfg(all(test, not(any(loom, hotmem_geometry = "small"))))]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PfnRange {
        PfnRange::new(Pfn(start), Pfn(end)).unwrap()
    }

    #[test]
    fn bytes_that_are_no_whole_frames_or_wrap_are_refused() {
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
    fn intersections_and_alignment() {
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
        let r = range(100, 1300);
        let parts: [_; 3] = core::array::from_fn(|i| r.chunks(512).nth(i).unwrap());
        assert_eq!(parts, [range(100, 512), range(512, 1024), range(1024, 1300)]);
        assert_eq!(r.chunks(512).count(), 3);
        assert_eq!(PfnRange::EMPTY.chunks(512).count(), 0);
        assert_eq!(range(100, 100).chunks(512).count(), 0);
    }

    #[test]
    fn sizes_print_in_the_unit_that_fits() {
        extern crate std;
        use std::string::ToString;
        assert_eq!(Bytes::gib(64).to_string(), "64GiB");
        assert_eq!(Bytes(4097).to_string(), "4097B");
        assert_eq!(Bytes::mib(1536).to_string(), "1536MiB");
    }
}
