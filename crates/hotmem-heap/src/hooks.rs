//! Implements the engine's hooks for a kernel in which only the heap allocates frames.

use crate::heap::Heap;
use hotmem::{Bytes, Hooks, Migration, PfnRange, Platform};
use lock_api::RawMutex;

/// The hooks of a kernel that cannot migrate objects. When memory is taken offline, the heap frees
/// the empty slabs that it keeps, and places new objects in other memory. Memory that holds objects
/// stays online until these objects are freed.
impl<P: Platform, L: RawMutex, const SHARDS: usize> Hooks for &Heap<'_, P, L, SHARDS> {
    fn discard(&mut self, _: PfnRange) {
        self.trim();
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.vacate(used);
        if self.trim() > Bytes::ZERO {
            Migration::Moved
        } else {
            Migration::Unmovable("objects on the heap")
        }
    }
}
