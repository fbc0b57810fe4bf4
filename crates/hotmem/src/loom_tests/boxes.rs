//! Supplies memory for the pieces of a directory.

use crate::words::directory::{Piece, Supply};
use core::ptr::NonNull;
use std::any::Any;
use std::boxed::Box;
use std::vec::Vec;

/// Pieces that live as long as the model.
#[derive(Default)]
pub(super) struct Boxes(Vec<Box<dyn Any>>);

// SAFETY: no thread accesses the boxes before the last thread drops them.
unsafe impl Send for Boxes {}

impl Boxes {
    pub(super) fn keep<T: 'static>(&mut self, piece: T) -> NonNull<T> {
        let piece = NonNull::from(Box::leak(Box::new(piece)));
        // SAFETY: leaked just now, and owned by the box again, which is not accessed before it is
        // dropped.
        self.0.push(unsafe { Box::from_raw(piece.as_ptr()) });
        piece
    }
}

impl Supply for Boxes {
    fn piece<T: Piece>(&mut self) -> Option<NonNull<T>> {
        Some(self.keep(T::zeroed()))
    }
}
