//! Allocates and frees frames.

use crate::error::{Error, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, code};
use crate::machine::{hotmem, machine};
use ::hotmem::geometry::FRAME_SIZE;
use ::hotmem::{AllocError, AllocRequest, Frames, NodeChoice, NodeId, Pfn, PfnRange, Platform};
use core::hint::spin_loop;

/// Movable memory is preferred. The kernel promises to migrate the frames.
pub const HOTMEM_MOVABLE: u32 = 1;
/// The frames start exactly at `at`.
pub const HOTMEM_AT: u32 = 2;
/// The frames are near `node`, if there are such frames, instead of near the CPU.
pub const HOTMEM_NEAR: u32 = 4;
/// The frames are on `node`.
pub const HOTMEM_ONLY: u32 = 8;
/// The frames are on another node than `node`, if there are such: for `hotmem_hooks.migrate`.
pub const HOTMEM_AVOIDING: u32 = 16;

/// A request for frames. Zero is the default of every field but `frames`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_request {
    /// The number of contiguous frames (4 KiB).
    pub frames: u64,
    /// The alignment of the start in frames, a power of two. 0 stands for 1.
    pub align: u64,
    /// The lowest physical address of the start.
    pub min: u64,
    /// The highest physical address of the end. 0: there is no bound.
    pub max: u64,
    /// The physical address of the start, with HOTMEM_AT.
    pub at: u64,
    /// HOTMEM_MOVABLE and others, or 0.
    pub flags: u32,
    /// The NUMA node, with HOTMEM_NEAR, HOTMEM_ONLY or HOTMEM_AVOIDING.
    pub node: u32,
}

/// The number of frames in each state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_counts {
    /// Announced.
    pub announced: u64,
    /// Added, whether online or not.
    pub present: u64,
    /// Given to the allocator.
    pub online: u64,
    /// Online for movable allocations only.
    pub movable: u64,
    /// Free: could be allocated now.
    pub free: u64,
    /// Free, and given to the host until they are used again.
    pub reported: u64,
    /// Isolated.
    pub isolated: u64,
    /// Allocated.
    pub used: u64,
}

/// The number of times that an allocation is tried again while it fails with [`AllocError::Busy`].
const TRIES: u32 = 64;
/// The request for one frame for any purpose.
const ONE: AllocRequest = AllocRequest::frames(1);

/// Allocates one frame for any purpose, and returns its physical address, which is not negative, or
/// an error. The contents are undefined. Context: any; never waits.
///
/// # Errors
/// HOTMEM_ENOMEM, HOTMEM_EFAULT, HOTMEM_EINVAL; HOTMEM_EAGAIN: memory was changing hands for long.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_alloc_frame(h: *mut hotmem) -> i64 {
    // SAFETY: by the caller's promise.
    let frames = match unsafe { machine(h) }.and_then(|machine| machine.frames()) {
        Ok(frames) => frames,
        Err(Error(code)) => return i64::from(code),
    };
    match frames.alloc(ONE) {
        Ok(frame) => frame.into_raw().start().phys_addr().cast_signed(),
        Err(error) => retry_one(frames, error),
    }
}

/// Tries an allocation of one frame again after `error`, if that may succeed.
#[cold]
#[inline(never)]
fn retry_one<P: Platform>(frames: &Frames<P>, error: AllocError) -> i64 {
    match retry(frames, ONE, error) {
        Ok(frame) => frame.phys_addr().cast_signed(),
        Err(Error(code)) => i64::from(code),
    }
}

/// Allocates what `request` describes, or one frame for any purpose if it is NULL, and stores the
/// physical address. The contents are undefined. Context: any; never waits.
///
/// # Errors
/// HOTMEM_ENOMEM, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_EBUSY: `at` is not free;
/// HOTMEM_EAGAIN: other CPUs were in the middle of allocations and frees at each of several tries.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`; `request` is NULL or a request; `paddr` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_alloc(
    h: *mut hotmem,
    request: *const hotmem_request,
    paddr: *mut u64,
) -> i32 {
    let allocate = || {
        // SAFETY: by the caller's promise. The same holds for all pointers below.
        let frames = unsafe { machine(h) }?.frames()?;
        if paddr.is_null() {
            return Err(Error(HOTMEM_EFAULT));
        }
        // SAFETY: see above.
        let request = match unsafe { request.as_ref() } {
            Some(request) => request.decoded()?,
            None => ONE,
        };
        let start = retry(frames, request, AllocError::Busy)?;
        // SAFETY: see above.
        unsafe { paddr.write(start.phys_addr()) };
        Ok(())
    };
    code(allocate())
}

/// Tries an allocation again while its error is [`AllocError::Busy`].
#[inline(never)]
fn retry<P: Platform>(
    frames: &Frames<P>,
    request: AllocRequest,
    mut error: AllocError,
) -> Result<Pfn, Error> {
    let mut tries = 0..TRIES;
    while error == AllocError::Busy && tries.next().is_some() {
        match frames.alloc(request) {
            Ok(allocation) => return Ok(allocation.into_raw().start()),
            Err(again) => error = again,
        }
        spin_loop();
    }
    Err(error.into())
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

/// Frees one frame, as `hotmem_free` does. Context: any; never waits.
///
/// # Errors
/// As for `hotmem_free`.
///
/// # Safety
/// As for `hotmem_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_free_frame(h: *mut hotmem, paddr: u64) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe { free(h, paddr, 1) }
}

/// Frees frames: all or a part of one allocation or of several, or boot memory that was reserved.
/// Context: any; never waits.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_ENOENT: a frame is not allocated;
/// HOTMEM_ENXIO: a frame is not online memory of this machine.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. Each frame that is allocated is the caller's, and nobody uses
/// it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_free(h: *mut hotmem, paddr: u64, frames: u64) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe { free(h, paddr, frames) }
}

/// Frees frames for [`hotmem_free`] and [`hotmem_free_frame`]. It is inlined, so that the number of
/// frames is a constant in the second.
///
/// # Safety
/// As for [`hotmem_free`].
#[inline(always)]
unsafe fn free(h: *mut hotmem, paddr: u64, frames: u64) -> i32 {
    // SAFETY: by the caller's promise.
    let machine = match unsafe { machine(h) }.and_then(|machine| machine.frames()) {
        Ok(frames) => frames,
        Err(Error(code)) => return code,
    };
    // The rotation moves the low bits of an unaligned address to the top, so its number lies beyond
    // all frames, and `filter` removes it.
    let start = Pfn::new(paddr.rotate_right(FRAME_SIZE.ilog2())).filter(|&at| at < Pfn::LIMIT);
    let Some(range) = start.and_then(|start| PfnRange::with_len(start, frames)) else {
        return if paddr.is_multiple_of(FRAME_SIZE) { HOTMEM_ERANGE } else { HOTMEM_EINVAL };
    };
    // SAFETY: by the caller's promise.
    match unsafe { machine.free_raw(range) } {
        Ok(()) => 0,
        Err(error) => Error::from(error).0,
    }
}

/// Counts the frames of the machine. Context: any. Cost: proportional to the memory that was added.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`; `counts` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_get_counts(h: *mut hotmem, counts: *mut hotmem_counts) -> i32 {
    let count = || {
        // SAFETY: by the caller's promise. The same holds below.
        let all = unsafe { machine(h) }?.frames()?.counts();
        if counts.is_null() {
            return Err(Error(HOTMEM_EFAULT));
        }
        let result = hotmem_counts {
            announced: all.announced,
            present: all.present,
            online: all.online,
            movable: all.movable,
            free: all.free,
            reported: all.reported,
            isolated: all.isolated,
            used: all.used(),
        };
        // SAFETY: see above.
        unsafe { counts.write(result) };
        Ok(())
    };
    code(count())
}
