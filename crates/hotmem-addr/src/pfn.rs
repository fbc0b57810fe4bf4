//! Frame numbers.

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

    /// Returns the frame with this number, or `None` above [`Pfn::LIMIT`].
    #[must_use]
    #[inline]
    pub const fn new(number: u64) -> Option<Pfn> {
        if number <= PFN_LIMIT { Some(Pfn(number)) } else { None }
    }

    /// Returns the frame that holds the byte at this physical address.
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

    /// Returns the frame `frames` above this one.
    #[must_use]
    #[inline]
    pub const fn checked_add(self, frames: u64) -> Option<Pfn> {
        // No frame has a number above the limit.
        if frames <= PFN_LIMIT.wrapping_sub(self.0) { Some(Pfn(self.0 + frames)) } else { None }
    }

    /// Rounds down to a multiple of `frames` (a power of two; 0 stands for 2^64).
    #[must_use]
    #[inline]
    pub const fn align_down(self, frames: u64) -> Pfn {
        Pfn(self.0 & !frames.wrapping_sub(1))
    }

    /// Rounds up to a multiple of `frames` (a power of two), at most [`Pfn::LIMIT`].
    #[must_use]
    #[inline]
    pub const fn align_up(self, frames: u64) -> Pfn {
        let below = frames.wrapping_sub(1);
        if below >= PFN_LIMIT {
            return if self.0 == 0 { self } else { Pfn::LIMIT };
        }
        let up = (self.0 + below) & !below;
        if up > PFN_LIMIT { Pfn::LIMIT } else { Pfn(up) }
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
