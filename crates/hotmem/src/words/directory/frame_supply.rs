//! Makes pieces of the directory from frames that the caller has set aside.

use super::install::{Supply, frames_of};
use super::pieces::Piece;
use crate::addr::PfnRange;
use crate::platform::DirectMap;
use core::ptr::NonNull;

/// A supply of pieces, which takes its frames from a range, the lowest first.
pub(crate) struct FrameSupply {
    direct_map: DirectMap,
    unused: PfnRange,
}

impl FrameSupply {
    /// Creates a supply of pieces from `memory`.
    ///
    /// # Safety
    /// `direct_map` maps the frames of `memory`, and no other code uses the frames that become
    /// pieces for as long as the machine lives.
    pub(crate) unsafe fn new(direct_map: DirectMap, memory: PfnRange) -> FrameSupply {
        FrameSupply { direct_map, unused: memory }
    }

    /// Returns the frames that have not become pieces yet.
    pub(crate) fn unused(&self) -> PfnRange {
        self.unused
    }
}

impl Supply for FrameSupply {
    fn piece<T: Piece>(&mut self) -> Option<NonNull<T>> {
        let frames = frames_of::<T>();
        let (frames_of_piece, unused) =
            self.unused.split_at(self.unused.start().checked_add(frames)?);
        if frames_of_piece.frames() < frames {
            return None;
        }
        let piece = NonNull::new(self.direct_map.pointer(frames_of_piece.start()))?;
        self.unused = unused;
        // SAFETY: `piece` points to `frames_of_piece`, which is large enough for `T`. By the
        // contract of `new`, these frames are mapped and no other code uses them.
        unsafe { piece.write_bytes(0, size_of::<T>()) };
        Some(piece.cast())
    }
}
