//! Defines the result of a fast path of allocation.

use crate::addr::Pfn;

/// A frame that a fast path has allocated, or none. It fits into one register, so that the slow
/// parts of the fast path are tail calls, for which it saves no registers.
#[derive(Clone, Copy)]
pub(in crate::frames) struct FrameOrNone(u64);

/// A bit that no frame number has.
const ZERO: u64 = 1 << 63;

impl FrameOrNone {
    pub(in crate::frames) const NONE: FrameOrNone = FrameOrNone(u64::MAX);

    /// Returns the frame with this number.
    pub(crate) const fn number(number: u64) -> FrameOrNone {
        FrameOrNone(number)
    }

    /// Records that the pageblock that begins at the frame is zero.
    pub(crate) const fn marked_zero(self) -> FrameOrNone {
        FrameOrNone(self.0 | ZERO)
    }

    /// Returns the frame, if there is one, and whether its pageblock is zero.
    pub(crate) fn get_with_mark(self) -> Option<(Pfn, bool)> {
        Some((Pfn::new(self.0 & !ZERO)?, self.0 & ZERO != 0))
    }

    /// Returns the frame, if there is one. It must not be [marked](Self::marked_zero).
    pub(crate) fn get(self) -> Option<Pfn> {
        Pfn::new(self.0)
    }
}
