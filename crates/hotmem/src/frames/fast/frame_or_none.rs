//! Defines the result of a fast path of allocation.

use crate::addr::Pfn;

/// A frame that a fast path has allocated, or none. It fits into one register, so that the slow
/// parts of the fast path are tail calls, for which it saves no registers.
#[derive(Clone, Copy)]
pub(in crate::frames) struct FrameOrNone(u64);

impl FrameOrNone {
    pub(in crate::frames) const NONE: FrameOrNone = FrameOrNone(u64::MAX);

    /// Returns the frame with this number.
    pub(crate) const fn number(number: u64) -> FrameOrNone {
        FrameOrNone(number)
    }

    /// Returns the frame, if there is one.
    pub(crate) fn get(self) -> Option<Pfn> {
        Pfn::new(self.0)
    }
}
