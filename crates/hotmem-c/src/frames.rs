//! Allocates and frees frames.
//!
//! `hotmem_alloc_frame_unchecked` and `hotmem_free_frame_unchecked` contain the engine's fast path,
//! and make only tail calls, so that they save no registers. If the kernel has a function for CPU
//! numbers, a separate copy of the fast path calls it, and saves registers for this call. The
//! header has `hotmem_alloc_frame` and `hotmem_free_frame` as inline functions too, which check the
//! pointer, so that the compiler can make this check if the pointer is constant.

use crate::error::{Error, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, code};
use crate::instance::{Booted, Instance, OtherMark, aligned_instance, hotmem, instance};
use crate::request::{ONE_FRAME, hotmem_request, request_at};
use ::hotmem::geometry::FRAME_SIZE;
use ::hotmem::{AllocError, AllocRequest, FastFree, FastPath, Frames, Pfn, PfnRange, Platform};
use core::hint::{black_box, spin_loop};

/// The number of frames in each state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_counts {
    /// Frames of announced ranges, plugged or not.
    pub announced: u64,
    /// Frames that were added, online or offline.
    pub present: u64,
    /// Frames that are given to the allocator.
    pub online: u64,
    /// Frames that are online for movable allocations only.
    pub movable: u64,
    /// Frames that are free, so that they can be allocated.
    pub free: u64,
    /// Free frames whose RAM the host has taken until they are allocated again.
    pub reported: u64,
    /// Frames that are isolated, so that they cannot be allocated.
    pub isolated: u64,
    /// Frames that are allocated.
    pub used: u64,
}

/// The number of times that an allocation is tried while it fails with [`AllocError::Busy`].
const TRIES: u32 = 64;
/// Allocates one frame as kernel memory. Returns its physical address, which is not negative, or an
/// error. The contents are undefined. Context: any. Never waits.
///
/// # Errors
/// HOTMEM_ENOMEM, HOTMEM_EFAULT. HOTMEM_EINVAL: `h` is not aligned, or the instance has not booted.
/// HOTMEM_EAGAIN: at each of several tries, other CPUs were in the middle of allocations and frees.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_alloc_frame(h: *mut hotmem) -> i64 {
    // SAFETY: the caller guarantees it.
    match unsafe { instance(h) } {
        // SAFETY: `instance` has checked the pointer.
        Ok(_) => unsafe { hotmem_alloc_frame_unchecked(h) },
        Err(Error(code)) => code.into(),
    }
}

/// Does the same as `hotmem_alloc_frame`, which calls it, but does not check whether `h` is NULL or
/// not aligned.
///
/// # Errors
/// HOTMEM_ENOMEM. HOTMEM_EINVAL: the instance has not booted. HOTMEM_EAGAIN: at each of several tries,
/// other CPUs were in the middle of allocations and frees.
///
/// # Safety
/// `h` is a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_alloc_frame_unchecked(h: *mut hotmem) -> i64 {
    // SAFETY: the caller guarantees it.
    let instance = unsafe { aligned_instance(h) };
    match instance.on_cpu_zero() {
        Ok(instance) => alloc_frame_on(instance, 0),
        Err(mark) => alloc_frame_with_cpu_number(instance, mark),
    }
}

#[inline(never)]
fn alloc_frame_with_cpu_number(instance: &'static Instance, mark: OtherMark) -> i64 {
    match instance.with_cpu_numbers(mark) {
        Ok(instance) => alloc_frame_on(instance, instance.frames().platform().cpu()),
        Err(Error(code)) => code.into(),
    }
}

/// Allocates one frame on the CPU with this number.
#[inline(always)]
fn alloc_frame_on(instance: Booted, cpu: usize) -> i64 {
    match instance.frames().alloc_frame_fast(cpu) {
        Some(number) => (number * FRAME_SIZE).cast_signed(),
        None => alloc_frame_slowly(instance),
    }
}

#[cold]
#[inline(never)]
fn alloc_frame_slowly(instance: Booted) -> i64 {
    match alloc_with_retries(instance.frames(), ONE_FRAME) {
        Ok(frame) => frame.phys_addr().cast_signed(),
        Err(Error(code)) => i64::from(code),
    }
}

/// Allocates the frames that `request` describes, or one frame of kernel memory if `request` is
/// NULL. Stores the physical address of the first frame in `paddr`. The contents are undefined.
/// Context: any. Never waits.
///
/// # Errors
/// HOTMEM_ENOMEM, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_EBUSY: with HOTMEM_AT, a
/// frame is not free. HOTMEM_EAGAIN: at each of several tries, other CPUs were in the middle of
/// allocations and frees.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. `request` is NULL or a request. `paddr` is NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_alloc(
    h: *mut hotmem,
    request: *const hotmem_request,
    paddr: *mut u64,
) -> i32 {
    let allocate = || {
        // SAFETY: the caller guarantees it. The same holds for all pointers below.
        let frames = unsafe { instance(h) }?.frames()?;
        if paddr.is_null() {
            return Err(Error(HOTMEM_EFAULT));
        }
        // SAFETY: see above.
        let request = unsafe { request_at(request) }?;
        let start = alloc_with_retries(frames, request)?;
        // SAFETY: see above.
        unsafe { paddr.write(start.phys_addr()) };
        Ok(())
    };
    code(allocate())
}

#[inline(never)]
fn alloc_with_retries<P: Platform>(
    frames: &Frames<P>,
    request: AllocRequest,
) -> Result<Pfn, Error> {
    Ok(with_retries(|| frames.alloc(request))?.into_raw().start())
}

/// Tries an allocation again while its error is [`AllocError::Busy`].
pub(crate) fn with_retries<T>(
    mut alloc: impl FnMut() -> Result<T, AllocError>,
) -> Result<T, AllocError> {
    for _ in 0..TRIES {
        match alloc() {
            Err(AllocError::Busy) => spin_loop(),
            result => return result,
        }
    }
    Err(AllocError::Busy)
}

/// Frees one frame, as `hotmem_free` does. Context: any. Never waits.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_ENOENT: the frame is not allocated.
/// HOTMEM_ENXIO: the frame is not online memory of this instance.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. The caller owns the frame if it is allocated, and no code uses it
/// any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_free_frame(h: *mut hotmem, paddr: u64) -> i32 {
    // SAFETY: the caller guarantees it.
    match unsafe { instance(h) } {
        // SAFETY: `instance` has checked the pointer, and the caller guarantees the rest.
        Ok(_) => unsafe { hotmem_free_frame_unchecked(h, paddr) },
        Err(Error(code)) => code,
    }
}

/// Does the same as `hotmem_free_frame`, which calls it, but does not check whether `h` is NULL or
/// not aligned.
///
/// # Errors
/// HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_ENOENT: the frame is not allocated.
/// HOTMEM_ENXIO: the frame is not online memory of this instance.
///
/// # Safety
/// `h` is a `struct hotmem`. The caller owns the frame if it is allocated, and no code uses it any
/// more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_free_frame_unchecked(h: *mut hotmem, paddr: u64) -> i32 {
    // SAFETY: the caller guarantees it.
    let instance = unsafe { aligned_instance(h) };
    match instance.on_cpu_zero() {
        Ok(instance) => match frame_at(paddr) {
            // SAFETY: the caller guarantees it.
            Ok(frame) => unsafe { free_frame_on(instance, frame, 0) },
            Err(rotated) => bad_address(rotated),
        },
        // SAFETY: the caller guarantees it.
        Err(mark) => unsafe { free_frame_with_cpu_number(instance, paddr, mark) },
    }
}

/// # Safety
/// As for [`hotmem_free`].
#[inline(never)]
unsafe fn free_frame_with_cpu_number(
    instance: &'static Instance,
    paddr: u64,
    mark: OtherMark,
) -> i32 {
    let instance = match instance.with_cpu_numbers(mark) {
        Ok(instance) => instance,
        Err(Error(code)) => return code,
    };
    match frame_at(paddr) {
        Ok(frame) => {
            let cpu = instance.frames().platform().cpu();
            // SAFETY: the caller guarantees it.
            unsafe { free_frame_on(instance, frame, cpu) }
        }
        Err(rotated) => bad_address(rotated),
    }
}

/// Frees one frame on the CPU with this number.
///
/// # Safety
/// As for [`hotmem_free`].
#[inline(always)]
unsafe fn free_frame_on(instance: Booted, frame: Pfn, cpu: usize) -> i32 {
    // SAFETY: the caller guarantees it.
    match unsafe { instance.frames().free_frame_fast(frame, cpu) } {
        FastFree::Complete => 0,
        FastFree::Incomplete => complete_free(instance, frame),
        // SAFETY: the caller guarantees it.
        FastFree::Nothing => unsafe { free(instance, frame, 1) },
    }
}

/// Completes a free, and returns 0. The compiler must not see that the result is constant: then it
/// makes a tail call.
#[inline(never)]
fn complete_free(instance: Booted, frame: Pfn) -> i32 {
    instance.frames().complete_free(frame);
    black_box(0)
}

/// Frees frames. They may be all or a part of one or more allocations, or reserved boot memory.
/// Context: any. Never waits.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_ENOENT: a frame is not allocated.
/// HOTMEM_ENXIO: a frame is not online memory of this instance.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. The caller owns each of the frames that is allocated, and no
/// code uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_free(h: *mut hotmem, paddr: u64, frames: u64) -> i32 {
    // SAFETY: the caller guarantees it.
    match unsafe { instance(h) }.and_then(Instance::booted) {
        Ok(instance) => match frame_at(paddr) {
            // SAFETY: the caller guarantees it.
            Ok(start) => unsafe { free(instance, start, frames) },
            Err(rotated) => bad_address(rotated),
        },
        Err(Error(code)) => code,
    }
}

/// Frees frames for [`hotmem_free`] and [`hotmem_free_frame`].
///
/// # Safety
/// As for [`hotmem_free`].
#[inline(never)]
unsafe fn free(instance: Booted, start: Pfn, frames: u64) -> i32 {
    let Some(range) = PfnRange::with_len(start, frames) else { return HOTMEM_ERANGE };
    // SAFETY: the caller guarantees it.
    match unsafe { instance.frames().free_raw(range) } {
        Ok(()) => 0,
        Err(error) => Error::from(error).0,
    }
}

/// Returns the frame that starts at `paddr`. If no frame can start there, returns `paddr` rotated,
/// for [`bad_address`].
#[inline(always)]
fn frame_at(paddr: u64) -> Result<Pfn, u64> {
    // The rotation moves the low bits of an unaligned address to the top, so its number lies beyond
    // all frames.
    let rotated = paddr.rotate_right(FRAME_SIZE.ilog2());
    if rotated >> Pfn::LIMIT.number().ilog2() != 0 {
        return Err(rotated);
    }
    Pfn::new(rotated).ok_or(rotated)
}

/// Returns the frame that starts at `paddr`.
pub(crate) fn frame_at_address(paddr: u64) -> Result<Pfn, Error> {
    frame_at(paddr).map_err(|rotated| Error(bad_address(rotated)))
}

/// Returns the code for an address at which no frame can start.
#[cold]
#[inline(never)]
fn bad_address(rotated: u64) -> i32 {
    let paddr = rotated.rotate_left(FRAME_SIZE.ilog2());
    if paddr.is_multiple_of(FRAME_SIZE) { HOTMEM_ERANGE } else { HOTMEM_EINVAL }
}

/// Counts the frames of the instance in each state. Context: any. Cost: proportional to the memory
/// that was added.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. `counts` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_get_counts(h: *mut hotmem, counts: *mut hotmem_counts) -> i32 {
    let count = || {
        // SAFETY: the caller guarantees it. The same holds below.
        let all = unsafe { instance(h) }?.frames()?.counts();
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
            used: all.used,
        };
        // SAFETY: see above.
        unsafe { counts.write(result) };
        Ok(())
    };
    code(count())
}
