//! Converts between frames and addresses in a kernel's linear map of physical memory.

use hotmem::geometry::FRAME_SIZE;
use hotmem::{Pfn, PfnRange};

/// A linear map of physical memory: virtual address = base + physical address. A kernel uses the same
/// map for its implementation of [`Map`](hotmem::Map).
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

// SAFETY: the map only computes addresses. Code that dereferences them is `unsafe` itself.
unsafe impl Send for LinearMap {}
// SAFETY: the map only computes addresses. Code that dereferences them is `unsafe` itself.
unsafe impl Sync for LinearMap {}

impl LinearMap {
    /// Returns the map that has physical address 0 at `base`, whether or not that byte is mapped.
    /// Its pointers have the provenance of `base`.
    #[must_use]
    pub const fn new(base: *mut u8) -> LinearMap {
        LinearMap { base }
    }

    /// Returns the map that has physical address 0 at the address `base`. The mapped memory must
    /// belong to no Rust object, as in a kernel's linear map.
    #[must_use]
    pub const fn at_address(base: usize) -> LinearMap {
        LinearMap { base: base as *mut u8 }
    }

    /// Returns the address for physical address 0, whether or not that byte is mapped.
    #[must_use]
    pub const fn base(self) -> *mut u8 {
        self.base
    }

    /// Returns the address of the frame's first byte.
    #[inline]
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "memory that pointers cannot address is refused"
    )]
    pub const fn pointer(self, frame: Pfn) -> *mut u8 {
        self.base.wrapping_add(frame.phys_addr() as usize)
    }

    /// Returns the frame that contains the byte at `pointer`, or `None` if `pointer` lies beyond the
    /// last possible physical address.
    #[inline]
    #[must_use]
    pub fn frame(self, pointer: *const u8) -> Option<Pfn> {
        Pfn::containing(pointer.addr().wrapping_sub(self.base.addr()) as u64)
    }

    /// Returns the frames that the `bytes` bytes from `pointer` on touch, or `None` if some of these
    /// bytes lie beyond the last possible physical address.
    #[must_use]
    pub fn frames(self, pointer: *const u8, bytes: usize) -> Option<PfnRange> {
        let first = pointer.addr().wrapping_sub(self.base.addr()) as u64;
        let end = first.checked_add(bytes as u64)?.checked_next_multiple_of(FRAME_SIZE)?;
        PfnRange::new(Pfn::containing(first)?, Pfn::new(end / FRAME_SIZE)?)
    }
}
