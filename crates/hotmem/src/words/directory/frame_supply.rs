//! Supplies pieces from frames that its caller has set aside.

use super::install::{Supply, frames_of};
use super::pieces::Piece;
use crate::addr::PfnRange;
use crate::platform::DirectMap;
use core::ptr::NonNull;

/// Frames that become pieces, the lowest first.
pub(crate) struct FrameSupply {
    direct_map: DirectMap,
    rest: PfnRange,
}

impl FrameSupply {
    /// Creates a supply of pieces from `memory`.
    ///
    /// # Safety
    /// The frames are mapped by `direct_map`, and nobody else uses those that become pieces for as
    /// long as the machine lives.
    pub(crate) unsafe fn new(direct_map: DirectMap, memory: PfnRange) -> FrameSupply {
        FrameSupply { direct_map, rest: memory }
    }

    /// Returns the frames that have not become pieces.
    pub(crate) fn rest(&self) -> PfnRange {
        self.rest
    }
}

impl Supply for FrameSupply {
    fn piece<T: Piece>(&mut self) -> Option<NonNull<T>> {
        let frames = frames_of::<T>();
        let (taken, rest) = self.rest.split_at(self.rest.start().checked_add(frames)?);
        if taken.frames() < frames {
            return None;
        }
        let piece = NonNull::new(self.direct_map.pointer(taken.start()))?;
        self.rest = rest;
        // SAFETY: that many frames are mapped there and are ours, by the contract of `new`.
        unsafe { piece.write_bytes(0, size_of::<T>()) };
        Some(piece.cast())
    }
}
