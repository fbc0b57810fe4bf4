//! The hooks of a kernel whose heap is all that uses memory.

use crate::heap::Heap;
use hotmem::{Bytes, Hooks, Migration, PfnRange, Platform};
use lock_api::RawMutex;

/// The hooks of a kernel that moves nothing: when memory leaves, the heap frees the empty slabs that
/// it keeps. Objects stay where they are, and so does the memory that they are in.
impl<P: Platform, L: RawMutex, const SHARDS: usize> Hooks for &Heap<'_, P, L, SHARDS> {
    fn discard(&mut self, _: PfnRange) {
        self.trim();
    }

    fn migrate(&mut self, _: PfnRange) -> Migration {
        if self.trim() > Bytes::ZERO {
            Migration::Moved
        } else {
            Migration::Pinned("objects on the heap")
        }
    }
}
