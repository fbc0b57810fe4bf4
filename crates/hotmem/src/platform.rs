//! What the engine needs to know about the machine it runs on.

use crate::addr::Pfn;
use crate::geometry::{FRAME_SHIFT, PHYS_ADDR_BITS};
use crate::words::NodeId;

/// The processor the caller runs on. A plain value, so that many machines live in one process.
pub trait Platform {
    /// The number of the CPU that runs the caller. **A hint only**: two CPUs may give the same
    /// number and a thread may move right after asking; a wrong answer costs speed, never
    /// correctness. Called from any context, often: make it cheap.
    fn cpu(&self) -> usize;

    /// The NUMA node that is nearest to the caller. A hint as well; a node that is unknown to the
    /// machine stands for the first one online.
    fn node(&self) -> NodeId {
        NodeId::ZERO
    }

    /// Memory waits to be reported to the host, and the reporter has said that it is idle: see to
    /// it that [`Reporter::step`](crate::report::Reporter::step) is called soon. Comes once each
    /// time it was idle, from within a free or whatever else made memory free, in its context: only
    /// set a flag or wake a thread here.
    fn wake_reporter(&self) {}

    /// Somebody needs what the kernel keeps in [magazines](crate::Magazine): an allocation would be
    /// out of memory, or memory is to go. Frees what is at hand, and returns whether that was
    /// anything. Comes from within an allocation, in its context: a magazine that is in use, on this
    /// CPU or another, cannot be waited for.
    fn drain_magazines(&self) -> bool {
        false
    }
}

/// A machine with one CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneCpu;

impl Platform for OneCpu {
    fn cpu(&self) -> usize {
        0
    }
}

/// Where the kernel reaches physical memory: virtual address = physical address + offset.
///
/// The engine touches memory only through this, only frames that it was given as RAM and has
/// claimed, and only to keep its own metadata there or to fill them. That they are mapped is the
/// promise of [`Mapping`](crate::Mapping).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirectMap {
    /// Where physical address 0 is mapped, or would be.
    base: *mut u8,
}

impl DirectMap {
    pub(crate) const fn base(self) -> *mut u8 {
        self.base
    }

    pub(crate) const fn from_base(base: *mut u8) -> DirectMap {
        DirectMap { base }
    }

    /// Where the frame's first byte is mapped.
    #[allow(clippy::cast_possible_truncation, reason = "what is announced lies below `REACHABLE`")]
    pub(crate) const fn pointer(self, pfn: Pfn) -> *mut u8 {
        self.base.wrapping_add(pfn.number() as usize * MAPPED_SIZE)
    }

    /// The frame that is mapped at `pointer`.
    pub(crate) fn frame_at(self, pointer: *mut u8) -> Option<Pfn> {
        Pfn::new((pointer.addr().wrapping_sub(self.base.addr()) / MAPPED_SIZE) as u64)
    }
}

/// One past the last frame that a direct map can have: whoever announces memory refuses what lies
/// above, so that no address is ever cut short.
pub(crate) const REACHABLE: Pfn = reachable(usize::BITS);

/// The same for pointers of so many bits.
const fn reachable(pointer_bits: u32) -> Pfn {
    let bits = if pointer_bits < PHYS_ADDR_BITS { pointer_bits } else { PHYS_ADDR_BITS };
    match Pfn::new(1 << (bits - FRAME_SHIFT)) {
        Some(end) => end,
        None => Pfn::LIMIT,
    }
}

/// Bytes from one frame to the next in the direct map. Under loom, whose atomics are no plain
/// memory, a frame is what the engine may keep in it.
#[cfg(not(loom))]
const MAPPED_SIZE: usize = 1 << FRAME_SHIFT;
#[cfg(loom)]
const MAPPED_SIZE: usize = size_of::<crate::words::BitmapFrame>();

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pointers_reach_what_they_can_count() {
        let gib_4 = Pfn::containing(1 << 32).unwrap();
        assert_eq!((reachable(32), reachable(64)), (gib_4, Pfn::LIMIT));
        let last = Pfn::new(REACHABLE.number() - 1).unwrap();
        let map = DirectMap::from_base(core::ptr::null_mut());
        assert_eq!(map.pointer(last).addr() as u64, last.phys_addr());
        assert_eq!(map.frame_at(map.pointer(last)), Some(last));
    }
}
