//! Supplies pieces of a directory from the heap.

use crate::words::directory::{DirectoryPiece, PieceSupply};
use core::ptr::NonNull;
use std::any::Any;
use std::boxed::Box;
use std::vec::Vec;

/// A supply of pieces, which it keeps for as long as the model exists.
#[derive(Default)]
pub(super) struct Boxes(Vec<Box<dyn Any>>);

// SAFETY: only the thread that drops the last reference to the instance accesses the boxes.
unsafe impl Send for Boxes {}

impl Boxes {
    pub(super) fn keep<T: 'static>(&mut self, piece: T) -> NonNull<T> {
        let piece = NonNull::from(Box::leak(Box::new(piece)));
        // SAFETY: `piece` was leaked just now. The new box owns it, and is not accessed before it
        // is dropped.
        self.0.push(unsafe { Box::from_raw(piece.as_ptr()) });
        piece
    }
}

impl PieceSupply for Boxes {
    fn new_piece<T: DirectoryPiece>(&mut self) -> Option<NonNull<T>> {
        Some(self.keep(T::zeroed()))
    }
}
