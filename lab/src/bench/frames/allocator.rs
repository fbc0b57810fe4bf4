//! The interface that the bench uses for all allocators. It names frames by their numbers.

use super::length::Length;

/// An allocator that several threads use.
pub trait Allocator: Sync {
    /// The state with which one thread of the bench allocates and frees.
    type ThreadState<'a>: ThreadState
    where
        Self: 'a;

    /// Returns the state for the calling thread.
    fn thread_state(&self) -> Self::ThreadState<'_>;

    /// Allocates frames.
    fn alloc(&self, length: Length) -> Option<u64>;

    /// Frees an allocation, or a part of those that [`allocate_all`](Self::allocate_all) has made.
    fn free(&self, frame: u64, length: Length);

    /// Allocates all free memory and keeps it allocated, so that each part of it that is aligned and
    /// has the length `part`, an order, can be freed by [`free`](Self::free).
    fn allocate_all(&self, part: Length);
}

/// The state with which one thread uses an allocator.
pub trait ThreadState {
    /// Allocates frames.
    fn alloc(&mut self, length: Length) -> Option<u64>;

    /// Frees an allocation.
    fn free(&mut self, frame: u64, length: Length);

    /// Allocates `count` runs, and appends them to `held`.
    #[inline(always)]
    fn take(&mut self, length: Length, count: u64, held: &mut Vec<u64>) {
        for _ in 0..count {
            held.push(alloc_until_some(|| self.alloc(length)));
        }
    }

    /// Frees all allocations in `held`, and leaves `held` empty.
    #[inline(always)]
    fn free_all(&mut self, length: Length, held: &mut Vec<u64>) {
        for frame in held.drain(..) {
            self.free(frame, length);
        }
    }
}

impl<A: Allocator> ThreadState for &A {
    #[inline(always)]
    fn alloc(&mut self, length: Length) -> Option<u64> {
        A::alloc(self, length)
    }

    #[inline(always)]
    fn free(&mut self, frame: u64, length: Length) {
        A::free(self, frame, length);
    }
}

/// Repeats an allocation until it succeeds. The memory must be free, or another thread must be
/// freeing it.
#[inline]
pub(in crate::bench) fn alloc_until_some(mut alloc: impl FnMut() -> Option<u64>) -> u64 {
    loop {
        if let Some(frame) = alloc() {
            return frame;
        }
    }
}

/// Converts a number to an index.
#[inline]
pub(super) fn index(number: u64) -> usize {
    usize::try_from(number).expect("the host has 64 bits")
}
