//! Defines the direct map, and the callbacks of the frame allocator into the kernel.

use crate::addr::Pfn;
use crate::geometry::{FRAME_SHIFT, PHYS_ADDR_BITS};
use crate::words::NodeId;

/// The callbacks of the frame allocator into the kernel: which CPU and node the caller runs on, and
/// what to do about missing or reportable memory. Each instance has its own value of this type, so
/// one process can have many instances.
pub trait Platform {
    /// Whether the engine counts the frames that callers allocate and free, for
    /// [`Frames::allocated_frames`](crate::Frames::allocated_frames). Each allocation and each free
    /// then costs one atomic read-modify-write more.
    const COUNTS_ALLOCATED: bool = false;

    /// Returns the number of the CPU that runs the caller. The number is **only a hint**: two CPUs
    /// may return the same one, and a thread may move to another CPU right after the call. A wrong
    /// number costs time, but never correctness. The engine calls this often and from any context,
    /// so it must be cheap.
    fn cpu(&self) -> usize;

    /// Returns the NUMA node that is nearest to the caller. The node is only a hint. If the machine
    /// does not know the node, the first online node stands for it.
    fn node(&self) -> NodeId {
        NodeId::ZERO
    }

    /// Wakes the reporter: memory waits to be reported, and the reporter's last step was idle. The
    /// kernel must ensure that [`Reporter::step`](crate::report::Reporter::step) is called soon.
    /// The engine calls this at most once each time that the reporter becomes idle. The call
    /// happens within the call that made memory free, such as a free, and in the context of that
    /// call. So an implementation may only set a flag or wake a thread.
    fn wake_reporter(&self) {}

    /// Frees the frames that the kernel keeps in magazines (`hotmem_port::Magazine`), and returns
    /// whether there were any. The engine calls this before an allocation fails because no memory is
    /// free, when memory is to be drained, and when a frame that is in use is poisoned. It may be
    /// called from within an allocation, in its context, so it cannot wait for a magazine that is in
    /// use on this or another CPU. A kernel with a magazine for each CPU
    /// (`hotmem_port::CpuMagazine`) drains that of this CPU. It may send the other CPUs an interrupt
    /// whose handler drains theirs; a later attempt finds those frames free.
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

/// The kernel's mapping of physical memory: virtual address = physical address + offset.
///
/// The engine accesses memory only through this mapping. It accesses only frames of RAM that it has
/// claimed, and only to keep its own metadata in them or to fill them. The implementer of
/// [`Mapping`](crate::Mapping) promises that these frames are mapped.
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
const MAPPED_SIZE: usize = size_of::<crate::words::BitmapFrame>();

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
