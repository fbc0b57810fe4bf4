//! Requests for frames.

use crate::error::{Error, HOTMEM_EINVAL, HOTMEM_ERANGE};
use ::hotmem::geometry::FRAME_SIZE;
use ::hotmem::{AllocRequest, NodeChoice, NodeId, Pfn};

/// Prefer the movable zone. The kernel can migrate the frames.
pub const HOTMEM_MOVABLE: u32 = 1 << 0;
/// The allocation starts exactly at `at`.
pub const HOTMEM_AT: u32 = 1 << 1;
/// Prefer frames on `node` to frames on the node of the CPU.
pub const HOTMEM_NEAR: u32 = 1 << 2;
/// All frames are on `node`.
pub const HOTMEM_ONLY: u32 = 1 << 3;
/// Prefer frames on other nodes than `node`: for allocations by `hotmem_hooks.migrate`.
pub const HOTMEM_AVOIDING: u32 = 1 << 4;

/// A request for frames. The default of every field except `frames` is zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_request {
    /// The number of contiguous frames (4 KiB).
    pub frames: u64,
    /// The alignment of the start in frames, a power of two. 0 means 1.
    pub align: u64,
    /// The lowest physical address of the start.
    pub min: u64,
    /// The highest physical address of the end. 0 means no bound.
    pub max: u64,
    /// With HOTMEM_AT: the physical address of the start.
    pub at: u64,
    /// A combination of HOTMEM_MOVABLE, HOTMEM_AT and one of HOTMEM_NEAR, HOTMEM_ONLY and
    /// HOTMEM_AVOIDING, or 0.
    pub flags: u32,
    /// With HOTMEM_NEAR, HOTMEM_ONLY or HOTMEM_AVOIDING: the NUMA node.
    pub node: u32,
}

/// The request for one frame of kernel memory.
pub(crate) const ONE_FRAME: AllocRequest = AllocRequest::frames(1);

/// Returns the request at `request`, or that for one frame of kernel memory if the pointer is NULL.
///
/// # Safety
/// `request` is NULL or a request.
pub(crate) unsafe fn request_at(request: *const hotmem_request) -> Result<AllocRequest, Error> {
    // SAFETY: the caller guarantees it.
    unsafe { request.as_ref() }.map_or(Ok(ONE_FRAME), hotmem_request::decoded)
}

impl hotmem_request {
    fn decoded(&self) -> Result<AllocRequest, Error> {
        let bound = |paddr: u64| Pfn::new(paddr).ok_or(Error(HOTMEM_ERANGE));
        let mut request = AllocRequest::frames(self.frames).aligned(self.align.max(1));
        let lowest = bound(self.min.div_ceil(FRAME_SIZE))?;
        request = match self.max {
            0 => request.within(lowest..),
            max => request.within(lowest..bound(max / FRAME_SIZE)?),
        };
        if self.flags & HOTMEM_MOVABLE != 0 {
            request = request.movable();
        }
        if self.flags & HOTMEM_AT != 0 {
            if !self.at.is_multiple_of(FRAME_SIZE) {
                return Err(Error(HOTMEM_EINVAL));
            }
            request = request.at(bound(self.at / FRAME_SIZE)?);
        }
        let node = NodeId(self.node);
        match self.flags & !(HOTMEM_MOVABLE | HOTMEM_AT) {
            0 => Ok(request),
            HOTMEM_NEAR => Ok(request.node(NodeChoice::Near(node))),
            HOTMEM_ONLY => Ok(request.node(NodeChoice::Only(node))),
            HOTMEM_AVOIDING => Ok(request.node(NodeChoice::Avoiding(node))),
            _ => Err(Error(HOTMEM_EINVAL)),
        }
    }
}
