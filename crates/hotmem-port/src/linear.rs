//! Addresses in a kernel's linear map of physical memory.

use hotmem::geometry::FRAME_SIZE;
use hotmem::{Pfn, PfnRange};

/// A linear map of physical memory: virtual address = base + physical address. The same that the
/// kernel's [`Mapping`](hotmem::Mapping) promises.
///
/// ```
/// use hotmem::Pfn;
/// use hotmem_port::LinearMap;
///
/// let map = LinearMap::at_address(0xffff_8000_0000_0000);
/// let frame = Pfn::new(3).expect("a frame number");
/// let pointer = map.pointer(frame);
/// assert_eq!(pointer.addr(), 0xffff_8000_0000_3000);
/// assert_eq!(map.frame(pointer), Some(frame));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinearMap {
    base: *mut u8,
}

// SAFETY: a pointer is an address here; who uses it answers for that.
unsafe impl Send for LinearMap {}
// SAFETY: as above.
unsafe impl Sync for LinearMap {}

impl LinearMap {
    /// The map that has physical address 0 at `base`, or would have it there. Its pointers have the
    /// provenance of `base`.
    #[must_use]
    pub const fn new(base: *mut u8) -> LinearMap {
        LinearMap { base }
    }

    /// The same for an address that no Rust object has, as that of a kernel's linear map is.
    #[must_use]
    pub const fn at_address(base: usize) -> LinearMap {
        LinearMap { base: base as *mut u8 }
    }

    /// Where physical address 0 is mapped, or would be.
    #[must_use]
    pub const fn base(self) -> *mut u8 {
        self.base
    }

    /// Where the frame's first byte is mapped.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "memory beyond the pointers is refused")]
    pub const fn pointer(self, frame: Pfn) -> *mut u8 {
        self.base.wrapping_add(frame.phys_addr() as usize)
    }

    /// The frame that is mapped at `pointer`.
    #[inline]
    #[must_use]
    pub fn frame(self, pointer: *const u8) -> Option<Pfn> {
        Pfn::containing(pointer.addr().wrapping_sub(self.base.addr()) as u64)
    }

    /// The frames of which `bytes` bytes from `pointer` on have a part.
    #[must_use]
    pub fn frames(self, pointer: *const u8, bytes: usize) -> Option<PfnRange> {
        let first = pointer.addr().wrapping_sub(self.base.addr()) as u64;
        let end = first.checked_add(bytes as u64)?.checked_next_multiple_of(FRAME_SIZE)?;
        PfnRange::new(Pfn::containing(first)?, Pfn::new(end / FRAME_SIZE)?)
    }
}
