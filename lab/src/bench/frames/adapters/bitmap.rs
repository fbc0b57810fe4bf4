//! The crate `bitmap-allocator`, behind a spin lock. It finds several frames by a search frame by
//! frame from the bottom.

use crate::bench::frames::allocator::{Allocator, index};
use crate::bench::frames::case::Case;
use crate::bench::frames::length::Length;
use bitmap_allocator::{BitAlloc, BitAlloc16M, BitAlloc256M};
use hotmem::geometry::FRAME_SIZE;
use spin::Mutex;

/// The bitmap for up to 64 GiB. It is a `static` because it is too large for a stack.
pub(in crate::bench) static BITMAP_64G: Mutex<BitAlloc16M> = Mutex::new(BitAlloc16M::DEFAULT);
/// The bitmap for up to 1 TiB.
pub(in crate::bench) static BITMAP_1T: Mutex<BitAlloc256M> = Mutex::new(BitAlloc256M::DEFAULT);

/// Returns why the allocator cannot do a case.
pub(in crate::bench) fn cannot(case: &Case) -> Option<&'static str> {
    if case.size.0 / FRAME_SIZE > BitAlloc256M::CAP as u64 {
        return Some("its largest bitmap has 1 TiB");
    }
    case.place.is_restricted().then_some("it has no zones and no nodes")
}

/// The allocator.
pub(in crate::bench) struct Bitmap<B: 'static>(&'static Mutex<B>);

impl<B: BitAlloc> Bitmap<B> {
    /// Makes an allocator of the first `frames` frames. No bit of `bitmap` may be set.
    pub(in crate::bench) fn new(bitmap: &'static Mutex<B>, frames: usize) -> Bitmap<B> {
        bitmap.lock().insert(0..frames);
        Bitmap(bitmap)
    }
}

impl<B: BitAlloc + Send> Allocator for Bitmap<B> {
    type ThreadState<'a> = &'a Self;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline]
    fn alloc(&self, length: Length) -> Option<u64> {
        let mut bitmap = self.0.lock();
        let frame = match length {
            Length::Order(0) => bitmap.alloc(),
            Length::Order(order) => bitmap.alloc_contiguous(None, 1 << order, order as usize),
            Length::Frames(frames) => bitmap.alloc_contiguous(None, index(frames), 0),
        };
        frame.map(|frame| frame as u64)
    }

    #[inline]
    fn free(&self, frame: u64, length: Length) {
        let mut bitmap = self.0.lock();
        let freed = match length {
            Length::Order(0) => bitmap.dealloc(index(frame)),
            length => bitmap.dealloc_contiguous(index(frame), index(length.frames())),
        };
        assert!(freed, "frames were freed that were not allocated");
    }

    fn allocate_all(&self, _: Length) {
        self.0.lock().remove(0..B::CAP);
    }
}
