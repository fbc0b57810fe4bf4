//! Defines the direct map, by which the engine reaches its metadata in memory.

use crate::addr::Pfn;
use crate::geometry::{FRAME_SHIFT, PHYS_ADDR_BITS};

/// The kernel's mapping of physical memory: virtual address = physical address + offset.
///
/// The engine accesses memory only through this mapping. It accesses only frames of RAM that it has
/// claimed, and only to keep its own metadata in them or to fill them. The implementer of
/// [`Map`](crate::Map) promises that these frames are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirectMap {
    /// The address at which physical address 0 is mapped, or would be mapped if it is not RAM.
    base: *mut u8,
}

impl DirectMap {
    pub(crate) const fn base(self) -> *mut u8 {
        self.base
    }

    pub(crate) const fn from_base(base: *mut u8) -> DirectMap {
        DirectMap { base }
    }

    /// Returns the address at which the frame's first byte is mapped.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "what is announced lies below `REACHABLE_END`"
    )]
    pub(crate) const fn pointer(self, pfn: Pfn) -> *mut u8 {
        self.base.wrapping_add(pfn.number() as usize * MAPPED_SIZE)
    }

    /// Returns the frame that is mapped at `pointer`.
    pub(crate) fn frame_at(self, pointer: *mut u8) -> Option<Pfn> {
        Pfn::new((pointer.addr().wrapping_sub(self.base.addr()) / MAPPED_SIZE) as u64)
    }
}

/// The first frame above those that pointers can address. Announcing memory at or above this frame
/// fails, so that no address is ever truncated.
pub(crate) const REACHABLE_END: Pfn = reachable(usize::BITS);

/// Computes [`REACHABLE_END`] for pointers with this many bits.
const fn reachable(pointer_bits: u32) -> Pfn {
    let bits = if pointer_bits < PHYS_ADDR_BITS { pointer_bits } else { PHYS_ADDR_BITS };
    match Pfn::new(1 << (bits - FRAME_SHIFT)) {
        Some(end) => end,
        None => Pfn::LIMIT,
    }
}

/// The number of bytes from one frame to the next in the direct map. Loom's atomics are larger than
/// real ones, so under loom a frame is as large as the largest metadata that lies in it.
#[cfg(not(loom))]
const MAPPED_SIZE: usize = 1 << FRAME_SHIFT;
#[cfg(loom)]
const MAPPED_SIZE: usize = size_of::<super::BitmapFrame>();

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pointers_reach_all_addresses_that_they_can_hold() {
        let gib_4 = Pfn::containing(1 << 32).unwrap();
        assert_eq!((reachable(32), reachable(64)), (gib_4, Pfn::LIMIT));
        let last = Pfn::new(REACHABLE_END.number() - 1).unwrap();
        let map = DirectMap::from_base(core::ptr::null_mut());
        assert_eq!(map.pointer(last).addr() as u64, last.phys_addr());
        assert_eq!(map.frame_at(map.pointer(last)), Some(last));
    }
}
