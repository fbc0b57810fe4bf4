//! The crate `buddy_system_allocator`, behind a spin lock. It rounds lengths up to a power of two.

use crate::bench::frames::allocator::{Allocator, index};
use crate::bench::frames::case::Case;
use crate::bench::frames::length::Length;
use buddy_system_allocator::FrameAllocator;
use spin::Mutex;

/// The number of orders that the allocator is built for: the largest block is 2^32 frames, 16 TiB.
const ORDERS: usize = 33;

/// Returns why the allocator cannot do a case.
pub(in crate::bench) fn cannot(case: &Case) -> Option<&'static str> {
    case.place.is_restricted().then_some("it has no zones and no nodes")
}

/// The allocator.
pub(in crate::bench) struct Buddy(Mutex<FrameAllocator<ORDERS>>);

impl Buddy {
    pub(in crate::bench) fn new(frames: usize) -> Buddy {
        let mut allocator = FrameAllocator::new();
        allocator.add_frame(0, frames);
        Buddy(Mutex::new(allocator))
    }
}

impl Allocator for Buddy {
    type ThreadState<'a> = &'a Self;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline]
    fn alloc(&self, length: Length) -> Option<u64> {
        self.0.lock().alloc(index(length.frames())).map(|frame| frame as u64)
    }

    #[inline]
    fn free(&self, frame: u64, length: Length) {
        self.0.lock().dealloc(index(frame), index(length.frames()));
    }

    fn allocate_all(&self, _: Length) {
        let mut allocator = self.0.lock();
        for order in (0..ORDERS).rev() {
            while allocator.alloc(1 << order).is_some() {}
        }
    }
}
