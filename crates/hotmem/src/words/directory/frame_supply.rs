//! Makes pieces of the directory from frames that the caller has set aside.

use super::install::{PieceSupply, piece_frames};
use super::pieces::DirectoryPiece;
use crate::addr::PfnRange;
use crate::geometry::FRAME_SIZE;
use crate::words::DirectMap;
use core::ptr::NonNull;

/// A source of frames for pieces. There is one copy of the code that makes pieces, for all sources.
pub(crate) trait FrameSource {
    /// Returns the first of `frames` contiguous frames, which are mapped and filled with zeroes,
    /// and which no other code uses for as long as the instance exists. Returns `None` if no memory
    /// is left.
    fn zeroed_frames(&mut self, frames: u64) -> Option<NonNull<u8>>;
}

impl PieceSupply for &mut (dyn FrameSource + '_) {
    fn new_piece<T: DirectoryPiece>(&mut self) -> Option<NonNull<T>> {
        self.zeroed_frames(piece_frames::<T>()).map(NonNull::cast)
    }
}

/// Fills frames with zeroes.
///
/// # Safety
/// `memory` points to `frames` frames that are mapped and that no other code uses.
#[allow(clippy::cast_possible_truncation, reason = "a piece")]
pub(crate) unsafe fn fill_with_zeroes(memory: NonNull<u8>, frames: u64) {
    // SAFETY: the caller guarantees it.
    unsafe { memory.write_bytes(0, (frames * FRAME_SIZE) as usize) };
}

/// A supply of pieces, which takes its frames from a range, the lowest first.
pub(crate) struct FrameSupply {
    direct_map: DirectMap,
    unused_frames: PfnRange,
}

impl FrameSupply {
    /// Creates a supply of pieces from `memory`.
    ///
    /// # Safety
    /// `direct_map` maps the frames of `memory`, and no other code uses the frames that become
    /// pieces for as long as the instance exists.
    pub(crate) unsafe fn new(direct_map: DirectMap, memory: PfnRange) -> FrameSupply {
        FrameSupply { direct_map, unused_frames: memory }
    }

    /// Returns the frames that have not become pieces yet.
    pub(crate) fn unused(&self) -> PfnRange {
        self.unused_frames
    }
}

impl FrameSource for FrameSupply {
    fn zeroed_frames(&mut self, frames: u64) -> Option<NonNull<u8>> {
        let (frames_of_piece, unused) =
            self.unused_frames.split_at(self.unused_frames.start().checked_add(frames)?);
        if frames_of_piece.frames() < frames {
            return None;
        }
        let piece = NonNull::new(self.direct_map.pointer(frames_of_piece.start()))?;
        self.unused_frames = unused;
        // SAFETY: `piece` points to `frames_of_piece`. By the contract of `new`, these frames are
        // mapped and no other code uses them.
        unsafe { fill_with_zeroes(piece, frames) };
        Some(piece)
    }
}
