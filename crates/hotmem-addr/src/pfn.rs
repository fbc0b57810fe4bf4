//! Defines the type of frame numbers.

use crate::geometry::{FRAME_SHIFT, PFN_LIMIT};
use core::fmt;

/// A physical frame number: a physical address divided by the frame size (4 KiB).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Pfn(pub(crate) u64);

impl Pfn {
    /// Frame 0.
    pub const ZERO: Pfn = Pfn(0);
    /// One past the last possible frame.
    pub const LIMIT: Pfn = Pfn(PFN_LIMIT);

    /// Returns the frame with this number, or `None` if the number exceeds [`Pfn::LIMIT`].
    #[must_use]
    #[inline]
    pub const fn new(number: u64) -> Option<Pfn> {
        if number <= PFN_LIMIT { Some(Pfn(number)) } else { None }
    }

    /// Returns the frame that holds the byte at this physical address, or `None` if the address lies
    /// beyond [`Pfn::LIMIT`].
    #[must_use]
    #[inline]
    pub const fn containing(phys_addr: u64) -> Option<Pfn> {
        Pfn::new(phys_addr >> FRAME_SHIFT)
    }

    /// Returns the frame's number.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Returns the physical address of the frame's first byte.
    #[must_use]
    #[inline]
    pub const fn phys_addr(self) -> u64 {
        self.0 << FRAME_SHIFT
    }

    /// Returns the frame whose number is larger by `frames`, or `None` beyond [`Pfn::LIMIT`].
    #[must_use]
    #[inline]
    pub const fn checked_add(self, frames: u64) -> Option<Pfn> {
        // The subtraction cannot wrap, because `self` is at most `LIMIT`.
        if frames <= PFN_LIMIT.wrapping_sub(self.0) { Some(Pfn(self.0 + frames)) } else { None }
    }

    /// Rounds down to a multiple of `frames`, a power of two. A `frames` of 0 stands for 2^64, so
    /// that the result is frame 0.
    #[must_use]
    #[inline]
    pub const fn align_down(self, frames: u64) -> Pfn {
        Pfn(self.0 & !frames.wrapping_sub(1))
    }

    /// Rounds up to a multiple of `frames`, a power of two, but at most to [`Pfn::LIMIT`].
    #[must_use]
    #[inline(never)]
    pub const fn align_up(self, frames: u64) -> Pfn {
        let mask = frames.wrapping_sub(1);
        if mask >= PFN_LIMIT {
            return if self.0 == 0 { self } else { Pfn::LIMIT };
        }
        let rounded = (self.0 + mask) & !mask;
        if rounded > PFN_LIMIT { Pfn::LIMIT } else { Pfn(rounded) }
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
